package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/macnode"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

const gib = int64(1) << 30

// world is a fleet and its operator.
type world struct {
	o   options
	out io.Writer
	rng *rand.Rand
	// trace is chance of its own for requests, so that they change nothing else.
	trace *rand.Rand
	schedule
	checks checks

	macs        []*mac
	byName      map[string]*mac
	deployments []*deployment
	replicas    []*replica
	scaled      []*scaled
	ledger      *demand.Ledger
	silent      bool          // one gateway
	waited      time.Duration // the longest that a request did
	rules       plan.Rules
	pulses      macnode.Pulses
	braking     bool
	pending     bool // a pass is due

	counts map[string]int
}

// mac is one Mac as it is; node is what the operator knows of it.
type mac struct {
	node    v1alpha1.MacNode
	alive   bool
	died    time.Time // of the last time that it went
	renewed time.Time // by its own clock
	beat    time.Time // the next renewal, if it lives
	tainted time.Time // since when it has a taint; zero without one
	// loaded are the OnDemand models in its memory, with their last request.
	loaded map[*replica]time.Time
}

// replica is one, with what its Mac does about it.
type replica struct {
	v1alpha1.ModelReplica
	gone bool
	bad  bool // its engine generates no token
}

func newWorld(o options, out io.Writer) *world {
	w := &world{o: o, out: out, rng: rand.New(rand.NewPCG(o.seed, 77)), trace: rand.New(rand.NewPCG(o.seed, 78)), schedule: newSchedule(time.Duration(o.hours * float64(time.Hour))), byName: map[string]*mac{}, counts: map[string]int{}}
	w.checks.w = w
	limit := resource.NewQuantity(int64(8*o.macs)*gib, resource.BinarySI)
	w.rules = plan.NewRules(&v1alpha1.NamespaceRules{Spec: v1alpha1.NamespaceRulesSpec{OnDemandOvercommitPercent: 400,
		Namespaces: []v1alpha1.RulesOfNamespace{{Name: "team-0", NamespaceRule: v1alpha1.NamespaceRule{MemoryLimit: limit}}}}}, true)
	sizes := []int64{16, 24, 48, 96, 128, 192, 512}
	for i := range o.macs {
		m := &mac{alive: true, loaded: map[*replica]time.Time{}, renewed: epoch, beat: epoch.Add(time.Duration(w.rng.IntN(10000)) * time.Millisecond)}
		m.node.Name = fmt.Sprintf("mac-%05d", i)
		m.node.Labels = map[string]string{"example.com/room": fmt.Sprintf("room-%02d", i%12)}
		m.node.Status.Memory.CapacityBytes = sizes[w.rng.IntN(len(sizes))] * gib * 3 / 4
		m.node.Status.Disk.FreeBytes = int64(400+w.rng.IntN(1600)) * gib
		w.macs = append(w.macs, m)
		w.byName[m.node.Name] = m
	}
	w.ledger = demand.NewLedger(func() time.Time { return w.now })
	w.ledger.Listen()
	w.script()
	w.every(5*time.Second, w.watch)
	w.every(10*time.Second, w.traffic)
	w.every(lookEvery, w.look)
	return w
}

// step lets the next thing happen and checks what must hold; false at the end.
func (w *world) step() bool {
	if !w.schedule.step() {
		return false
	}
	w.counts["events"]++
	w.checks.all()
	return true
}

// logf prints a line of the timeline.
func (w *world) logf(format string, args ...any) {
	if !w.o.quiet {
		fmt.Fprintf(w.out, "%s  %s\n", w.clock(), fmt.Sprintf(format, args...))
	}
}

// sums prints what happened in all.
func (w *world) sums() {
	fmt.Fprintf(w.out, "seed %d: %d Macs, %s", w.o.seed, len(w.macs), w.clock())
	keys := make([]string, 0, len(w.counts))
	for k := range w.counts {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(w.out, "; %s %d", k, w.counts[k])
	}
	fmt.Fprintf(w.out, "; the longest wait %s\n", w.waited.Round(time.Second))
}

// beats renews a Mac's Lease every 10 s, jittered, up to now.
func (w *world) beats(m *mac) {
	for !m.beat.After(w.now) {
		if m.alive {
			m.renewed = m.beat
		}
		m.beat = m.beat.Add(time.Duration(8000+w.rng.IntN(4000)) * time.Millisecond)
	}
}

// watch is the operator's watchdog: it reads every Lease and judges every Mac.
func (w *world) watch() {
	observations := make([]macnode.Observation, 0, len(w.macs))
	for _, m := range w.macs {
		w.beats(m)
		w.pulses.Observe(m.node.Name, m.renewed, w.now)
		p, _ := w.pulses.Of(m.node.Name, w.now)
		observations = append(observations, macnode.ObservationOf(&m.node, p, w.now))
	}
	breaker := macnode.Look(observations)
	if breaker.Open() != w.braking {
		w.braking = breaker.Open()
		w.logf("circuit breaker open: %v (%d of %d silent)", w.braking, breaker.Silent, breaker.Fleet)
	}
	for i, m := range w.macs {
		c := observations[i].Judge(breaker)
		before := observations[i].Before
		if before != nil && before.Reason == c.Reason {
			continue
		}
		m.node.Status.Conditions = []metav1.Condition{{Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: transition(before, c.Status, w.now)}}
		w.counts["judgements "+c.Reason]++
		if c.Reason == v1alpha1.ReasonMacGone {
			w.lose(m)
		}
		w.due()
	}
}

// transition keeps the time of a condition whose status stays.
func transition(before *metav1.Condition, status metav1.ConditionStatus, now time.Time) metav1.Time {
	if before != nil && before.Status == status {
		return before.LastTransitionTime
	}
	return metav1.NewTime(now)
}

// traffic lets clients request OnDemand models, more by day than by night; a model that was
// not used for ten minutes is unloaded.
func (w *world) traffic() {
	for _, m := range w.macs {
		for _, r := range slices.SortedFunc(mapKeys(m.loaded), byName) {
			if w.now.Sub(m.loaded[r]) >= 10*time.Minute {
				delete(m.loaded, r)
			}
		}
	}
	for _, r := range w.replicas {
		if r.gone || !r.Spec.Residency.OnDemand() || !readyReplica(r) || w.rng.IntN(100) >= w.busy() {
			continue
		}
		w.counts["requests on demand"]++
		w.load(w.byName[r.Spec.NodeName], r)
	}
}

// busy is how many of a hundred models are requested in ten seconds.
func (w *world) busy() int { return 1 + int(w.now.Sub(epoch).Hours())%12/2 }

// load brings an OnDemand model into memory, as an agent does: idle ones are unloaded for
// it, the longest idle first; if that is not enough it waits.
func (w *world) load(m *mac, r *replica) {
	if _, has := m.loaded[r]; has {
		m.loaded[r] = w.now
		return
	}
	idle := slices.SortedFunc(mapKeys(m.loaded), func(a, b *replica) int {
		if c := m.loaded[a].Compare(m.loaded[b]); c != 0 {
			return c
		}
		return byName(a, b)
	})
	for w.used(m)+r.Spec.ReservedBytes > m.node.Status.Memory.CapacityBytes {
		if len(idle) == 0 {
			w.counts["loads that wait"]++
			return
		}
		delete(m.loaded, idle[0])
		w.counts["evictions"]++
		idle = idle[1:]
	}
	m.loaded[r] = w.now
	w.counts["loads"]++
}

// used is what of a Mac's memory is promised for good or loaded.
func (w *world) used(m *mac) int64 {
	var sum int64
	for r := range m.loaded {
		sum += r.Spec.ReservedBytes
	}
	return sum + w.promised(m)
}
