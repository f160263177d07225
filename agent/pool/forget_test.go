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

// An engine that does not answer is not counted as zero, and delays no other.
func TestClearAsksEachEngineAndReportsFreedBytes(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(
			s.model("a", enginetest.Script{HoldBytes: gib, PrefixCacheBytes: gib}),
			s.model("b", enginetest.Script{HoldBytes: gib, IgnoreTrim: true}),
		)
		s.after(time.Minute)
		bytes := int64(gib)
		want := []v1alpha1.EngineCleared{{ReplicaUID: "a", Bytes: &bytes}, {ReplicaUID: "b"}}
		if d := cmp.Diff(want, s.Forget(s.ctx)); d != "" {
			t.Error(d)
		}
	})
}

func TestClearSkipsAStoppingEngine(t *testing.T) {
	p := &pressure{registry: newRegistry(memory.NewLedger(), func() {})}
	for uid, e := range map[string]*entry{
		"loading": {engine: &engine{state: Loading}}, "gone": {engine: &engine{state: Exited}}, "none": {},
		"draining": {engine: &engine{state: Draining}}, "stopping": {engine: &engine{state: Stopping}}, "about to begin": {engine: &engine{state: Starting}},
	} {
		p.entries[memory.Key{UID: uid, Epoch: 1}] = e
	}
	if all := p.clearCaches(t.Context()); len(all) != 0 {
		t.Errorf("%+v were asked", all)
	}
}

func TestActivityIsAbsentUntilReported(t *testing.T) {
	if a := activityOf(nil); a != nil {
		t.Errorf("%+v", a)
	}
	got := activityOf(&wire.Status{
		Activity: &wire.Activity{Running: 2, Queued: 3, PromptTokensTotal: 4, GeneratedTokensTotal: 5},
		Memory:   &wire.Memory{PrefixCacheBytes: 6},
	})
	want := &v1alpha1.EngineActivity{Running: 2, Queued: 3, PromptTokensTotal: 4, GeneratedTokensTotal: 5, CacheBytes: 6}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
