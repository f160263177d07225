package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/wire"
)

// stubProcess holds memory and takes limits.
type stubProcess struct {
	process.Handle
	process.Conn
	held   int64
	limits *wire.Limits
}

func (s *stubProcess) Footprint() (int64, error) { return s.held, nil }
func (s *stubProcess) SetLimits(_ context.Context, l *wire.Limits, _ ...grpc.CallOption) (*wire.SetLimitsResponse, error) {
	s.limits = l
	return &wire.SetLimitsResponse{}, nil
}

// newPressure is a Mac of 70 GiB, of which engines may use 64 GiB.
func newPressure(engines unloader) *pressure {
	reg := newRegistry(memory.NewLedger(), func() {})
	rec := &recorder{registry: reg, log: logr.Discard(), journal: &memoryJournal{}}
	timing := Timing{}.withDefaults()
	mt := &meter{registry: reg, log: logr.Discard(), timing: timing, probe: probe.NewScripted(probe.Host{Total: 70 * gib, MetalCap: 64 * gib})}
	sg := &startGate{meter: mt, recorder: rec}
	return &pressure{
		registry: reg, log: logr.Discard(), timing: timing, meter: mt, gate: sg, recorder: rec, engines: engines,
		books: &bookkeeper{registry: reg, recorder: rec, gate: sg}, enforcer: memory.NewEnforcer(), afterPoll: func(memory.Reading) {},
	}
}

// serve adds an OnDemand replica with a ready engine that nothing uses.
func (p *pressure) serve(t *testing.T, uid string, held int64, idle time.Duration) *stubProcess {
	t.Helper()
	proc := &stubProcess{held: held}
	e := p.entry(memory.Key{UID: uid, Epoch: 1})
	a := assignment(uid, "m")
	onDemand(idle)(&a)
	a.ReservedBytes = held + gib
	e.take(a)
	e.engine = &engine{
		key: e.key, state: Ready, proc: proc, client: proc, config: e.config("m"), holds: map[*Hold]struct{}{},
		status: &wire.Status{}, statusAt: time.Now(), lastUse: time.Now(),
	}
	e.state, e.reserved = Ready, true
	if err := p.ledger.Reserve(e.key, a.ReservedBytes); err != nil {
		t.Fatal(err)
	}
	return proc
}

// TestPressureNeedsNoPlanAndNoProcess: it sends limits, evicts an engine when its
// idle time is over, and evicts another for one that is to be loaded.
func TestPressureNeedsNoPlanAndNoProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := &stubEngines{}
		p := newPressure(engines)
		p.poll() // the Mac is measured
		small := p.serve(t, "small", gib, time.Minute)
		large := p.serve(t, "large", 30*gib, 0)
		poll := func() {
			p.read(func() {
				for _, e := range p.entries {
					if e.engine != nil {
						e.engine.statusAt = time.Now()
					}
				}
			})
			p.poll()
			synctest.Wait()
		}
		poll()
		if small.limits.GetFootprintBytes() != gib || large.limits.GetFootprintBytes() != 30*gib || !large.limits.GetHeadroomKnown() {
			t.Errorf("limits %v and %v", small.limits, large.limits)
		}
		if len(engines.asked) != 0 {
			t.Errorf("asked %v while there is memory", engines.asked)
		}
		time.Sleep(2 * time.Minute)
		poll()
		if d := cmp.Diff([]string{"unload small Idle"}, engines.asked); d != "" {
			t.Error(d)
		}

		next := p.entry(memory.Key{UID: "next", Epoch: 1})
		a := assignment("next", "m")
		a.ReservedBytes = 40 * gib
		next.take(a)
		poll()
		if coming, err := p.admit(next); !coming || err == nil {
			t.Errorf("%v, %v: want memory to be freed", coming, err)
		}
		if coming, err := p.admit(next); !coming || err == nil { // it waits for the engine that is ending
			t.Errorf("%v, %v: want memory to be freed", coming, err)
		}
		if d := cmp.Diff([]string{"unload small Idle", "unload large MadeRoom"}, engines.asked); d != "" {
			t.Error(d)
		}
		p.read(func() {
			for _, uid := range []string{"small", "large"} {
				e := p.entry(memory.Key{UID: uid, Epoch: 1})
				e.engine = nil
				p.ledger.Release(e.key)
			}
		})
		if _, err := p.admit(next); err != nil {
			t.Errorf("with 64 GiB free: %v", err)
		}
		p.finish()
		p.tasks.Wait()
	})
}

// changing is a probe of a Mac whose engines change while it is measured.
type changing struct {
	probe.Probe
	meanwhile func()
}

func (c *changing) Host(ctx context.Context, own int64) (probe.Host, error) {
	defer c.meanwhile()
	return c.Probe.Host(ctx, own)
}

// TestGrowthWhileTheMacIsMeasuredHidesNothing: one engine leaves 10 GiB wired while
// another one grows from each reading of the Mac to that of the footprints.
func TestGrowthWhileTheMacIsMeasuredHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPressure(&stubEngines{})
		script := probe.NewScripted(probe.Host{})
		mac := &changing{Probe: script, meanwhile: func() {}}
		p.meter.probe = mac
		wire := func(gibs int64) {
			script.SetHost(probe.Host{Total: 70 * gib, MetalCap: 64 * gib, Wired: gibs * gib, WiredKnown: true})
		}
		wire(3)
		p.poll()
		first, second := p.serve(t, "first", 10*gib, 0), p.serve(t, "second", 10*gib, 0)
		p.entry(memory.Key{UID: "first", Epoch: 1}).engine.pid = 1
		p.entry(memory.Key{UID: "second", Epoch: 1}).engine.pid = 2
		wire(23)
		p.poll()
		first.held = 0
		p.change(func() {
			p.entry(memory.Key{UID: "first", Epoch: 1}).engine = nil
			p.gate.exited(false)
		})
		mac.meanwhile = func() {
			second.held += 12 * gib
			wire(13 + second.held/gib)
		}
		p.poll()
		if p.gate.mayStart() {
			t.Error("an engine may be started before it is known what another one left")
		}
		mac.meanwhile = func() {}
		p.poll()
		if left := p.gate.stranding.Evidence().Left; left != 10*gib || p.gate.mayStart() {
			t.Errorf("%d bytes are left, engines may be started: %v", left, p.gate.mayStart())
		}
	})
}
