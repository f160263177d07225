package pool

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

// TestAttackAnEngineWithALongMessage: it is kept for as long as the replica is assigned,
// written to the journal, copied into each status and sent to each client that waits.
func TestAttackAnEngineWithALongMessage(t *testing.T) {
	const most = 4 << 10 // of a message with what others put around it
	long := strings.Repeat("1", 1<<20)
	for name, reason := range map[string]string{"final": v1alpha1.ReasonInvalidModel, "tried again": "BackendBusy", "a long reason": long} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 100, FailReason: reason, FailMessage: long}, onDemand(time.Minute)))
				_, err := s.Acquire(s.ctx, "a", 1)
				if err == nil || len(err.Error()) > most {
					t.Errorf("a request that waits gets %d bytes", len(err.Error()))
				}
				s.after(time.Second)
				s.Pool.registry.mu.Lock()
				defer s.Pool.registry.mu.Unlock()
				e := s.Pool.registry.entries[memory.Key{UID: "a", Epoch: 1}]
				if e.failure == nil || len(e.failure.Message) > most || len(e.failure.Reason) > maxReason {
					t.Errorf("the replica keeps %+.200v", e.failure)
				}
				if r := e.refused; (r != nil) != (name == "final") || r != nil && len(r.Message) > most {
					t.Errorf("the replica is refused with %+.200v", r)
				}
				if info, err := os.Stat(filepath.Join(s.dir, "journal.json")); err != nil || info.Size() > 16*most {
					t.Errorf("the journal has %d bytes, %v", info.Size(), err)
				}
			})
		})
	}
}

// TestAttackAnEngineWithImpossibleFigures: sums of them would overflow, and the status
// would be refused by the API server.
func TestAttackAnEngineWithImpossibleFigures(t *testing.T) {
	for name, n := range map[string]int64{"the largest": math.MaxInt64, "the smallest": math.MinInt64} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib, Claims: n}), s.model("b", enginetest.Script{HoldBytes: 20 * gib}))
				s.want("a", "Serving True/Serving")
				s.want("b", "Serving True/Serving")
				s.after(500 * time.Millisecond) // before it is ended for them
				lc := s.Pool.lifecycle
				r := lc.mac.sample()
				total, sum := s.host.Total, int64(0)
				for _, one := range r.Engines {
					for _, figure := range []int64{one.Active, one.Pooled, one.Accounted, one.Cached, one.HeadroomWanted, one.Gauge()} {
						if figure < 0 || figure > total {
							t.Errorf("%s: a figure of %d bytes", one.Key.UID, figure)
						}
					}
					if one.Requests < 0 || one.Idle() && n > 0 && one.Key.UID == "a" {
						t.Errorf("%s: %d requests", one.Key.UID, one.Requests)
					}
					sum += one.Gauge()
				}
				if sum < 21*gib {
					t.Errorf("both engines use %d bytes", sum)
				}
				snapshot := s.Snapshot()
				for _, a := range snapshot.Assignments {
					for _, figure := range []int64{a.Memory.WeightsBytes, a.Memory.KVInUseBytes, a.Memory.ActiveBytes, a.Memory.PooledBytes, a.Memory.AccountedBytes} {
						if figure < 0 || figure > 3*total {
							t.Errorf("%s reports %+v", a.ReplicaUID, a.Memory)
						}
					}
				}
				if m := snapshot.Memory; m.ActiveBytes < 0 || m.ActiveBytes > 2*total || m.AccountedBytes < 0 || m.PooledBytes < 0 {
					t.Errorf("the Mac reports %+v", m)
				}
				for _, c := range snapshot.Guards {
					if c.ThrottledChunks < 0 || c.RefusedRequests < 0 || c.AbortedPrefills < 0 {
						t.Errorf("counters %+v", c)
					}
				}
				for _, c := range snapshot.Remembered {
					if c.Bytes < 0 || c.BudgetBytes < 0 || c.QueriedTokens < 0 || c.RestoredTokens < 0 {
						t.Errorf("prompt cache %+v", c)
					}
				}
				lc.mu.Lock()
				defer lc.mu.Unlock()
				if st := lc.entries[memory.Key{UID: "a", Epoch: 1}].engine.status; len(st.GetMessage()) > excerpt.MessageBytes || len(st.GetReason()) > maxReason || len(st.GetGuard().GetInactiveReason()) > excerpt.MessageBytes {
					t.Errorf("texts of %d, %d and %d bytes are kept", len(st.GetMessage()), len(st.GetReason()), len(st.GetGuard().GetInactiveReason()))
				}
			})
		})
	}
}

// TestAnEngineThatIsNotStartedKeepsAShortMessage, also where nothing of an engine made it.
func TestAnEngineThatIsNotStartedKeepsAShortMessage(t *testing.T) {
	why := journal.Refusal{Reason: "r", Message: strings.Repeat("x", 1<<20)}
	e := &entry{}
	e.setBack(why, time.Now())
	d := download{attempts: 1}
	d.finished("", os.NewSyscallError(why.Message, os.ErrClosed), time.Now())
	if len(e.failure.Message) > excerpt.MessageBytes || len(d.failure.Message) > excerpt.MessageBytes {
		t.Errorf("%d and %d bytes", len(e.failure.Message), len(d.failure.Message))
	}
}
