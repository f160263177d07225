// Package unread counts the memory of answers that clients have not read yet: vectors,
// stored responses, and log-probabilities that are kept until an answer ends.
//
// It owns the share of each tenant: a tenant may use as much as stays free, so that one
// alone uses half of the memory. If a tenant needs memory that another has, and would use
// less than half as much as that one, the oldest answer of the tenant with the most memory
// is ended. A tenant never ends its own answers: it waits for them. An answer that exceeds
// half of the memory is refused, and one that needs none waits for nothing.
//
// Start reading at Room.Hold.
package unread

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Grace is how long an answer is held at least before it gives way: a client that reads
// quickly has read it by then.
const Grace = 5 * time.Second

// ErrFull means that other answers use the memory, or that an answer needs more than there
// is.
var ErrFull = errors.New("answers that clients have not read use all available memory")

// Room is the memory of one Mac for unread answers.
type Room struct {
	// Max is its size in bytes.
	Max int64

	mu      sync.Mutex // guards the fields after it, and all owners and holds
	held    int64
	owners  map[string]*owner
	changed chan struct{} // closed when memory is released; nil if no one waits
}

// owner is a tenant with unread answers, oldest first.
type owner struct {
	bytes int64
	holds []*Hold
}

// Hold is the memory of one answer.
type Hold struct {
	room      *Room
	owner     string
	bytes     int64
	since     time.Time
	interrupt func()
	gone      bool
}

// Hold counts n bytes for a tenant until Release is called. interrupt is called, at most
// once and possibly before Hold has returned, if the answer has to give way to that of
// another tenant: it must end the answer soon. If there is no memory, Hold waits until ctx
// ends, and then returns ErrFull.
func (r *Room) Hold(ctx context.Context, tenant string, n int64, interrupt func()) (*Hold, error) {
	for {
		h, retry, changed := r.try(tenant, n, interrupt)
		if h != nil {
			return h, nil
		}
		if n > r.Most() {
			return nil, ErrFull
		}
		timer := time.NewTimer(retry)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ErrFull
		}
		timer.Stop()
	}
}

// Most is the size of the largest answer.
func (r *Room) Most() int64 { return r.Max / 2 }

// Set counts n bytes for the answer instead. It does not wait for more, because the answer
// itself may be the one that is in the way.
func (h *Hold) Set(n int64) error {
	r := h.room
	r.mu.Lock()
	defer r.mu.Unlock()
	more := n - h.bytes
	if h.gone {
		return ErrFull
	}
	if more > 0 {
		if free, _ := r.makeRoom(h.owner, more); !free {
			return ErrFull
		}
	}
	h.count(more)
	r.wake()
	return nil
}

// Release ends the hold; it may be called more than once.
func (h *Hold) Release() {
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.end()
}

// try holds n bytes, or returns when to try again: after a time, or when changed is closed.
func (r *Room) try(tenant string, n int64, interrupt func()) (h *Hold, retry time.Duration, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free, retry := r.makeRoom(tenant, n)
	if !free {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		return nil, retry, r.changed
	}
	if r.owners == nil {
		r.owners = map[string]*owner{}
	}
	o := r.owners[tenant]
	if o == nil {
		o = &owner{}
		r.owners[tenant] = o
	}
	h = &Hold{room: r, owner: tenant, since: time.Now(), interrupt: interrupt}
	o.holds = append(o.holds, h)
	h.count(n)
	return h, 0, nil
}

// makeRoom reports whether n more bytes are free for a tenant, after others gave way, and
// otherwise when the next one may. The lock is held.
func (r *Room) makeRoom(tenant string, n int64) (free bool, retry time.Duration) {
	if n > r.Most() {
		return false, Grace
	}
	for n > 0 && !r.fits(tenant, n) {
		victim := r.victim(tenant, n)
		if victim == nil {
			return false, Grace
		}
		if left := Grace - time.Since(victim.since); left > 0 {
			return false, left
		}
		victim.end()
		victim.interrupt()
	}
	return true, 0
}

// fits reports whether a tenant with n bytes more leaves as much free as it has. The lock is
// held.
func (r *Room) fits(tenant string, n int64) bool { return r.of(tenant)+n <= r.Max-r.held-n }

// of returns how much a tenant has. The lock is held.
func (r *Room) of(tenant string) int64 {
	if o := r.owners[tenant]; o != nil {
		return o.bytes
	}
	return 0
}

// victim returns the oldest answer of the tenant with the most memory; nil if that has no
// more than twice what the tenant that asks would have. The lock is held.
func (r *Room) victim(tenant string, n int64) *Hold {
	mine := r.of(tenant) + n
	var most *owner
	for name, o := range r.owners {
		if name != tenant && o.bytes > 2*mine && (most == nil || o.bytes > most.bytes) {
			most = o
		}
	}
	if most == nil {
		return nil
	}
	return most.holds[slices.IndexFunc(most.holds, func(h *Hold) bool { return h.bytes > 0 })]
}

// count adds to the memory of the answer. The lock is held.
func (h *Hold) count(n int64) {
	h.bytes += n
	h.room.owners[h.owner].bytes += n
	h.room.held += n
}

// end releases the memory. The lock is held.
func (h *Hold) end() {
	if h.gone {
		return
	}
	h.gone = true
	r, o := h.room, h.room.owners[h.owner]
	h.count(-h.bytes)
	o.holds = slices.DeleteFunc(o.holds, func(other *Hold) bool { return other == h })
	if len(o.holds) == 0 {
		delete(r.owners, h.owner)
	}
	r.wake()
}

// wake lets those that wait for memory try again. The lock is held.
func (r *Room) wake() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}
