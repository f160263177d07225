package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reasons why a peer gave no copy.
const (
	reasonLied    = "lied"    // wrong digest or length
	reasonSlow    = "slow"    // less than the minimum rate
	reasonRefused = "refused" // the peer does not have the weights or refuses to serve them
	reasonGone    = "gone"    // unreachable, or the response was cut off
)

// Reasons returns all of them.
func Reasons() []string { return []string{reasonLied, reasonSlow, reasonRefused, reasonGone} }

var errSlow = errors.New("the copy is slower than the minimum rate")

// verdict returns why a copy failed and for how long its Mac is avoided.
func verdict(err error) (reason string, avoid time.Duration) {
	var e *download.Error
	switch {
	case errors.Is(err, errSlow):
		return reasonSlow, 10 * time.Minute
	case download.Reason(err, "") == v1alpha1.ReasonDigestMismatch:
		return reasonLied, 24 * time.Hour
	case errors.As(err, &e) && e.Status == http.StatusServiceUnavailable:
		return reasonRefused, 0 // it was busy
	case errors.As(err, &e) && e.Status != 0:
		return reasonRefused, time.Minute
	}
	return reasonGone, time.Minute
}

// Failed records why a peer gave no copy.
func (c *Client) Failed(mac string, err error) {
	reason, avoid := verdict(err)
	if c.Blamed != nil {
		c.Blamed(reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := time.Now().Add(avoid); until.After(c.avoided[mac]) {
		c.avoided[mac] = until
	}
}

// avoids reports whether a Mac must not be asked now.
func (c *Client) avoids(mac string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.avoided[mac])
}

// watched is a response body that must keep the pace.
type watched struct {
	io.ReadCloser
	mac    string
	pace   Pace
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	got   int64 // in this window; guarded by mu
	slow  bool  // guarded by mu
	over  bool  // guarded by mu
	timer *time.Timer
}

func newWatched(body io.ReadCloser, mac string, p Pace, cancel context.CancelCauseFunc) *watched {
	w := &watched{ReadCloser: body, mac: mac, pace: p, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(p.Window, w.check)
	return w
}

// check cancels a response that delivered too little since the last check.
func (w *watched) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case w.got < w.pace.least():
		w.slow = true
		w.cancel(errSlow)
	default:
		w.got = 0
		w.timer.Reset(w.pace.Window)
	}
}

// Read counts bytes. A response that was canceled for its rate is not resumed.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got += int64(n)
	switch {
	case err == nil || errors.Is(err, io.EOF):
	case w.slow:
		err = &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("Mac %s is slow", w.mac), Err: errSlow}
	default:
		err = &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("the connection to Mac %s was lost", w.mac), Err: err}
	}
	return n, err
}

// Close stops the checks.
func (w *watched) Close() error {
	w.mu.Lock()
	w.over = true
	w.timer.Stop()
	w.mu.Unlock()
	w.cancel(nil)
	return w.ReadCloser.Close()
}
