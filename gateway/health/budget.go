// Package health judges replicas by the outcome of their requests, and bounds how many
// requests are retried.
//
// It owns four decisions: whether a model's request may be retried (Budget), when one client
// may cause more work (Debts), which replicas receive no requests for a while (Outliers), and
// which receive none of one client (Rejections). It is pure; the caller passes the time. Outliers never eject more than half of a
// model's replicas, nor the only one.
//
// Start reading at Budget.Retry, Outliers.Standings and Rejections.Ended.
package health

import "time"

const (
	// window is the period that a budget covers, divided into slots.
	window = 10 * time.Second
	slots  = 10
	// retryShare is the share of a window's requests that may be retried, and retryLeast a
	// minimum regardless of their number: a Mac that dies fails everything that ran there.
	retryShare = 0.2
	retryLeast = 100
)

// Budget limits the retries of a tenant's requests for one model, so that a failing fleet does not
// receive a multiple of its load. The zero value is ready for use. It is not safe for
// concurrent use.
type Budget struct {
	requests, retries [slots]int
	began             time.Time
	at                int64 // the current slot, counted since began
}

// forward clears the slots that have left the window.
func (b *Budget) forward(now time.Time) (slot int) {
	const slotTime = window / slots
	if b.began.IsZero() {
		b.began = now
	}
	at := int64(now.Sub(b.began) / slotTime)
	if at < b.at { // a clock without a monotonic reading was set back
		at, b.began = b.at, now.Add(-time.Duration(b.at)*slotTime)
	}
	for n := min(at-b.at, slots); n > 0; n-- {
		s := (at - n + 1) % slots
		b.requests[s], b.retries[s] = 0, 0
	}
	b.at = at
	return int(at % slots)
}

// Request counts a first attempt.
func (b *Budget) Request(now time.Time) { b.requests[b.forward(now)]++ }

// Retry counts another attempt, or returns false if the budget is used up.
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

// Idle reports whether nothing that it counted is in the window any more.
func (b *Budget) Idle(now time.Time) bool {
	b.forward(now)
	return b.requests == [slots]int{} && b.retries == [slots]int{}
}
