package pool

import (
	"context"
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
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
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
	fault func(string)                          // set by at
	wrap  func(process.Engines) process.Engines // of the next boot; may be nil
	stop  context.CancelFunc
	ended chan struct{}

	faults sync.Mutex // guards fault, and what it changes

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
	watched, engines := failpoint.Wrap(j, s.twin, func(point string) {
		s.faults.Lock()
		defer s.faults.Unlock()
		if s.fault != nil {
			s.fault(point)
		}
	})
	if s.wrap != nil {
		engines = s.wrap(engines)
	}
	s.Pool, err = New(Config{
		Log: logr.Discard(), Journal: watched, Ledger: memory.NewLedger(), Probe: s.probe, Weights: &scripts{dir: ""},
		Engines: engines, StateDir: s.dir,
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

// at has f called at every fault point from now on; nil ends that. f does not wait.
func (s *stage) at(f func(point string)) {
	s.faults.Lock()
	defer s.faults.Unlock()
	s.fault = f
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

// reserves makes an order reserve more than its engine holds.
func reserves(bytes int64) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) { a.ReservedBytes = bytes }
}

func priority(n int32) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) { a.Residency.EvictionPriority = n }
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

// wantLedger checks who holds a reservation.
func (s *stage) wantLedger(want ...string) {
	s.t.Helper()
	var got []string
	for k := range s.registry.ledger.Account().Holders {
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

// of makes an order one of another namespace.
func of(namespace string) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) { a.Namespace = namespace }
}

func drain(seconds int32) func(*v1alpha1.Assignment) {
	return func(a *v1alpha1.Assignment) { a.DrainSeconds = seconds }
}
