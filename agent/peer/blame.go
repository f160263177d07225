package peer

import (
	"errors"
	"fmt"
	"net/http"
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

// slowError returns the error for a copy from a Mac that is slow.
func slowError(mac string) error {
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
	failed uint32
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
	a.failed++
	if longest := map[string]time.Duration{reasonSlow: maxSlow, reasonLied: maxLied}[reason]; longest > 0 {
		avoid = min(avoid<<min(a.times, 8), longest)
		a.times++
	}
	if until := now.Add(avoid); until.After(a.until) {
		a.until, a.reason = until, reason
	}
	c.avoided[mac] = a
}

// failures returns how often a Mac failed.
func (c *Client) failures(mac string) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.avoided[mac].failed
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
