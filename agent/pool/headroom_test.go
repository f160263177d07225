package pool

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/metal/wire"
)

// An engine that was taken over claims bytes and asks for the same ones. Both models fit.
func TestAnEngineAsksForNoBytesThatItClaims(t *testing.T) {
	play(t, func(s *stage) {
		idle := s.model("idle", enginetest.Script{HoldBytes: 22 * gib}, onDemand(0), of("other"))
		s.follow(idle)
		s.used("idle")
		s.follow(idle, s.model("taken over", enginetest.Script{HoldBytes: 2 * gib, Claims: 10 * gib}, reserves(30*gib)))
		s.after(time.Minute)
		s.wantReclaims()
		s.wantResident("idle taken over")
	})
}

func TestAnEngineAsksForWhatItsLimitLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		footprint int64
		memory    *wire.Memory
		loads     bool
		want      int64 // of a limit of 30 GiB, in GiB
	}{
		"that it does not hold":    {footprint: 10, memory: nil, loads: false, want: 20},
		"its pool is used first":   {footprint: 25, memory: &wire.Memory{PooledBytes: 10 * gib}, loads: false, want: 15},
		"half of it may be a pool": {footprint: 25, memory: &wire.Memory{PooledBytes: 25 * gib}, loads: false, want: 20},
		"a load returns no pool":   {footprint: 25, memory: &wire.Memory{PooledBytes: 10 * gib}, loads: true, want: 5},
		"what it accounts for":     {footprint: 2, memory: &wire.Memory{WeightsBytes: 20 * gib, KvInUseBytes: 4 * gib, PrefixCacheBytes: 4 * gib}, loads: false, want: 2},
		"what is active":           {footprint: 2, memory: &wire.Memory{ActiveBytes: 28 * gib}, loads: false, want: 2},
		"it claims all of it":      {footprint: 2, memory: &wire.Memory{WeightsBytes: 31 * gib}, loads: false, want: 0},
	} {
		g := &engine{state: Ready, footprint: tc.footprint * gib, status: &wire.Status{Memory: tc.memory, Guard: &wire.Guard{HeadroomBytes: 100 * gib}}}
		if g.config.LimitBytes = 30 * gib; tc.loads {
			g.state = Loading
		}
		if got := g.asks(); got != tc.want*gib {
			t.Errorf("%s: %d GiB, want %d", name, got/gib, tc.want)
		}
	}
}
