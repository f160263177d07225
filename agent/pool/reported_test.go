package pool

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
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

// TestAttackAFloodOfStatuses: an engine that was taken over keeps its agent as busy as a few others.
func TestAttackAFloodOfStatuses(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("flood", enginetest.Script{HoldBytes: gib, Flood: 100_000}))
		s.after(10 * time.Second)
		s.want("flood", "Serving True/Serving")
		if a := s.report("flood").Activity; a == nil || a.PromptTokensTotal > 12*statusReads {
			t.Errorf("after 10 s: %+v", a)
		}
	})
}

// TestTheNewestStatusCounts: those that come faster than they are taken are passed over, and the
// last one is taken within the time between two.
func TestTheNewestStatusCounts(t *testing.T) {
	for _, c := range []struct {
		name      string
		n         int
		every     time.Duration
		most      int // that are taken
		late      time.Duration
		takesLong time.Duration
	}{
		{name: "at the usual rate all are taken at once", n: 500, every: time.Second / 40, most: 500},
		{name: "a burst as well", n: statusBurst, every: time.Millisecond, most: statusBurst},
		{name: "of a flood the newest", n: 3000, every: time.Second / 300, most: statusBurst + 11*statusRate, late: time.Second / statusRate},
		{name: "while one is taken", n: 300, every: time.Second / 300, most: 12, takesLong: 100 * time.Millisecond, late: 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := pace{rate.NewLimiter(statusReads, statusReads), rate.NewLimiter(statusRate, statusBurst)}
				sent, taken, late := 0, 0, time.Duration(0)
				last := int64(0)
				p.newest(t.Context(), func() (*wire.Status, error) {
					if sent == c.n {
						return nil, io.EOF
					}
					time.Sleep(c.every)
					sent++
					return &wire.Status{Memory: &wire.Memory{WeightsBytes: time.Now().UnixMicro()}, Activity: &wire.Activity{PromptTokensTotal: int64(sent)}}, nil
				}, func(s *wire.Status) {
					taken++
					last = s.Activity.PromptTokensTotal
					late = max(late, time.Since(time.UnixMicro(s.Memory.WeightsBytes)))
					time.Sleep(c.takesLong)
				})
				if last != int64(c.n) || taken > c.most || taken < min(c.most, c.n)/2 || late > c.late+time.Millisecond {
					t.Errorf("%d of %d are taken, the last one is %d, up to %s late; want at most %d, up to %s late", taken, c.n, last, late, c.most, c.late)
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
