// Package drain decides how a Mac is drained: which of its replicas may be
// deleted or evicted now, and what the others wait for.
//
// It owns the decision, as a pure function over API objects; the caller deletes
// or evicts replicas and asks again. The operator creates the successor of an
// evicted replica, placement puts it on another Mac, and the operator removes the
// evicted one once the successor serves.
//
// It deletes a replica that serves only where its deployment's
// rollout.maxUnavailable or the user allows that, and does not evict one that no
// other Mac can hold.
//
// Start reading at Drain.Next.
package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// World is what the API server holds.
type World struct {
	Now         time.Time
	Macs        []v1alpha1.MacNode
	Replicas    []v1alpha1.ModelReplica
	Deployments []v1alpha1.ModelDeployment
}

// Drain is the emptying of one Mac.
type Drain struct {
	// Mac that is emptied. It is cordoned.
	Mac string
	// AllowUnserved lets replicas go before their successors serve, and one that
	// no other Mac can hold.
	AllowUnserved bool
	// before is how many replicas of a deployment were ready when one of them
	// was first met here, by UID.
	before map[string]int
}

// Move is what is to be done now.
type Move struct {
	// Delete are the replicas to delete now.
	Delete []*v1alpha1.ModelReplica
	// Evict are the replicas to mark with v1alpha1.AnnotationEvict now.
	Evict []*v1alpha1.ModelReplica
	// Waits are the other reasons to wait, sorted.
	Waits []string
	// Stuck: no replica makes progress, and only a person can help; Waits explain
	// how.
	Stuck bool
	// Done: nothing is here any more, and what went is served elsewhere.
	Done bool
}

// pass is one call of Next.
type pass struct {
	*Drain
	w     World
	s     *plan.Snapshot
	ready map[string]int
	out   Move
	// moving: a replica makes progress by itself.
	moving bool
}

// Next decides on the world as it is.
func (d *Drain) Next(w World) Move {
	if d.before == nil {
		d.before = map[string]int{}
	}
	p := &pass{Drain: d, w: w, ready: readyOf(w.Replicas)}
	p.s = plan.NewSnapshot(without(w.Macs, d.Mac), w.Replicas, w.Now).Asking(plan.AskedBy(w.Deployments...))
	var here []*v1alpha1.ModelReplica
	for i := range w.Replicas {
		if w.Replicas[i].Spec.NodeName == d.Mac {
			here = append(here, &w.Replicas[i])
		}
	}
	slices.SortFunc(here, func(a, b *v1alpha1.ModelReplica) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, r := range here {
		if _, met := d.before[r.Spec.DeploymentRef.UID]; !met {
			d.before[r.Spec.DeploymentRef.UID] = p.ready[r.Spec.DeploymentRef.UID]
		}
	}
	for _, r := range here {
		p.consider(r)
	}
	p.successors()
	slices.Sort(p.out.Waits)
	p.out.Done = len(here) == 0 && !p.moving
	p.out.Stuck = !p.out.Done && !p.moving && len(p.out.Delete)+len(p.out.Evict) == 0
	return p.out
}

// readyOf counts the ready replicas of each deployment, by its UID.
func readyOf(replicas []v1alpha1.ModelReplica) map[string]int {
	out := map[string]int{}
	for i := range replicas {
		if fleet.ReplicaReady(&replicas[i]) {
			out[replicas[i].Spec.DeploymentRef.UID]++
		}
	}
	return out
}

// without are the Macs that a successor may go to.
func without(macs []v1alpha1.MacNode, name string) []v1alpha1.MacNode {
	return slices.DeleteFunc(slices.Clone(macs), func(m v1alpha1.MacNode) bool { return m.Name == name })
}

// consider decides on one replica of the Mac.
func (p *pass) consider(r *v1alpha1.ModelReplica) {
	name := r.Namespace + "/" + r.Name
	if !r.DeletionTimestamp.IsZero() {
		p.moving = true
		p.wait("%s is draining: running requests may continue for up to %d s, then its engine stops", name, r.Spec.DrainSeconds)
		return
	}
	deployment := p.deploymentOf(r)
	if deployment == nil || !deployment.DeletionTimestamp.IsZero() {
		p.moving = true
		p.wait("%s is being removed with its deployment", name)
		return
	}
	first := !p.mayGo(r, deployment)
	if first && r.Annotations[v1alpha1.AnnotationEvict] != "" {
		p.replaced(r, deployment)
		return
	}
	asked := *r.DeepCopy()
	asked.Spec.NodeName, asked.Spec.Avoid = "", nil
	decision := p.s.Pick(&asked)
	if decision.Mac == "" && !p.AllowUnserved {
		p.wait("%s stays, because no other Mac can hold it: %s; or remove it with --allow-unserved", name, decision.Message)
		return
	}
	p.s.Assume(&asked, decision.Mac)
	if first {
		p.moving = true
		p.out.Evict = append(p.out.Evict, r)
		return
	}
	if fleet.ReplicaReady(r) {
		p.ready[r.Spec.DeploymentRef.UID]--
	}
	p.moving = true
	p.out.Delete = append(p.out.Delete, r)
}

func (p *pass) deploymentOf(r *v1alpha1.ModelReplica) *v1alpha1.ModelDeployment {
	i := slices.IndexFunc(p.w.Deployments, func(d v1alpha1.ModelDeployment) bool { return string(d.UID) == r.Spec.DeploymentRef.UID })
	if i < 0 {
		return nil
	}
	return &p.w.Deployments[i]
}

// mayGo reports whether a replica may be removed before its successor serves: it serves nothing, its
// deployment's own budget allows it, or the user does while all that were ready before are.
func (p *pass) mayGo(r *v1alpha1.ModelReplica, d *v1alpha1.ModelDeployment) bool {
	if !fleet.ReplicaReady(r) || r.Spec.Residency.OnDemand() && !fleet.Loaded(r) {
		return true // it is unused; the next request loads its successor
	}
	uid := string(d.UID)
	wanted := int(fleet.Wanted(d))
	_, unavailable := d.Spec.Rollout.Bounds(wanted)
	return p.ready[uid]-1 >= wanted-unavailable || p.AllowUnserved && p.ready[uid] >= min(wanted, p.before[uid])
}

// replaced waits for the successor of an evicted replica, unless placement finds no Mac for it.
func (p *pass) replaced(r *v1alpha1.ModelReplica, d *v1alpha1.ModelDeployment) {
	waits := ""
	for i := range p.w.Replicas {
		x := &p.w.Replicas[i]
		if x.Spec.DeploymentRef.UID != string(d.UID) || !x.DeletionTimestamp.IsZero() || x.Spec.NodeName != "" || fleet.Prefetches(x) {
			continue
		}
		if placed := meta.FindStatusCondition(x.Status.Conditions, v1alpha1.ConditionPlaced); placed != nil && placed.Status == metav1.ConditionFalse {
			waits = placed.Message
		}
	}
	if waits != "" {
		p.wait("%s/%s stays, because its successor has no Mac: %s; free memory there, or remove it with --allow-unserved", r.Namespace, r.Name, waits)
		return
	}
	p.moving = true
	p.wait("%s/%s serves until its successor does%s", r.Namespace, r.Name, p.unready(d))
}

// successors are waited for: what was ready before is to be ready again.
func (p *pass) successors() {
	for i := range p.w.Deployments {
		d := &p.w.Deployments[i]
		before, touched := p.before[string(d.UID)]
		wanted := min(before, int(fleet.Wanted(d)))
		if !touched || !d.DeletionTimestamp.IsZero() || readyOf(p.w.Replicas)[string(d.UID)] >= wanted {
			continue
		}
		p.moving = true
		p.wait("%s/%s has %d of %d replicas ready%s", d.Namespace, d.Name, readyOf(p.w.Replicas)[string(d.UID)], wanted, p.unready(d))
	}
}

// unready explains why a replica is not ready yet.
func (p *pass) unready(d *v1alpha1.ModelDeployment) string {
	for i := range p.w.Replicas {
		r := &p.w.Replicas[i]
		if r.Spec.DeploymentRef.UID != string(d.UID) || !r.DeletionTimestamp.IsZero() || fleet.ReplicaReady(r) || fleet.Prefetches(r) {
			continue
		}
		if placed := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionPlaced); r.Spec.NodeName == "" && placed != nil {
			return fmt.Sprintf(": %s has no Mac (%s)", r.Name, placed.Message)
		}
		if ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			return fmt.Sprintf(": %s on %s (%s)", r.Name, r.Spec.NodeName, cmp.Or(r.Status.Summary.Progress, ready.Message))
		}
		return ": " + r.Name + " is starting"
	}
	return ""
}

func (p *pass) wait(format string, args ...any) {
	p.out.Waits = append(p.out.Waits, fmt.Sprintf(format, args...))
}
