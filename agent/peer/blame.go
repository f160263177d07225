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

// slowly returns the error for a copy from a Mac that is slow.
func slowly(mac string) error {
	return &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("Mac %s is slow", mac), Err: errSlow}
}

// A slow Mac and one that sent wrong bytes are avoided for twice as long each time, up
// to these times. After a day without a failure its earlier ones are forgotten.
const (
	maxSlow   = 24 * time.Hour
	maxLied   = 7 * 24 * time.Hour
	forgotten = 24 * time.Hour
)

// verdict returns why a copy failed and for how long its Mac is avoided the first
// time.
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

// avoided is a Mac that failed.
type avoided struct {
	reason string
	until  time.Time
	times  int // how often it was slow or sent wrong bytes
}

// Failed records why a peer gave no copy.
func (c *Client) Failed(mac string, err error) {
	reason, avoid := verdict(err)
	if c.Blamed != nil {
		c.Blamed(reason)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, a := time.Now(), c.avoided[mac]
	if now.After(a.until.Add(forgotten)) {
		a = avoided{}
	}
	if longest := map[string]time.Duration{reasonSlow: maxSlow, reasonLied: maxLied}[reason]; longest > 0 {
		avoid = min(avoid<<min(a.times, 8), longest)
		a.times++
	}
	if until := now.Add(avoid); until.After(a.until) {
		a.until, a.reason = until, reason
	}
	c.avoided[mac] = a
}

// avoids reports whether a Mac must not be asked now.
func (c *Client) avoids(mac string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.avoided[mac].until)
}

// wasSlow reports whether a Mac was slow when it last failed, and that is not forgotten.
func (c *Client) wasSlow(mac string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.avoided[mac]
	return a.reason == reasonSlow && now.Before(a.until.Add(forgotten))
}

// maxPause is how much of the time between two requests counts.
const maxPause = 5 * time.Second

// progress is how much of a record a peer has sent, and how long this Mac waited for
// it. A nil one counts nothing and is never late.
type progress struct {
	pace Pace
	// most is what the record has: more is of responses that were broken off.
	most int64

	mu    sync.Mutex
	got   int64
	spent time.Duration
	since time.Time // while this Mac waits; else zero
	ended time.Time // of the last response; else zero
}

// run begins to count the time, with a part of that since the last response: each
// could be as short as the peer likes.
func (p *progress) run(now time.Time) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended.IsZero() {
		p.spent += min(now.Sub(p.ended), maxPause)
		p.ended = time.Time{}
	}
	if p.since.IsZero() {
		p.since = now
	}
}

// pause stops counting the time, after n bytes.
func (p *progress) pause(now time.Time, n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.since.IsZero() {
		p.spent += now.Sub(p.since)
		p.since = time.Time{}
	}
	p.got += int64(n)
}

// end ends a response.
func (p *progress) end(now time.Time) {
	if p == nil {
		return
	}
	p.pause(now, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = now
}

// late reports whether the peer took longer than the pace allows.
func (p *progress) late(now time.Time) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	spent := p.spent
	if !p.since.IsZero() {
		spent += now.Sub(p.since)
	}
	return spent > p.pace.allows(min(p.got, p.most))
}

// watched is a response body that must keep the pace.
type watched struct {
	io.ReadCloser
	mac    string
	pace   Pace
	so     *progress
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	got   int64 // in this window; guarded by mu
	slow  bool  // guarded by mu
	over  bool  // guarded by mu
	timer *time.Timer
}

func newWatched(body io.ReadCloser, mac string, p Pace, so *progress, cancel context.CancelCauseFunc) *watched {
	w := &watched{ReadCloser: body, mac: mac, pace: p, so: so, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(p.Window, w.check)
	return w
}

// check cancels a response that delivered too little since the last check, or since the
// peer's first one.
func (w *watched) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.over:
	case w.got < w.pace.least() || w.so.late(time.Now()):
		w.slow = true
		w.cancel(errSlow)
	default:
		w.got = 0
		w.timer.Reset(w.pace.Window)
	}
}

// Read counts bytes and time. A response that was canceled for its rate is not resumed.
func (w *watched) Read(p []byte) (int, error) {
	w.so.run(time.Now())
	n, err := w.ReadCloser.Read(p)
	w.so.pause(time.Now(), n)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got += int64(n)
	switch {
	case err == nil && w.so.late(time.Now()), w.slow && !errors.Is(err, io.EOF):
		err = slowly(w.mac)
	case err == nil || errors.Is(err, io.EOF):
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
	w.so.end(time.Now())
	w.cancel(nil)
	return w.ReadCloser.Close()
}
