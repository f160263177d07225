// Package health judges replicas by how their requests end, and bounds how many
// requests are tried again.
//
// It owns two decisions: whether a model's requests may be tried again (Budget),
// and which of its replicas are left alone for a while (Outliers). It is pure:
// whoever uses it says what time it is. It refuses to leave more than half of a
// model's replicas alone, and never the only one.
//
// Start reading at Budget.Retry and Outliers.Ejected.
package health

import "time"

const (
	// window is what a budget looks back on, in slots.
	window = 10 * time.Second
	slots  = 10
	// retryShare of the requests of a window may be tried again, and retryLeast
	// whatever their number: a Mac that dies takes all that ran there.
	retryShare = 0.2
	retryLeast = 100
)

// Budget bounds the tries of one model's requests beyond their first ones, so
// that a fleet that fails is not asked several times over. The zero value is
// ready for use, by one goroutine at a time.
type Budget struct {
	requests, retries [slots]int
	at                int64 // the slot of now, since 1970
}

// forward forgets what lies behind the window.
func (b *Budget) forward(now time.Time) (slot int) {
	at := now.UnixNano() / int64(window/slots)
	if at < b.at {
		at = b.at // a clock that was set back
	}
	for n := min(at-b.at, slots); n > 0; n-- {
		s := (at - n + 1) % slots
		b.requests[s], b.retries[s] = 0, 0
	}
	b.at = at
	return int(at % slots)
}

// Request counts a first try.
func (b *Budget) Request(now time.Time) { b.requests[b.forward(now)]++ }

// Retry counts another try, or says that there were too many.
func (b *Budget) Retry(now time.Time) bool {
	slot := b.forward(now)
	requests, retries := 0, 0
	for i := range slots {
		requests += b.requests[i]
		retries += b.retries[i]
	}
	if retries >= max(retryLeast, int(retryShare*float64(requests))) {
		return false
	}
	b.retries[slot]++
	return true
}
