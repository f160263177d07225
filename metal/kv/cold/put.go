package cold

import (
	"bytes"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
)

// verdict is what a Put can do now.
type verdict int

const (
	fits verdict = iota
	held
	wait
	drop
)

// Put implements kv.Tier: it copies the payload into the queue. It waits at
// most PutWait for room there and for a grant.
func (t *Tier) Put(key kv.Key, payload []byte) kv.Saved {
	if _, ok := t.Size(key); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.counts.Known++
		t.touch(key)
		return kv.Held
	}
	var late <-chan time.Time
	for {
		t.mu.Lock()
		v, site := t.judge(key, int64(len(payload)))
		switch v {
		case fits:
			t.enqueue(key, payload)
			t.mu.Unlock()
			return kv.Queued
		case held:
			t.counts.Known++
			t.mu.Unlock()
			return kv.Held
		case drop:
			t.lose(site)
			t.mu.Unlock()
			return kv.Dropped
		}
		changed := t.changed
		t.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(t.opt.PutWait)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-changed:
		case <-late:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.lose(site)
			t.starved = t.starved || site == AtGrant
			return kv.Dropped
		}
	}
}

// Offer implements kv.Tier: fill writes into the queue if there is room and
// enough of the grant now. The writer checks later whether the disk has the
// block already.
func (t *Tier) Offer(key kv.Key, n int64, fill func([]byte) error) (kv.Saved, error) {
	t.mu.Lock()
	v, site := t.judge(key, n)
	switch v {
	case held:
		t.counts.Known++
		t.mu.Unlock()
		return kv.Held, nil
	case wait, drop:
		t.lose(site)
		t.mu.Unlock()
		return kv.Dropped, nil
	}
	it := t.book(key, n)
	t.mu.Unlock()
	it.unseen, it.payload = true, make([]byte, n)
	err := fill(it.payload)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		t.forget(it, n)
		t.counts.Accepted--
		t.broadcast()
		return kv.Dropped, err
	case t.closing:
		t.forget(it, n)
		t.counts.Dropped[AtShutdown]++
		return kv.Dropped, nil
	case t.past(it):
		t.forget(it, n)
		t.counts.Dropped[AtFence]++
		return kv.Dropped, nil
	case t.pending[key] != nil: // another goroutine put it meanwhile
		t.forget(it, n)
		t.counts.Accepted--
		t.counts.Known++
		t.broadcast()
		return kv.Held, nil
	}
	t.line(it)
	return kv.Queued, nil
}

// lose counts a block that is dropped on arrival. The caller holds the lock.
func (t *Tier) lose(site Site) {
	t.counts.Accepted++
	t.counts.Dropped[site]++
}

// judge decides what can be done with a block now, and where it would be
// dropped. The caller holds the lock.
func (t *Tier) judge(key kv.Key, payload int64) (verdict, Site) {
	takes := Takes(FileBytes(payload))
	switch {
	case t.pending[key] != nil:
		return held, 0
	case t.closing:
		return drop, AtShutdown
	case t.lease.Epoch == "":
		return drop, AtDetached
	case payload > t.opt.QueueBytes || payload > MaxPayloadBytes:
		return drop, AtSize
	case t.lease.GrantedBytes-t.spent-t.owed < takes:
		t.missed = max(t.missed, takes)
		t.tell()
		if t.lease.Final || t.starved {
			return drop, AtGrant
		}
		return wait, AtGrant
	case t.counts.QueuedBytes+payload > t.opt.QueueBytes:
		return wait, AtQueue
	}
	return fits, 0
}

// enqueue copies a block into the queue. The caller holds the lock.
func (t *Tier) enqueue(key kv.Key, payload []byte) {
	it := t.book(key, int64(len(payload)))
	it.payload = bytes.Clone(payload)
	t.line(it)
}

// book reserves n bytes of the queue and of the grant. The caller holds the
// lock.
func (t *Tier) book(key kv.Key, n int64) *item {
	it := &item{key: key, takes: Takes(FileBytes(n)), lease: t.lease, epoch: t.epoch}
	t.owed += it.takes
	t.counts.Accepted++
	t.counts.Queued++
	t.counts.QueuedBytes += n
	return it
}

// past reports whether the epoch of a block has ended or the block is
// distrusted. The caller holds the lock.
func (t *Tier) past(it *item) bool {
	return it.lease.Epoch != t.lease.Epoch || it.lease.Dir != t.lease.Dir || it.epoch != t.epoch
}

// line queues a reserved block for the writer. The caller holds the lock.
func (t *Tier) line(it *item) {
	t.queue = append(t.queue, it)
	t.pending[it.key] = it
	t.counts.CopiedBytes += int64(len(it.payload))
	t.notify()
}
