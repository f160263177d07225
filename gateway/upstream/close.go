package upstream

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// closeTime is how long the end of a response is awaited: usually it takes microseconds, and
// the stream is free again before the slot of the request is.
const closeTime = 100 * time.Millisecond

// prompt closes responses in the background where that takes long: net/http first writes to
// the Mac, which may read nothing.
type prompt struct {
	http.RoundTripper
	tasks *sync.WaitGroup
}

// RoundTrip implements http.RoundTripper.
func (p prompt) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = &promptBody{ReadCloser: resp.Body, tasks: p.tasks}
	}
	return resp, err
}

type promptBody struct {
	io.ReadCloser
	tasks *sync.WaitGroup
	once  sync.Once
}

// Close implements io.Closer. Nothing can be done about its error.
func (b *promptBody) Close() error {
	b.once.Do(func() {
		closed := make(chan struct{})
		b.tasks.Go(func() {
			defer close(closed)
			_ = b.ReadCloser.Close()
		})
		enough := time.NewTimer(closeTime)
		defer enough.Stop()
		select {
		case <-closed:
		case <-enough.C:
		}
	})
	return nil
}
