package pool

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// An engine over its own limit that grows while it is to end gets no time to end by
// itself, and no idle model of others ends for it.
func TestAnEngineThatGrowsWhileItEndsIsKilledAtOnce(t *testing.T) {
	for name, bad := range map[string]enginetest.Script{
		"in use":  {HoldBytes: gib, LeakBytes: 3 * gib, LeakMilliseconds: 1000, IgnoreAbort: true, IgnoreShutdown: true, IgnoreTerm: true},
		"deaf":    {HoldBytes: gib, LeakBytes: 3 * gib, LeakMilliseconds: 1000, IgnoreAbort: true, IgnoreShutdown: true, IgnoreTerm: true, IgnoreTrim: true, IgnoreLimits: true},
		"quicker": {HoldBytes: gib, LeakBytes: 9 * gib, LeakMilliseconds: 1000, IgnoreAbort: true, IgnoreShutdown: true, IgnoreTerm: true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				idle := s.model("idle", enginetest.Script{HoldBytes: 15 * gib}, onDemand(0))
				other := s.model("other", enginetest.Script{HoldBytes: 5 * gib}, onDemand(0))
				s.follow(idle, other, s.model("bad", bad, onDemand(0), drain(600)))
				s.used("idle")
				s.used("other")
				s.after(time.Second)
				h, err := s.Acquire(s.ctx, "bad", 1)
				if err == nil {
					defer h.Release()
				}
				for range 12 { // it grows 3 GiB/s
					s.after(time.Second)
					s.mu.Lock()
					n := len(s.reclaims)
					s.mu.Unlock()
					if n > 0 {
						break
					}
				}
				s.wantResident("idle other")
				if r := s.lastReclaim(); r.ReplicaUID != "bad" || r.Exit != v1alpha1.ExitKilled {
					t.Errorf("last reclaim %+v", r)
				}
			})
		})
	}
}
