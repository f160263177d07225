package neighbour

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

// Why a neighbour gave no copy.
const (
	reasonLied    = "lied"    // what it sent had another digest, or another length
	reasonSlow    = "slow"    // less than the pace
	reasonRefused = "refused" // it has not, or gives not, what it was asked for
	reasonGone    = "gone"    // it cannot be reached, or its answer was cut
)

// Reasons are all of them.
func Reasons() []string { return []string{reasonLied, reasonSlow, reasonRefused, reasonGone} }

var errSlow = errors.New("the copy is slower than the minimum rate")

// verdict says why a copy failed and for how long its Mac is not asked.
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

// Failed notes why a neighbour gave no copy.
func (a *Asker) Failed(mac string, err error) {
	reason, avoid := verdict(err)
	if a.Blamed != nil {
		a.Blamed(reason)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if until := time.Now().Add(avoid); until.After(a.avoided[mac]) {
		a.avoided[mac] = until
	}
}

// avoids says whether a Mac is not to be asked now.
func (a *Asker) avoids(mac string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Before(a.avoided[mac])
}

// watched is an answer that has to keep the pace.
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
	w.timer = time.AfterFunc(p.Window, w.judge)
	return w
}

// judge ends an answer that brought too little since the last time.
func (w *watched) judge() {
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

// Read counts. What ends because it was slow is no cut that is resumed.
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

// Close ends the watch.
func (w *watched) Close() error {
	w.mu.Lock()
	w.over = true
	w.timer.Stop()
	w.mu.Unlock()
	w.cancel(nil)
	return w.ReadCloser.Close()
}
