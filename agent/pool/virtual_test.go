package pool

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// stage is the production pool on virtual time: scripted engines, a scripted
// Mac, and a journal on disk.
type stage struct {
	*Pool
	t     *testing.T
	ctx   context.Context // ends with the bubble
	dir   string
	twin  *enginetest.Twin
	mac   *probe.Scripted
	host  probe.Host
	probe *counting
	fault func(string)
	stop  context.CancelFunc
	ended chan struct{}

	mu       sync.Mutex
	reclaims []v1alpha1.Reclaim // in their order
}

// counting counts looks at the host, and can change what they see.
type counting struct {
	probe.Probe
	mu    sync.Mutex
	looks int
	see   func(look int, h probe.Host) probe.Host
}

func (c *counting) Host(ctx context.Context, own int64) (probe.Host, error) {
	h, err := c.Probe.Host(ctx, own)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks++
	if c.see != nil {
		h = c.see(c.looks, h)
	}
	return h, err
}

// begin counts from 0 again and changes what is seen.
func (c *counting) begin(see func(look int, h probe.Host) probe.Host) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks, c.see = 0, see
}

func (c *counting) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.looks
}

// play runs a history on a Mac of 100 GiB whose administrator allows 64 GiB,
// of which 57.6 GiB may be promised.
func play(t *testing.T, history func(s *stage)) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mf-stage-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, ctx: t.Context(), dir: dir, host: probe.Host{Total: 70 * gib, MetalCap: 64 * gib}}
		s.mac = probe.NewScripted(s.host)
		s.twin = enginetest.NewTwin(s.mac)
		s.probe = &counting{Probe: s.mac}
		s.boot()
		history(s)
		s.halt()
		s.twin.KillAll()
		synctest.Wait()
	})
}

func (s *stage) boot() {
	s.t.Helper()
	j, err := journal.Open(s.dir, time.Now())
	if err != nil {
		s.t.Fatal(err)
	}
	s.Pool, err = New(Config{
		Log: logr.Discard(), Journal: j, Ledger: memory.NewLedger(), Probe: s.probe, Weights: &scripts{dir: ""},
		Engines: s.twin, StateDir: s.dir,
		Fault: func(point string) {
			if s.fault != nil {
				s.fault(point)
			}
		},
		Reclaimed: func(r v1alpha1.Reclaim) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reclaims = append(s.reclaims, r)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.Adopt(ctx)
	s.stop, s.ended = stop, make(chan struct{})
	go func(p *Pool, ended chan struct{}) {
		defer close(ended)
		_ = p.Run(ctx)
	}(s.Pool, s.ended)
}

// halt ends the pool and leaves the engines.
func (s *stage) halt() {
	s.stop()
	<-s.ended
}

// after lets time pass, and then everything that is due happen.
func (s *stage) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// model orders a replica whose engine behaves as scripted; it needs what the
// script holds and a GiB.
func (s *stage) model(uid string, script enginetest.Script, change ...func(*v1alpha1.Assignment)) v1alpha1.Assignment {
	s.twin.SetScript(uid, script)
	a := assignment(uid, uid)
	a.ReservedBytes = script.HoldBytes + script.PooledBytes + 4*script.RequestBytes + gib
	for _, c := range change {
		c(&a)
	}
	return a
}

// onDemand makes an order one that the first request loads.
func onDemand(idle time.Duration) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) {
		a.Residency = v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: int32(idle.Seconds())}
	}
}

func priority(n int32) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) { a.Residency.Priority = n }
}

// follow applies orders and lets everything that is due at once happen.
func (s *stage) follow(a ...v1alpha1.Assignment) {
	s.Apply(orders(a...))
	synctest.Wait()
}

// acquire takes a hold, waiting for a load if need be.
func (s *stage) acquire(uid string) *Hold {
	s.t.Helper()
	h, err := s.Acquire(s.ctx, uid, 1)
	if err != nil {
		s.t.Fatalf("acquire %s: %v", uid, err)
	}
	return h
}

// used loads a model by a request and leaves it idle.
func (s *stage) used(uid string) {
	s.t.Helper()
	s.acquire(uid).Release()
	synctest.Wait()
}

func (s *stage) report(uid string) v1alpha1.AssignmentStatus {
	for _, a := range s.Snapshot().Assignments {
		if a.ReplicaUID == uid {
			return a
		}
	}
	return v1alpha1.AssignmentStatus{}
}

// want checks conditions, written as "Serving True/OnDemand".
func (s *stage) want(uid string, conditions ...string) {
	s.t.Helper()
	r := s.report(uid)
	for _, c := range conditions {
		kind, want, _ := strings.Cut(c, " ")
		if got := status(r, kind); got != want {
			s.t.Errorf("%v: %s of %s is %q, want %q: %+v", time.Since(epoch), kind, uid, got, want, r.Conditions)
		}
	}
}

// epoch is when a bubble's time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// resident lists the replicas that have an engine.
func (s *stage) resident() string {
	var all []string
	for _, e := range s.twin.Engines() {
		all = append(all, e.Config().ReplicaUID)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (s *stage) wantResident(want string) {
	s.t.Helper()
	if got := s.resident(); got != want {
		s.t.Errorf("%v: resident are %q, want %q", time.Since(epoch), got, want)
	}
}

// wantReclaims checks the reasons of all reclaims so far, as "uid/Reason".
func (s *stage) wantReclaims(want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []string
	for _, r := range s.reclaims {
		got = append(got, r.ReplicaUID+"/"+string(r.Reason))
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("%v: reclaims %v, want %v", time.Since(epoch), got, want)
	}
}

func (s *stage) lastReclaim() v1alpha1.Reclaim {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reclaims) == 0 {
		s.t.Fatal("nothing was reclaimed")
	}
	return s.reclaims[len(s.reclaims)-1]
}

// wantLedger checks who holds a reservation (invariant 3).
func (s *stage) wantLedger(want ...string) {
	s.t.Helper()
	var got []string
	for k := range s.Ledger.Account().Holders {
		got = append(got, k.UID)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.t.Errorf("%v: reserved for %v, want %v", time.Since(epoch), got, want)
	}
}

func (s *stage) macCondition(kind string) string {
	for _, c := range s.Snapshot().Conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason
		}
	}
	return ""
}

func TestTwinPassesTheSuite(t *testing.T) {
	twin := enginetest.NewTwin(probe.NewScripted(probe.Host{Total: gib}))
	twin.SetScript("m", enginetest.Script{HoldBytes: mib, TokenMilliseconds: 5})
	enginetest.Run(t, enginetest.InTwin(twin, "m"))
}

// TestTheProductionPoolRunsOnVirtualTime: ten minutes of a load, an hour of
// service and a drain take no time, and the figures are those of the script.
func TestTheProductionPoolRunsOnVirtualTime(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: 20 * gib, LoadMilliseconds: 600_000, TokenMilliseconds: 1000})
		s.follow(a)
		s.after(300 * time.Second)
		if p := s.report("a").Progress; p.Stage != v1alpha1.StageLoading || p.BytesDone != 10*gib || p.BytesTotal != 20*gib {
			t.Errorf("half-way: %+v", p)
		}
		s.after(301 * time.Second)
		s.want("a", "Serving True/Serving", "Admitted True/Reserved")
		h := s.acquire("a")
		if end, err := ask(s.ctx, h, 3600, nil); err != nil || end.GetUsage().GetGeneratedTokens() != 3600 {
			t.Errorf("%v, %v", end, err)
		}
		h.Release()
		a.Desired = v1alpha1.DesiredDrained
		s.follow(a)
		s.after(time.Second)
		if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != 20*gib || r.HostCheck != v1alpha1.HostCheckVerified || r.Exit != v1alpha1.ExitClean {
			t.Errorf("%+v", r)
		}
		if took := time.Since(epoch); took < 4200*time.Second || took > 4300*time.Second {
			t.Errorf("took %v of virtual time", took)
		}
		s.wantLedger()
	})
}

// TestP1AHundredRequestsCauseOneLoad of an OnDemand replica, and all get a hold.
func TestP1AHundredRequestsCauseOneLoad(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(time.Hour)))
		s.want("a", "Downloaded True/Verified", "Admitted Unknown/OnDemand", "Loaded False/OnDemand", "Serving True/OnDemand")
		s.wantLedger()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				h, err := s.Acquire(s.ctx, "a", 1)
				if err != nil {
					t.Error(err)
					return
				}
				if h.Load() != 1 {
					t.Errorf("load %d", h.Load())
				}
			})
		}
		s.after(5 * time.Second)
		s.want("a", "Loaded False/Loading", "Serving True/OnDemand")
		wg.Wait()
		if n := s.Endpoints()[0].Holds; n != 100 {
			t.Errorf("%d holds, want 100", n)
		}
		state := s.Journal.Snapshot()
		if loads := state.Replica("a", 1).Loads; loads != 1 {
			t.Errorf("%d loads", loads)
		}
		if took := time.Since(epoch); took != 10*time.Second {
			t.Errorf("the holds came after %v", took)
		}
	})
}

func TestALoadGoesOnWhenItsWaitersLeave(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(0)))
		hurried, cancel := context.WithTimeout(s.ctx, 3*time.Second)
		defer cancel()
		left, stayed := make(chan error, 1), make(chan error, 1)
		go func() { _, err := s.Acquire(hurried, "a", 1); left <- err }()
		go func() { _, err := s.Acquire(s.ctx, "a", 1); stayed <- err }()
		if err := <-left; !errors.Is(err, context.DeadlineExceeded) || time.Since(epoch) != 3*time.Second {
			t.Errorf("who left: %v after %v", err, time.Since(epoch))
		}
		if err := <-stayed; err != nil {
			t.Errorf("who stayed: %v", err)
		}
		if n := s.Endpoints()[0].Holds; n != 1 {
			t.Errorf("%d holds, want 1: whoever left holds nothing", n)
		}
	})
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 10_000}, onDemand(0)))
		hurried, cancel := context.WithTimeout(s.ctx, time.Second)
		defer cancel()
		_, _ = s.Acquire(hurried, "a", 1) // and nobody else
		s.after(10 * time.Second)
		s.want("a", "Serving True/Serving")
		s.wantReclaims()
	})
}

// TestTheWaitForALoadIsBounded, and the load is not.
func TestTheWaitForALoadIsBounded(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 900_000}, onDemand(0)))
		if _, err := s.Acquire(s.ctx, "a", 1); !errors.Is(err, ErrNotReady) || time.Since(epoch) != 10*time.Minute {
			t.Errorf("%v after %v", err, time.Since(epoch))
		}
		s.after(5 * time.Minute)
		s.want("a", "Serving True/Serving")
	})
}

func TestAFailedLoadAnswersAllThatWait(t *testing.T) {
	for name, tc := range map[string]struct {
		script enginetest.Script
		reason string
		retry  bool
	}{
		"it says why":         {enginetest.Script{LoadMilliseconds: 1000, FailReason: "BackendBusy", FailMessage: "later"}, "BackendBusy", true},
		"it says it is final": {enginetest.Script{LoadMilliseconds: 1000, FailReason: v1alpha1.ReasonUnsupportedModel}, v1alpha1.ReasonUnsupportedModel, false},
		"it dies":             {enginetest.Script{DieLoading: 3}, v1alpha1.ReasonLoadFailed, true},
		"it never answers":    {enginetest.Script{Deaf: true}, v1alpha1.ReasonLoadFailed, true},
		"it does not move":    {enginetest.Script{HoldBytes: gib, HangLoading: true}, ReasonLoadStalled, true},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", tc.script, onDemand(0)))
				answers := make(chan error, 20)
				for range cap(answers) {
					go func() { _, err := s.Acquire(s.ctx, "a", 1); answers <- err }()
				}
				for range cap(answers) {
					err := <-answers
					var load *LoadError
					if !errors.As(err, &load) || !errors.Is(err, ErrLoadFailed) || load.Reason != tc.reason {
						t.Fatalf("%v, want the reason %s", err, tc.reason)
					}
				}
				s.after(2 * time.Minute)
				s.wantLedger()
				s.wantResident("")
				if _, err := s.Acquire(s.ctx, "a", 1); !tc.retry && !errors.Is(err, ErrLoadFailed) {
					t.Errorf("a final failure was tried again: %v", err)
				}
			})
		})
	}
}

// TestP4AHoldKeepsItsEngineFromEveryFlavourOfEviction: nothing lies between
// the decision to wait and the hold, nor between the hold and its first use.
func TestP4AHoldKeepsItsEngineFromEveryFlavourOfEviction(t *testing.T) {
	for _, why := range []v1alpha1.ReclaimReason{
		v1alpha1.ReclaimMadeRoom, v1alpha1.ReclaimIdle, v1alpha1.ReclaimHeadroom, v1alpha1.ReclaimSoftPressure, v1alpha1.ReclaimHardPressure,
	} {
		t.Run(string(why), func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 1000, TokenMilliseconds: 10}, onDemand(0)))
				h := s.acquire("a") // of the path "just loaded"
				again := s.acquire("a")
				h.Release()
				if s.evict(memory.Key{UID: "a", Epoch: 1}, why) {
					t.Error("an engine with a hold was evicted")
				}
				if end, err := ask(s.ctx, again, 5, nil); err != nil || end.GetReason() != wire.FinishReason_FINISH_REASON_LENGTH {
					t.Errorf("%v, %v", end, err)
				}
				again.Release()
				if !s.evict(memory.Key{UID: "a", Epoch: 1}, why) {
					t.Error("an idle engine was not evicted")
				}
				s.after(time.Second)
				s.wantReclaims("a/" + string(why))
				s.wantLedger()
			})
		})
	}
}

// TestP4TheHoldIsThereWhenTheEngineIsReady: whoever is told of a new engine
// under the lock sees it held.
func TestP4TheHoldIsThereWhenTheEngineIsReady(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{LoadMilliseconds: 1000}, onDemand(0)))
		seen := false
		s.fault = func(point string) {
			if point == FaultLoadReady {
				seen = true
				go func() { // as an enforcer would, at every chance
					for range 1000 {
						if s.evict(memory.Key{UID: "a", Epoch: 1}, v1alpha1.ReclaimMadeRoom) {
							t.Error("evicted between readiness and the first use")
							return
						}
					}
				}()
			}
		}
		h := s.acquire("a")
		if end, err := ask(s.ctx, h, 5, nil); err != nil {
			t.Errorf("%v, %v", end, err)
		}
		if !seen {
			t.Error("the engine was never ready")
		}
	})
}

// TestP5ARefusedRequestLeavesNoHold, a thousand times (P7: N, then 0).
func TestP5ARefusedRequestLeavesNoHold(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{}, onDemand(0)))
		holds := func() int { return s.Endpoints()[0].Holds }
		for range 1000 {
			h := s.acquire("a")
			stream, err := h.Generate(s.ctx, &wire.GenerateRequest{Id: "nothing to answer"})
			if err == nil {
				_, err = stream.Recv()
			}
			if wire.RefusalOf(err).GetCode() != wire.Code_CODE_INVALID {
				t.Fatal(err)
			}
			h.Release()
		}
		if n := holds(); n != 0 {
			t.Errorf("%d holds after a thousand refusals", n)
		}
		var all []*Hold
		for range 7 {
			all = append(all, s.acquire("a"))
		}
		if n := holds(); n != 7 {
			t.Errorf("P7: %d holds, want 7", n)
		}
		for _, h := range all {
			h.Release()
		}
		if n := holds(); n != 0 {
			t.Errorf("P7: %d holds, want 0", n)
		}
	})
}

// TestP8AnEngineThatDiesUnderItsRequestsLeavesNoPhantom: the active count is
// the set of holds, of this engine and no other.
func TestP8AnEngineThatDiesUnderItsRequestsLeavesNoPhantom(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{TokenMilliseconds: 1000}, onDemand(time.Minute)))
		h := s.acquire("a")
		time.AfterFunc(10*time.Second, func() { s.twin.Engine("a").Exit(9) })
		if _, err := ask(s.ctx, h, 10_000, nil); !errors.Is(err, ErrEngineLost) {
			t.Errorf("%v", err)
		}
		s.after(10 * time.Second)
		next := s.acquire("a")
		h.Release() // late, and of the old engine
		if n := s.Endpoints()[0].Holds; n != 1 {
			t.Errorf("%d holds, want 1", n)
		}
		next.Release()
		s.after(2 * time.Minute)
		s.wantReclaims("a/Crashed", "a/Idle")
		s.wantResident("")
	})
}

// TestP10AHoldSuppressesTheTimeToLiveAndRestartsIt.
func TestP10AHoldSuppressesTheTimeToLiveAndRestartsIt(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(time.Minute)), s.model("pinned", enginetest.Script{HoldBytes: gib}))
		h := s.acquire("a")
		s.after(10 * time.Minute)
		s.wantResident("a pinned") // across the expiry, held
		h.Release()
		s.after(59 * time.Second)
		s.wantResident("a pinned")
		s.after(3 * time.Second)
		s.wantResident("pinned")
		s.wantReclaims("a/Idle")
		s.want("a", "Serving True/OnDemand", "Loaded False/OnDemand")
		s.after(2 * time.Hour)
		s.wantResident("pinned") // Always has no time to live (P11)
		s.used("a")
		s.wantResident("a pinned")
		if r := s.lastReclaim(); r.FreedBytes == nil || *r.FreedBytes != gib {
			t.Errorf("%+v", r)
		}
	})
}

func TestP10AnAdoptedEngineKeepsItsLastUse(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib}, onDemand(10*time.Minute))
		s.follow(a)
		s.used("a")
		s.after(8 * time.Minute)
		s.halt()
		s.boot()
		s.follow(a)
		s.wantResident("a")
		s.after(time.Minute)
		s.wantResident("a")
		s.after(70 * time.Second)
		s.wantResident("")
		s.wantReclaims("a/Idle")
	})
}

func TestARoomIsMadeOfIdleEnginesOneAtATime(t *testing.T) {
	play(t, func(s *stage) {
		slow := enginetest.Script{HoldBytes: 15 * gib, ShutdownMilliseconds: 5000}
		s.follow(s.model("a", slow, onDemand(0)), s.model("b", slow, onDemand(0)), s.model("c", slow, onDemand(0)),
			s.model("big", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)))
		s.used("a")
		s.after(time.Minute)
		s.used("b")
		s.after(time.Minute)
		s.used("c")
		s.wantResident("a b c") // 48 of 57.6 GiB are promised
		got := make(chan error, 1)
		go func() { _, err := s.Acquire(s.ctx, "big", 1); got <- err }()
		s.after(2 * time.Second)
		s.wantReclaims() // the first one still ends
		if n := leaving(s); n != 1 {
			t.Errorf("%d engines end at once, want 1", n)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		s.wantReclaims("a/MadeRoom", "b/MadeRoom")
		s.wantResident("big c")
		s.wantLedger("big", "c")
	})
}

func leaving(s *stage) (n int) {
	s.read(func() {
		for _, e := range s.entries {
			if e.engine != nil && e.engine.stop != nil {
				n++
			}
		}
	})
	return n
}

func TestWithoutRoomARequestIsToldWhetherToComeAgain(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("always", enginetest.Script{HoldBytes: 20 * gib}), s.model("a", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)),
			s.model("b", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0)), s.model("beside", enginetest.Script{HoldBytes: 40 * gib}, onDemand(0)),
			s.model("large", enginetest.Script{HoldBytes: 60 * gib}, onDemand(0)), s.model("dear", enginetest.Script{HoldBytes: 30 * gib}, onDemand(0), priority(5)))
		s.after(time.Second)
		h := s.acquire("a")
		for uid, retry := range map[string]bool{"b": true, "beside": false, "large": false} {
			_, err := s.Acquire(s.ctx, uid, 1)
			var room *RoomError
			if !errors.As(err, &room) || !errors.Is(err, ErrNoRoom) || room.RetryAfter > 0 != retry || room.Cause.Needed < 31*gib {
				t.Errorf("%s: %v (%+v)", uid, err, room)
			}
		}
		s.want("b", "Serving True/OnDemand")
		s.want("large", "Admitted False/InsufficientMemory", "Serving False/InsufficientMemory")
		s.want("beside", "Admitted False/InsufficientMemory")
		h.Release()
		s.used("dear")
		if _, err := s.Acquire(s.ctx, "b", 1); !errors.Is(err, ErrNoRoom) {
			t.Errorf("a model of higher priority went for one of lower: %v", err)
		}
		s.wantReclaims("a/MadeRoom")
		s.wantResident("always dear")
	})
}

// TestP11WhatIsAlwaysResidentIsNoVictim, but takes the room of what is not.
func TestP11WhatIsAlwaysResidentIsNoVictim(t *testing.T) {
	play(t, func(s *stage) {
		pin, idle := s.model("pin", enginetest.Script{HoldBytes: 25 * gib}), s.model("idle", enginetest.Script{HoldBytes: 25 * gib}, onDemand(0), priority(9))
		s.follow(pin, idle)
		s.used("idle")
		more := s.model("more", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, idle, more)
		s.after(time.Second)
		s.want("more", "Serving True/Serving")
		s.wantReclaims("idle/MadeRoom")
		last := s.model("last", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, idle, more, last)
		s.want("last", "Admitted False/InsufficientMemory")
		s.wantResident("more pin")
	})
	play(t, func(s *stage) { // busy, so it waits
		pin, busy := s.model("pin", enginetest.Script{HoldBytes: 25 * gib}), s.model("busy", enginetest.Script{HoldBytes: 25 * gib}, onDemand(0))
		s.follow(pin, busy)
		h := s.acquire("busy")
		more := s.model("more", enginetest.Script{HoldBytes: 25 * gib})
		s.follow(pin, busy, more)
		s.after(time.Minute)
		s.want("more", "Loaded False/WaitingForRoom")
		h.Release()
		s.after(time.Second)
		s.want("more", "Serving True/Serving")
		s.wantReclaims("busy/MadeRoom")
	})
}

func TestAnOrderThatIsWithdrawnAnswersItsWaiters(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib, LoadMilliseconds: 60_000}, onDemand(0))
		s.follow(a)
		got := make(chan error, 1)
		go func() { _, err := s.Acquire(s.ctx, "a", 1); got <- err }()
		s.after(time.Second)
		a.Desired = v1alpha1.DesiredDrained
		s.follow(a)
		if err := <-got; !errors.Is(err, ErrNotReady) {
			t.Errorf("%v", err)
		}
		s.after(2 * time.Minute)
		s.want("a", "Released True/Released")
		s.wantLedger()
	})
}

func TestResidencyMayChangeUnderARunningEngine(t *testing.T) {
	play(t, func(s *stage) {
		a := s.model("a", enginetest.Script{HoldBytes: gib})
		s.follow(a)
		s.after(time.Second)
		pid := s.report("a").PID
		onDemand(time.Minute)(&a)
		s.follow(a)
		s.after(30 * time.Second)
		if s.report("a").PID != pid {
			t.Error("the engine was restarted")
		}
		s.after(time.Minute)
		s.wantResident("") // merely evictable now, and idle
		a.Residency = v1alpha1.Residency{Policy: v1alpha1.ResidencyAlways}
		s.follow(a)
		s.after(time.Second)
		s.want("a", "Serving True/Serving")
	})
}
