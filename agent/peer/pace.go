package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Pace sets the timeouts and the minimum rate of copies.
type Pace struct {
	// Window is the time in which Floor bytes per second must arrive, or must be
	// downloaded by a peer that is waited for. 0 means 30 s and 1 MiB/s.
	Window time.Duration
	Floor  int64
	// Look is how often a peer that downloads is asked again; 0 means 2 s.
	Look time.Duration
	// Begin is how long a peer may take to start its download: its assignment may
	// arrive later than ours. 0 means 10 s.
	Begin time.Duration
	// A copy of a record may take Grace, and the time in which its bytes pass at Fair
	// bytes per second: a source is probably not slower. Time in which this Mac does not
	// read does not count. Peers that download are waited for as long, those that are busy
	// at ten times the rate, but at most for Most. 0 means a minute, 10 MB/s and half an hour.
	Grace time.Duration
	Fair  int64
	Most  time.Duration
}

func (p Pace) withDefaults() Pace {
	if p.Window <= 0 {
		p.Window = 30 * time.Second
	}
	if p.Floor <= 0 {
		p.Floor = 1 << 20
	}
	if p.Look <= 0 {
		p.Look = 2 * time.Second
	}
	if p.Begin <= 0 {
		p.Begin = 10 * time.Second
	}
	if p.Grace <= 0 {
		p.Grace = time.Minute
	}
	if p.Fair <= 0 {
		p.Fair = 10_000_000
	}
	if p.Most <= 0 {
		p.Most = 30 * time.Minute
	}
	return p
}

// allows is how long a peer may take for some bytes.
func (p Pace) allows(bytes int64) time.Duration {
	return p.Grace + time.Duration(float64(bytes)/float64(p.Fair)*float64(time.Second))
}

// frees is how long peers that are busy are waited for: by default one copies to two Macs, at ten times
// the Fair rate each, and has a free slot then. No byte proves that it is busy, or has the weights.
func (p Pace) frees(bytes int64) time.Duration { return p.allows(bytes / 10) }

// least is how many bytes must arrive in a window.
func (p Pace) least() int64 { return int64(float64(p.Floor) * p.Window.Seconds()) }

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
	sent   *progress
	ended  func() error // of its context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	got   int64 // in this window; guarded by mu
	slow  bool  // guarded by mu
	over  bool  // guarded by mu
	timer *time.Timer
}

func newWatched(ctx context.Context, body io.ReadCloser, mac string, p Pace, sent *progress, cancel context.CancelCauseFunc) *watched {
	w := &watched{ReadCloser: body, mac: mac, pace: p, sent: sent, ended: ctx.Err, cancel: cancel}
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
	case w.got < w.pace.least() || w.sent.late(time.Now()):
		w.slow = true
		w.cancel(errSlow)
	default:
		w.got = 0
		w.timer.Reset(w.pace.Window)
	}
}

// Read counts bytes and time. A response that was canceled for its rate is not resumed.
func (w *watched) Read(p []byte) (int, error) {
	w.sent.run(time.Now())
	n, err := w.ReadCloser.Read(p)
	w.sent.pause(time.Now(), n)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got += int64(n)
	switch {
	case err == nil && w.sent.late(time.Now()), w.slow && !errors.Is(err, io.EOF):
		err = slowError(w.mac)
	case err == nil || errors.Is(err, io.EOF):
	default:
		err = &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: fmt.Sprintf("the connection to Mac %s was lost", w.mac), Err: err}
	}
	return n, err
}

// Close stops the checks. The time after a response that this Mac ended does not count: another
// download may have its slot.
func (w *watched) Close() error {
	w.mu.Lock()
	w.over = true
	w.timer.Stop()
	w.mu.Unlock()
	if w.ended() == nil {
		w.sent.end(time.Now())
	} else {
		w.sent.pause(time.Now(), 0)
	}
	w.cancel(nil)
	return w.ReadCloser.Close()
}
