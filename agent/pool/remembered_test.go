package pool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// What a replica's engines counted is one sum over all of them, and what is held
// is only what those that run hold.
func TestWhatIsRememberedIsOneSumForEachReplica(t *testing.T) {
	told := func(bytes, queried, restored int64) *engine {
		return &engine{status: &wire.Status{PrefixCache: &wire.PrefixCache{Bytes: bytes, BudgetBytes: 10 * bytes, QueriedTokens: queried, RestoredTokens: restored}}}
	}
	gone := told(1000, 4, 2)
	gone.state = Exited
	p := &replicas{registry: newRegistry(memory.NewLedger(), func() {})}
	for _, e := range []*entry{
		{key: memory.Key{UID: "b", Epoch: 1}, remembered: Remembered{QueriedTokens: 100, RestoredTokens: 50}, engine: told(7, 30, 10)},
		{key: memory.Key{UID: "b", Epoch: 2}, engine: told(5, 3, 1)},
		{key: memory.Key{UID: "a", Epoch: 1}, remembered: Remembered{QueriedTokens: 9, RestoredTokens: 8}},
		{key: memory.Key{UID: "c", Epoch: 1}, engine: &engine{status: &wire.Status{}}},
		{key: memory.Key{UID: "d", Epoch: 1}, engine: gone},
	} {
		p.entries[e.key] = e
	}
	want := []Remembered{
		{UID: "a", QueriedTokens: 9, RestoredTokens: 8},
		{UID: "b", Held: true, Bytes: 12, BudgetBytes: 120, QueriedTokens: 133, RestoredTokens: 61},
		{UID: "c"},
		{UID: "d", QueriedTokens: 4, RestoredTokens: 2},
	}
	if d := cmp.Diff(want, p.remembered()); d != "" {
		t.Error(d)
	}
}

// An engine that is unloaded leaves its counters, but not its bytes.
func TestCountersOfAPrefixCacheOutliveTheirEngine(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, PrefixCacheBytes: gib}, onDemand(0)))
		s.after(time.Minute)
		for round := range int64(2) {
			s.used("a")
			s.after(5 * time.Second)
			counted := Remembered{UID: "a", QueriedTokens: (round + 1) * enginetest.QueriedTokens, RestoredTokens: (round + 1) * enginetest.RestoredTokens}
			loaded := counted
			loaded.Held, loaded.Bytes, loaded.BudgetBytes = true, gib, gib
			if d := cmp.Diff([]Remembered{loaded}, s.Snapshot().Remembered); d != "" {
				t.Errorf("round %d, loaded: %s", round, d)
			}
			s.pressure.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimIdle)
			s.after(10 * time.Second)
			if d := cmp.Diff([]Remembered{counted}, s.Snapshot().Remembered); d != "" {
				t.Errorf("round %d, gone: %s", round, d)
			}
		}
	})
}
