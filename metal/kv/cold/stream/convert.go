package stream

import (
	"fmt"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

func toLease(l cold.Lease, answers int64) *wire.CacheLease {
	return &wire.CacheLease{Directory: l.Dir, Epoch: l.Epoch, GrantedBytes: l.GrantedBytes, Final: l.Final, Answers: answers}
}

func toReport(r cold.Report, sequence int64, last bool) *wire.CacheReport {
	m := &wire.CacheReport{
		Sequence: sequence, Epoch: r.Epoch, SpentBytes: r.SpentBytes, Touched: toKeys(r.Touched), Damaged: toKeys(r.Damaged),
		WantedBytes: r.WantedBytes, LeastBytes: r.LeastBytes, Counters: toCounters(r.Counters), Last: last,
	}
	for _, f := range r.Persisted {
		m.Persisted = append(m.Persisted, &wire.CacheFile{Key: f.Key[:], Bytes: f.Bytes})
	}
	return m
}

// maxKeys bounds the keys of a report, but for the damaged ones, of which there are at most
// cold.MaxDamaged. The agent looks at a file for each, while other engines wait for the cache. An engine
// reports a few hundred; one with more gets another lease.
const maxKeys = 1 << 14

// fromReport refuses keys that are none, and takes figures as far as they are possible.
func fromReport(m *wire.CacheReport) (cold.Report, error) {
	if n := len(m.GetPersisted()) + len(m.GetTouched()); n > maxKeys {
		return cold.Report{}, fmt.Errorf("a report of %d keys, want at most %d", n, maxKeys)
	}
	if n := len(m.GetDamaged()); n > cold.MaxDamaged {
		return cold.Report{}, fmt.Errorf("a report of %d damaged blocks, want at most %d", n, cold.MaxDamaged)
	}
	r := cold.Report{
		Epoch: m.GetEpoch(), SpentBytes: figure(m.GetSpentBytes()), WantedBytes: figure(m.GetWantedBytes()), LeastBytes: figure(m.GetLeastBytes()),
		Counters: fromCounters(m.GetCounters()),
	}
	for _, f := range m.GetPersisted() {
		key, err := fromKey(f.GetKey())
		if err != nil {
			return r, err
		}
		r.Persisted = append(r.Persisted, cold.File{Key: key, Bytes: figure(f.GetBytes())})
	}
	var err error
	if r.Touched, err = fromKeys(m.GetTouched()); err != nil {
		return r, err
	}
	r.Damaged, err = fromKeys(m.GetDamaged())
	return r, err
}

func toKeys(keys []kv.Key) (all [][]byte) {
	for _, k := range keys {
		all = append(all, k[:])
	}
	return all
}

func fromKeys(all [][]byte) (keys []kv.Key, err error) {
	for _, b := range all {
		k, err := fromKey(b)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

func fromKey(b []byte) (kv.Key, error) {
	if len(b) != len(kv.Key{}) {
		return kv.Key{}, fmt.Errorf("a key of %d bytes, want %d", len(b), len(kv.Key{}))
	}
	return kv.Key(b), nil
}

func toCounters(c cold.Counters) *wire.CacheCounters {
	m := &wire.CacheCounters{
		Accepted: c.Accepted, Queued: c.Queued, QueuedBytes: c.QueuedBytes, Persisted: c.Persisted, PersistedBytes: c.PersistedBytes,
		PayloadBytes: c.PayloadBytes, Dropped: map[string]int64{}, Failed: c.Failed, FullDisk: c.FullDisk, WrittenBytes: c.WrittenBytes,
		CopiedBytes: c.CopiedBytes, Known: c.Known, Read: c.Read, Pending: c.Pending, Missed: c.Missed, Damaged: c.Damaged,
	}
	for _, site := range cold.Sites() {
		if n := c.Dropped[site]; n > 0 {
			m.Dropped[site.String()] = n
		}
	}
	return m
}

// maxFigure bounds what an engine reports: sums of such figures do not overflow.
const maxFigure = 1 << 50

// figure is a figure of an engine as far as it is possible.
func figure(n int64) int64 { return min(max(0, n), maxFigure) }

func fromCounters(m *wire.CacheCounters) cold.Counters {
	c := cold.Counters{
		Accepted: figure(m.GetAccepted()), Queued: figure(m.GetQueued()), QueuedBytes: figure(m.GetQueuedBytes()), Persisted: figure(m.GetPersisted()), PersistedBytes: figure(m.GetPersistedBytes()),
		PayloadBytes: figure(m.GetPayloadBytes()), Failed: figure(m.GetFailed()), FullDisk: figure(m.GetFullDisk()), WrittenBytes: figure(m.GetWrittenBytes()),
		CopiedBytes: figure(m.GetCopiedBytes()), Known: figure(m.GetKnown()), Read: figure(m.GetRead()), Pending: figure(m.GetPending()), Missed: figure(m.GetMissed()), Damaged: figure(m.GetDamaged()),
	}
	for _, site := range cold.Sites() {
		c.Dropped[site] = figure(m.GetDropped()[site.String()])
	}
	return c
}
