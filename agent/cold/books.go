package cold

import (
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// account is what one engine was granted in its epoch.
type account struct {
	namespace blocks.Namespace
	// epoch that is open; empty while the disk refuses to open one.
	epoch string
	// granted bytes of this epoch, all in all, of which so many are known to be persisted: the
	// rest may lie on the disk at any moment.
	granted, persisted int64
	// wanted is how much more the engine would use; less than least is of no use.
	wanted, least int64
	// final: there is no more at present.
	final bool
	// ending: the engine is gone, and its folder could not be moved away yet.
	ending bool
	// counters of the engine, as of its last report.
	counters blocks.Counters
}

// charge is what an account may still put on the disk without being asked.
func (a *account) charge() int64 { return max(0, a.granted-a.persisted) }

// books are what is on the disk, what was promised of it, and what may be. They
// decide and do nothing.
type books struct {
	budget   blocks.Budget
	index    *blocks.Index
	room     blocks.Room
	accounts map[*account]chan struct{}
	// past counts the blocks of engines that are gone.
	past blocks.Counters

	evictions, evictedBytes, unlinkFailures int64
	problem                                 string
}

func newBooks(b blocks.Budget) *books {
	return &books{budget: b, index: blocks.NewIndex(), accounts: map[*account]chan struct{}{}}
}

// limit of all bytes on the disk, at this moment.
func (b *books) limit() int64 { return b.room.Limit(b.budget) }

// charged is what all engines may still write.
func (b *books) charged() int64 {
	var sum int64
	for a := range b.accounts {
		sum += a.charge()
	}
	return sum
}

// backlog is by how much the limit is exceeded, which happens when it falls: it
// is removed bit by bit, and nothing is granted before.
func (b *books) backlog() int64 { return max(0, b.index.Total()+b.charged()-b.limit()) }

// wish is how much an account is given at once at most: what it wants, within a
// fair part of the limit, but enough for one block where that fits at all.
func (b *books) wish(a *account) int64 {
	if a.ending || a.epoch == "" || a.wanted == 0 {
		return 0
	}
	fair := b.limit()/int64(4*max(1, len(b.accounts))) - a.charge()
	return max(0, min(a.wanted, max(fair, a.least)))
}

// target is how many bytes of files may stay for an account's wish to be
// granted.
func (b *books) target(a *account) int64 { return b.limit() - b.charged() - b.wish(a) }

// grant gives an account what there is room for.
func (b *books) grant(a *account) {
	wish := b.wish(a)
	room := b.limit() - b.charged() - b.index.Total()
	give := min(wish, room)
	if give < max(1, a.least) {
		// Final where removing files would not help.
		a.final = wish > 0 && b.limit()-b.charged() < max(1, a.least)
		return
	}
	a.granted += give
	a.wanted -= give
	a.final = false
}

// counted notes an engine's counters, and says whether the disk was full since
// the last time.
func (b *books) counted(a *account, c blocks.Counters) bool {
	full := c.FullDisk > a.counters.FullDisk
	a.counters = c
	return full
}

// close forgets an account. What the engine had queued when it was last heard
// of went with it.
func (b *books) close(a *account) {
	c := a.counters
	c.Dropped[blocks.AtShutdown] += c.Queued
	c.Queued, c.QueuedBytes = 0, 0
	b.past = sum(b.past, c)
	delete(b.accounts, a)
}

// total counts the blocks of all engines, those that are gone included.
func (b *books) total() blocks.Counters {
	c := b.past
	for a := range b.accounts {
		c = sum(c, a.counters)
	}
	return c
}

// sum adds counters.
func sum(a, b blocks.Counters) blocks.Counters {
	for s, n := range b.Dropped {
		a.Dropped[s] += n
	}
	a.Accepted += b.Accepted
	a.Queued += b.Queued
	a.QueuedBytes += b.QueuedBytes
	a.Persisted += b.Persisted
	a.PersistedBytes += b.PersistedBytes
	a.PayloadBytes += b.PayloadBytes
	a.Failed += b.Failed
	a.FullDisk += b.FullDisk
	a.WrittenBytes += b.WrittenBytes
	a.CopiedBytes += b.CopiedBytes
	a.Known += b.Known
	a.Read += b.Read
	a.Pending += b.Pending
	a.Missed += b.Missed
	a.Damaged += b.Damaged
	return a
}
