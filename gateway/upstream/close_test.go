package upstream

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// unclosable is a response whose end waits for a Mac that reads nothing.
type unclosable struct {
	io.Reader
	ended chan struct{}
}

func (u unclosable) Close() error { <-u.ended; return nil }

func (u unclosable) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Body: u}, nil
}

// TestAttackAResponseThatNeverCloses: nothing waits for it but the end of the pool.
func TestAttackAResponseThatNeverCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tasks sync.WaitGroup
		defer tasks.Wait()
		u := unclosable{strings.NewReader("x"), make(chan struct{})}
		resp, err := prompt{u, &tasks}.RoundTrip(nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { close(u.ended) })
		began := time.Now()
		for range 2 {
			if err := resp.Body.Close(); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took > closeTime {
			t.Errorf("closing it took %v", took)
		}
	})
}
