package sim

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/modeldeployment"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// deployment is a deployment with what its source resolved to.
type deployment struct {
	v1alpha1.ModelDeployment
	priority v1alpha1.Priority
	record   model.Record
	outcome  *modeldeployment.Outcome // of its spec as it is
	// revisions that there are, and those whose engines generate no token.
	revisions []appsv1.ControllerRevision
	bad       map[string]bool
	// spoilt: the engine that its spec names is one of those.
	spoilt bool
	// tolerated is how long its replicas stay on a tainted Mac.
	tolerated time.Duration
}

// keep makes the revision of its outcome the newest.
func (d *deployment) keep(w *world) {
	name := d.outcome.Revision
	data, err := d.outcome.Engine.Encode()
	if err != nil {
		w.checks.broken("revision %s: %v", name, err)
		return
	}
	d.revisions = slices.DeleteFunc(d.revisions, func(r appsv1.ControllerRevision) bool { return r.Name == name })
	r := appsv1.ControllerRevision{Revision: w.number()}
	r.Name, r.Data.Raw = name, data
	d.revisions = append(d.revisions, r)
	if d.bad == nil {
		d.bad = map[string]bool{}
	}
	d.bad[name] = d.spoilt
}

func byName(a, b *replica) int { return cmp.Compare(a.Name, b.Name) }

func mapKeys[K comparable, V any](m map[K]V) iter.Seq[K] { return maps.Keys(m) }

func readyReplica(r *replica) bool { return fleet.ReplicaReady(&r.ModelReplica) }

// due has the operator look soon; several reasons are one pass.
func (w *world) due() {
	if !w.pending {
		w.pending = true
		w.in(200*time.Millisecond, w.pass)
	}
}

// pass is one of the operator's: deployments first, then placement.
func (w *world) pass() {
	w.pending = false
	w.counts["passes"]++
	own := map[string][]v1alpha1.ModelReplica{}
	for _, r := range w.replicas {
		own[r.Spec.DeploymentRef.UID] = append(own[r.Spec.DeploymentRef.UID], r.ModelReplica)
	}
	for _, d := range w.deployments {
		w.reconcile(d, own[string(d.UID)])
	}
	w.evict()
	w.place()
	w.sweep()
}

// reconcile does what the deployment's reconciler would.
func (w *world) reconcile(d *deployment, own []v1alpha1.ModelReplica) {
	rehearsal := modeldeployment.Rehearsal{Now: w.now, Deployment: &d.ModelDeployment, Record: &d.record, Revisions: d.revisions}
	if d.outcome == nil {
		o, err := rehearsal.Accept()
		if err != nil || o.Engine == nil {
			w.checks.broken("deployment %s is not accepted: %s %v", d.Name, o.Message, err)
			return
		}
		d.outcome = &o
		d.keep(w)
		rehearsal.Revisions = d.revisions
	}
	step, err := rehearsal.Step(*d.outcome, own)
	if err != nil {
		w.checks.broken("deployment %s: %v", d.Name, err)
		return
	}
	if before := d.Status.Rollout.State; before != step.Status.Rollout.State {
		w.counts["rollouts "+string(step.Status.Rollout.State)]++
		w.logf("%s/%s: %s, was %s", d.Namespace, d.Name, step.Status.Rollout.State, before)
	}
	decided := d.Status.Autoscaling // another's field
	d.Status = step.Status
	d.Status.Autoscaling = decided
	for _, x := range own {
		if r := w.find(x.UID); r != nil && r.Spec.NodeName == "" && r.Spec.Swap != (r.UID == step.Swap) {
			r.Spec.Swap = r.UID == step.Swap
			w.due()
		}
	}
	for i := range step.Create {
		r := &replica{ModelReplica: step.Create[i], bad: d.bad[step.Create[i].Spec.Revision]}
		r.UID, r.Spec.Priority = types.UID(fmt.Sprintf("uid-%09d", w.number())), d.priority
		w.replicas = append(w.replicas, r)
		w.counts["replicas made"]++
	}
	for _, old := range step.Remove {
		if r := w.find(old.UID); r != nil {
			w.checks.replaced(r)
			w.remove(r)
		}
	}
	w.checks.rollout(d)
	if len(step.Create)+len(step.Remove) > 0 {
		w.due() // level, not edge: what this changed may ask for more
	}
}

func (w *world) find(uid types.UID) *replica {
	for _, r := range w.replicas {
		if r.UID == uid {
			return r
		}
	}
	return nil
}

// place does what placement's reconciler would.
func (w *world) place() {
	macs := make([]v1alpha1.MacNode, 0, len(w.macs))
	for _, m := range w.macs {
		macs = append(macs, m.node)
	}
	all := make([]v1alpha1.ModelReplica, 0, len(w.replicas))
	var open []*v1alpha1.ModelReplica
	for _, r := range w.replicas {
		all = append(all, r.ModelReplica)
		if r.Spec.NodeName == "" && r.DeletionTimestamp.IsZero() {
			open = append(open, &r.ModelReplica)
		}
	}
	s := plan.NewSnapshot(macs, all, w.now).Under(w.rules)
	plan.Sort(open)
	for _, o := range open {
		r := w.find(o.UID)
		d := s.Pick(&r.ModelReplica)
		w.counts["decisions "+d.Reason]++
		placed := metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: d.Reason}
		if d.Mac != "" {
			placed.Status = metav1.ConditionTrue
		}
		if meta.SetStatusCondition(&r.Status.Conditions, placed) {
			w.due() // its deployment looks at what became of it
		}
		switch {
		case d.Mac != "":
			s.Assume(&r.ModelReplica, d.Mac)
			w.bind(r, w.byName[d.Mac])
		case d.Awaits != "":
			s.Claim(&r.ModelReplica, d)
			for _, v := range d.Victims {
				victim := w.find(v.UID)
				w.checks.victim(r, victim, w.byName[d.Awaits])
				w.logf("%s (priority %d) takes the room of %s (%d) on %s", r.Name, r.Spec.Priority.Value, victim.Name, victim.Spec.Priority.Value, d.Awaits)
				w.remove(victim)
			}
		}
		if d.Mac == "" {
			ahead := d.FetchesOn(&r.ModelReplica)
			if ahead != r.Spec.PrefetchNodeName { // else it is counted
				s.FetchAhead(&r.ModelReplica, ahead)
			}
			w.ahead(r, ahead)
		}
		if d.RetryAfter > 0 {
			w.in(d.RetryAfter, w.due)
		}
	}
}

// ahead has a Mac fetch the weights of a replica that is to swap there, or stop.
func (w *world) ahead(r *replica, mac string) {
	if r.Spec.PrefetchNodeName == mac {
		return
	}
	r.Spec.PrefetchNodeName = mac
	m := w.byName[mac]
	if m == nil || fleet.HasWeights(&m.node, r.Spec.Model.Digest) {
		return
	}
	w.counts["weights ordered ahead"]++
	var arrive func()
	arrive = func() {
		switch {
		case r.gone || r.Spec.NodeName != "" || !r.DeletionTimestamp.IsZero() || r.Spec.PrefetchNodeName != mac:
			w.counts["weights ahead let go"]++
		case !m.alive:
			w.in(10*time.Second, arrive)
		default:
			m.arrive(r)
			w.due()
		}
	}
	w.in(r.fetchTime(), arrive)
}

func (r *replica) fetchTime() time.Duration {
	return time.Duration(float64(r.Spec.Model.Bytes()) / 500e6 * float64(time.Second))
}

// arrive has the weights of a replica lie on a Mac's disk.
func (m *mac) arrive(r *replica) {
	if !fleet.HasWeights(&m.node, r.Spec.Model.Digest) {
		m.node.Status.Weights = append(m.node.Status.Weights, v1alpha1.StoredWeights{Digest: r.Spec.Model.Digest, Bytes: r.Spec.Model.Bytes()})
		m.node.Status.Disk.FreeBytes -= r.Spec.Model.Bytes()
	}
}

// bind gives a replica its Mac, which downloads and loads it.
func (w *world) bind(r *replica, m *mac) {
	r.Spec.NodeName, r.Spec.PrefetchNodeName = m.node.Name, ""
	w.checks.bound(r, m)
	w.counts["placed"]++
	load := time.Duration(float64(r.Spec.ReservedBytes) / 2e9 * float64(time.Second))
	fetch := time.Duration(0)
	if !fleet.HasWeights(&m.node, r.Spec.Model.Digest) {
		fetch = r.fetchTime()
	}
	w.when(fetch, m, r, func() {
		r.set(v1alpha1.ConditionDownloaded, v1alpha1.ReasonVerified)
		m.arrive(r)
		w.start(load, m, r)
	})
}

// start has a Mac start the engine of a replica: one that generates no token is
// started again after a while, as an agent does.
func (w *world) start(load time.Duration, m *mac, r *replica) {
	w.when(load, m, r, func() {
		w.due()
		if !r.bad {
			r.set(v1alpha1.ConditionReady, v1alpha1.ReasonReady)
			return
		}
		w.counts["canaries that fail"]++
		r.Status.Restarts++
		w.start(load+time.Minute, m, r)
	})
}

// when has a Mac do something for a replica after a while: later if the Mac is
// away, and not at all if the replica is removed.
func (w *world) when(d time.Duration, m *mac, r *replica, do func()) {
	w.in(d, func() {
		switch {
		case r.gone || !r.DeletionTimestamp.IsZero() || readyReason(r) == v1alpha1.ReasonMacGone:
		case !m.alive || fleet.StateOf(&m.node) != fleet.MacReady:
			w.when(10*time.Second, m, r, do)
		default:
			do()
		}
	})
}

func (r *replica) set(kind, reason string) {
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason})
}

// remove deletes a replica: its Mac drains it, or it is fenced.
func (w *world) remove(r *replica) {
	if !r.DeletionTimestamp.IsZero() {
		return
	}
	r.DeletionTimestamp = &metav1.Time{Time: w.now}
	m := w.byName[r.Spec.NodeName]
	if m == nil {
		r.gone = true
		return
	}
	w.checks.move(m, r)
	w.in(time.Duration(1+w.rng.IntN(120))*time.Second, func() { w.release(m, r) })
}

// release ends a drain; a Mac that does not answer is waited for until it is gone.
func (w *world) release(m *mac, r *replica) {
	switch {
	case r.gone:
		return
	case m.alive || fleet.StateOf(&m.node) == fleet.MacGone:
		delete(m.loaded, r)
		r.set(v1alpha1.ConditionReleased, v1alpha1.ReasonReleased)
		r.gone = true
		w.due()
	default:
		w.in(10*time.Second, func() { w.release(m, r) })
	}
}

// sweep drops removed objects.
func (w *world) sweep() {
	w.replicas = slices.DeleteFunc(w.replicas, func(r *replica) bool { return r.gone })
}

// lose is what follows from a Mac that is gone: its replicas say so, and their
// deployments make others.
func (w *world) lose(m *mac) {
	n := 0
	for _, r := range w.replicas {
		if r.Spec.NodeName == m.node.Name && !r.gone {
			meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMacGone})
			delete(m.loaded, r)
			n++
		}
	}
	w.logf("%s is gone with %d replicas", m.node.Name, n)
}
