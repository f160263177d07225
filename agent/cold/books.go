package cold

import (
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// account is what one engine was granted in its epoch.
type account struct {
	namespace blocks.Namespace
	// model is the account's model, and most the limit of its blocks in bytes;
	// nil: no limit of its own.
	model string
	most  func() int64
	// epoch that is open; empty while the disk refuses to open one.
	epoch string
	// granted is the number of bytes granted in this epoch, and persisted how
	// many of them are known to be on the disk: the rest may be written at any
	// moment.
	granted, persisted int64
	// wanted is how many more bytes the engine would use; fewer than least are of
	// no use.
	wanted, least int64
	// final: no more can be granted at present.
	final bool
	// ending: the engine is gone, and its folder could not be moved away yet.
	ending bool
	// counters of the engine, as of its last report.
	counters blocks.Counters
}

// charge is how many bytes the account may still write.
func (a *account) charge() int64 { return max(0, a.granted-a.persisted) }

// books record what is on the disk, what is granted, and the limits. They decide
// and have no side effects.
type books struct {
	budget blocks.Budget
	// files is the maximum number of files.
	files int
	// origins are the origins of the namespaces; the owner maintains them.
	origins map[blocks.Namespace]kv.Origin
	// lastUse of any block of a holder.
	lastUse  map[holder]time.Time
	index    *blocks.Index
	room     blocks.Room
	accounts map[*account]chan struct{}
	// past are the counters of engines that have ended.
	past blocks.Counters

	evictions, evictedBytes, unlinkFailures int64
	problem                                 string
}

func newBooks(b blocks.Budget, files int, origins map[blocks.Namespace]kv.Origin) *books {
	return &books{budget: b, files: files, origins: origins, lastUse: map[holder]time.Time{}, index: blocks.NewIndex(), accounts: map[*account]chan struct{}{}}
}

// limit of all bytes on the disk now.
func (b *books) limit() int64 { return b.room.Limit(b.budget) }

// charged is how many bytes all engines may still write.
func (b *books) charged() int64 {
	var sum int64
	for a := range b.accounts {
		sum += a.charge()
	}
	return sum
}

// chargedIn is how many bytes the engines of a namespace may still write.
func (b *books) chargedIn(n blocks.Namespace) int64 {
	var sum int64
	for a := range b.accounts {
		if a.namespace == n {
			sum += a.charge()
		}
	}
	return sum
}

// ending reports whether an engine of a namespace is gone and may still write.
func (b *books) ending(n blocks.Namespace) bool {
	for a := range b.accounts {
		if a.namespace == n && a.ending && a.charge() > 0 {
			return true
		}
	}
	return false
}

// backlog is by how many bytes the limit is exceeded, which happens when it
// falls: blocks are evicted gradually, and nothing is granted before.
func (b *books) backlog() int64 { return max(0, b.index.Total()+b.charged()-b.limit()) }

// wanted is how many bytes an account is granted at most at once: its request,
// within a fair share of the limit, but enough for one block if that fits at all.
func (b *books) wanted(a *account) int64 {
	if a.ending || a.epoch == "" || a.wanted == 0 {
		return 0
	}
	limit, left := min(b.limit(), int64(b.files)*smallest), a.wanted
	if s, bounded := b.share(a); bounded {
		limit, left = min(limit, s.most), min(left, s.most-s.charged)
	}
	fair := limit/int64(4*max(1, len(b.accounts))) - a.charge()
	return max(0, min(left, max(fair, a.least)))
}

// target is how many bytes of files may stay so that an account's request fits.
func (b *books) target(a *account) int64 { return b.limit() - b.charged() - b.wanted(a) }

// share is a model's share of the disk: at most most bytes, of which blocks use
// taken and its engines may still write charged.
type share struct{ most, taken, charged int64 }

// share returns the share of an account's model; bounded is false if only the
// budget limits it.
func (b *books) share(a *account) (s share, bounded bool) {
	for o := range b.accounts {
		switch {
		case o.model != a.model:
		case o.most == nil:
			return share{}, false
		default:
			s.most = max(s.most, o.most())
			s.charged += o.charge()
		}
	}
	for n, o := range b.origins {
		if o.Model == a.model {
			s.taken += b.index.Sum(n).Bytes
		}
	}
	return s, true
}

// ofModel returns the blocks of an account's model to remove for its request or
// because they exceed the model's limit, fairly for its tenants; at most files of
// them.
func (b *books) ofModel(a *account, files int, now time.Time) (out []blocks.Entry) {
	s, bounded := b.share(a)
	if !bounded {
		return nil
	}
	wanted := b.wanted(a)
	if wanted < a.least { // all removable blocks would not be enough
		wanted = 0
	}
	over := s.taken + s.charged + wanted - s.most
	may := b.fairly(s.taken-over, func(n blocks.Namespace) bool { return b.origins[n].Model == a.model }, now)
	b.index.Each(func(e blocks.Entry) bool {
		if over <= 0 || len(out) >= files {
			return false
		}
		if e.Foreign == "" && may(e) {
			over -= e.Bytes
			out = append(out, e)
		}
		return true
	})
	return out
}

// grant grants an account the bytes that fit.
func (b *books) grant(a *account) {
	wanted := b.wanted(a)
	free := b.limit() - b.charged() // were there no files
	room := free - b.index.Total()
	if s, bounded := b.share(a); bounded {
		free, room = min(free, s.most-s.charged), min(room, s.most-s.charged-s.taken)
	}
	free, room = min(free, b.fileRoom(0)), min(room, b.fileRoom(b.index.Files()))
	give := min(wanted, room)
	if give < max(1, a.least) {
		// Final if removing files would not help.
		a.final = wanted > 0 && free < max(1, a.least)
		return
	}
	a.granted += give
	a.wanted -= give
	a.final = false
}

// counted records an engine's counters, and reports whether the disk was full
// since the last time.
func (b *books) counted(a *account, c blocks.Counters) bool {
	full := c.FullDisk > a.counters.FullDisk
	a.counters = c
	return full
}

// close removes an account. Blocks that the engine had queued at its last report
// are lost.
func (b *books) close(a *account) {
	c := a.counters
	c.Dropped[blocks.AtShutdown] += c.Queued
	c.Queued, c.QueuedBytes = 0, 0
	b.past = sum(b.past, c)
	delete(b.accounts, a)
}

// total adds the counters of all engines, including those that have ended.
func (b *books) total() blocks.Counters {
	c := b.past
	for a := range b.accounts {
		c = sum(c, a.counters)
	}
	return c
}

// maxCount bounds the sums of counters: an engine that was taken over reports what it likes, with each lease again.
const maxCount = 1 << 60

// sum adds counters.
func sum(a, b blocks.Counters) blocks.Counters {
	add := func(to *int64, n int64) { *to = min(*to+n, maxCount) }
	for s, n := range b.Dropped {
		add(&a.Dropped[s], n)
	}
	for _, c := range []struct {
		to *int64
		n  int64
	}{
		{&a.Accepted, b.Accepted}, {&a.Queued, b.Queued}, {&a.QueuedBytes, b.QueuedBytes}, {&a.Persisted, b.Persisted},
		{&a.PersistedBytes, b.PersistedBytes}, {&a.PayloadBytes, b.PayloadBytes}, {&a.Failed, b.Failed}, {&a.FullDisk, b.FullDisk},
		{&a.WrittenBytes, b.WrittenBytes}, {&a.CopiedBytes, b.CopiedBytes}, {&a.Known, b.Known}, {&a.Read, b.Read},
		{&a.Pending, b.Pending}, {&a.Missed, b.Missed}, {&a.Damaged, b.Damaged},
	} {
		add(c.to, c.n)
	}
	return a
}
