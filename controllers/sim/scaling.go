package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	api "metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
)

const (
	// lookEvery is how often deployments are looked at: the operator does it every
	// second, and counts up to this as seen.
	lookEvery = 5 * time.Second
	// slots is how many requests run at once on a replica, and answerTime how long
	// one takes in the mean.
	slots      = 4
	answerTime = 20 * time.Second
	// gateways that requests come by.
	gateways = 2
)

// scaled is a deployment with autoscaling, with its requests.
type scaled struct {
	*deployment
	memory scale.Memory
	// peak requests a second by day, and where its day begins.
	peak, phase float64
	// burst is until when five times as many come.
	burst time.Time
	// queued is when those came that wait, running those that run, by replica.
	queued  []time.Time
	running map[types.UID]int
	begun   uint64
	ready   int
}

// scales makes a deployment scale itself, to zero or not.
func (w *world) scales(d *deployment, i int) {
	d.Spec.Replicas = nil
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: ptr.To(int32(i / 5 % 2)), MaxReplicas: 8, TargetConcurrency: slots}
	w.scaled = append(w.scaled, &scaled{deployment: d, peak: 0.02 + 1.2*w.trace.Float64(), phase: 2 * math.Pi * w.trace.Float64(), running: map[types.UID]int{}})
}

// look has requests come and end, the gateways report, and the operator decide.
func (w *world) look() {
	if w.trace.IntN(720) == 0 { // once an hour
		w.restart()
	}
	w.silent = w.trace.IntN(200) == 0 // a gateway does not report
	reports := [gateways]api.Report{}
	for g := range reports {
		reports[g] = api.Report{Gateway: fmt.Sprint("gateway-", g), UpMillis: w.now.Sub(epoch).Milliseconds() + 3_600_000, Replicas: map[string]int{}}
	}
	for _, s := range w.scaled {
		w.requests(s)
		s.report(&reports, w.now)
	}
	for g := range reports {
		if g == 0 && w.silent {
			continue
		}
		if _, err := w.ledger.Take("10.0.0.1", &reports[g]); err != nil {
			w.checks.broken("a report of %s is refused: %v", reports[g].Gateway, err)
		}
	}
	for _, s := range w.scaled {
		w.decide(s)
	}
}

// requests come by a day of an hour and by bursts, and go to the replica with
// the fewest.
func (w *world) requests(s *scaled) {
	rng := w.trace
	if rng.IntN(2000) == 0 {
		s.burst = w.now.Add(3 * time.Minute)
	}
	rate := s.peak * max(0, math.Sin(2*math.Pi*w.now.Sub(epoch).Hours()+s.phase))
	if w.now.Before(s.burst) {
		rate = 5*rate + 0.2
	}
	for n := rng.Float64(); n < rate*lookEvery.Seconds(); n++ {
		s.queued = append(s.queued, w.now)
		s.begun++
		w.counts["requests"]++
	}
	serving, left := []types.UID{}, s.running
	s.running = map[types.UID]int{}
	for _, r := range w.replicas {
		if string(s.UID) != r.Spec.DeploymentRef.UID || r.gone {
			continue
		}
		s.running[r.UID] = left[r.UID]
		delete(left, r.UID)
		for range s.running[r.UID] { // those that end, of those that run; draining ones go on
			if m := w.byName[r.Spec.NodeName]; m != nil && m.alive && rng.Float64() < lookEvery.Seconds()/answerTime.Seconds() {
				s.running[r.UID]--
			}
		}
		if readyReplica(r) {
			serving = append(serving, r.UID)
		}
	}
	for _, n := range left { // of replicas that are gone: their clients ask again
		for range n {
			s.queued = append(s.queued, w.now)
		}
	}
	s.ready = len(serving)
	for len(s.queued) > 0 && len(serving) > 0 {
		least := slices.MinFunc(serving, func(a, b types.UID) int { return s.running[a] - s.running[b] })
		if s.running[least] >= slots {
			break
		}
		w.waited = max(w.waited, w.now.Sub(s.queued[0]))
		s.running[least]++
		s.queued = s.queued[1:]
	}
}

// report adds what each gateway counts: requests arrive at both in turn.
func (s *scaled) report(reports *[gateways]api.Report, now time.Time) {
	for g := range reports {
		m := api.Model{Namespace: s.Namespace, Name: s.Name, Begun: (s.begun + uint64(g)) / gateways}
		for uid, n := range s.running {
			if part := (n + g) / gateways; part > 0 {
				m.Running += part
				reports[g].Replicas[string(uid)] = part
			}
		}
		if m.Waiting = (len(s.queued) + g) / gateways; m.Waiting > 0 {
			m.OldestMillis = now.Sub(s.queued[0]).Milliseconds()
		}
		reports[g].Models = append(reports[g].Models, m)
	}
}

// decide does what the autoscaler's reconciler would.
func (w *world) decide(s *scaled) {
	var own []v1alpha1.ModelReplica
	for _, r := range w.replicas {
		if r.Spec.DeploymentRef.UID == string(s.UID) && !r.gone {
			own = append(own, r.ModelReplica)
		}
	}
	key := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	f := w.ledger.Of(key)
	whole, _ := w.ledger.Whole(gateways)
	before := s.memory
	d := scale.Decide(autoscaler.Policy(&s.ModelDeployment), s.memory, scale.Figures{Requests: f.Running + f.Waiting, Waiting: f.Waiting, Oldest: f.Oldest,
		Asked: !f.Asked.IsZero() && !f.Asked.Before(s.memory.Seen), Complete: whole},
		autoscaler.Replicas(&s.ModelDeployment, own, w.ledger.Busy), w.now)
	s.memory = d.Memory
	w.checks.scaled(s, before, d, own, whole)
	written := autoscaler.Record(d, 0, w.now)
	s.Status.Autoscaling = &written
	if before.Decided && before.Desired != d.Desired {
		w.counts["scaled for "+d.Reason]++
		w.logf("%s/%s scales from %d to %d (%s): %s", s.Namespace, s.Name, before.Desired, d.Desired, d.Reason, d.Message)
	}
	if len(d.Remove) > 0 || before.Desired != d.Desired {
		w.due()
	}
}

// scaled wants a decision to remove no replica that runs requests, and none
// while the figures are incomplete.
func (c *checks) scaled(s *scaled, before scale.Memory, d scale.Decision, own []v1alpha1.ModelReplica, whole bool) {
	for _, uid := range d.Remove {
		i := slices.IndexFunc(own, func(r v1alpha1.ModelReplica) bool { return string(r.UID) == uid })
		if i < 0 || own[i].Spec.NodeName == "" {
			continue
		}
		if n := s.running[own[i].UID]; n > 0 {
			c.broken("%s is to go and runs %d requests", own[i].Name, n)
		}
		if !whole {
			c.broken("%s is to go though a gateway was silent", own[i].Name)
		}
	}
	if least, most := int(*s.Spec.Autoscaling.MinReplicas), int(s.Spec.Autoscaling.MaxReplicas); d.Desired < least || d.Desired > max(most, before.Desired) {
		c.broken("%s/%s is to have %d replicas, from %d to %d are allowed", s.Namespace, s.Name, d.Desired, least, most)
	}
	if before.Decided && d.Desired < before.Desired && before.Desired-d.Desired > max(1, before.Desired/2+1) {
		c.broken("%s/%s is scaled from %d to %d at once", s.Namespace, s.Name, before.Desired, d.Desired)
	}
}

// restart restarts the operator: it knows what it wrote to status, and has heard
// from no gateway.
func (w *world) restart() {
	w.counts["restarts of the operator"]++
	w.logf("the operator restarts")
	w.ledger = demand.NewLedger(func() time.Time { return w.now })
	w.ledger.Listen()
	for _, s := range w.scaled {
		s.memory = autoscaler.Recall(s.Status.Autoscaling)
	}
}
