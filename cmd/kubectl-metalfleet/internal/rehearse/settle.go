package rehearse

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/modeldeployment"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// stage is the fleet during the rehearsal: the resources of others, and the
// replicas of this deployment.
type stage struct {
	macs   []v1alpha1.MacNode
	others []v1alpha1.ModelReplica
	own    []v1alpha1.ModelReplica
	now    time.Time
	rules  plan.Rules
	// asks returns the id of the inspection that a replica's deployment asks for.
	asks func(*v1alpha1.ModelReplica) string
	// preempted are those of others that give their room.
	preempted []string
	// revision that all of them are to have.
	revision string
	// filesUnknown: the record is of local headers, so that it is not known which
	// Macs hold the files.
	filesUnknown bool
	// swapped are the old replicas of this deployment that gave their room.
	swapped []string
	// last decision of each replica that is to be placed.
	last map[string]plan.Decision
}

// settle lets the reconciler and placement take turns until neither changes
// anything: a replica that has a Mac is taken to become ready there, one that
// is removed to be released.
func (a *Answer) settle(w World, q Question, r modeldeployment.Rehearsal, o modeldeployment.Outcome) error {
	st := &stage{macs: w.Macs, now: w.Now, rules: w.Rules, asks: plan.AskedBy(slices.Concat(w.Deployments, []v1alpha1.ModelDeployment{*q.Deployment})...), revision: o.Revision, filesUnknown: o.Engine.Model.Digest == "", last: map[string]plan.Decision{}}
	stays := map[string]bool{}
	for _, x := range w.Replicas {
		switch {
		case x.Spec.DeploymentRef.UID == string(q.Deployment.UID) && x.DeletionTimestamp.IsZero():
			stays[x.Name] = true
			st.own = append(st.own, x)
		default:
			st.others = append(st.others, x)
		}
	}
	for changed := true; changed; {
		step, err := r.Step(o, st.own)
		if err != nil {
			return err
		}
		st.own = append(st.own, step.Create...)
		changed = st.place(step.Swap) || len(step.Create) > 0
		for _, name := range append(names(step.Remove), st.swapped...) {
			st.own = slices.DeleteFunc(st.own, func(x v1alpha1.ModelReplica) bool { return x.Name == name })
			if stays[name] {
				delete(stays, name)
				a.Removed = append(a.Removed, name)
				changed = true
			}
		}
		st.told(a)
	}
	a.conclude(st, stays, q)
	return nil
}

// names are taken before the slice that the replicas point into is cut.
func names(replicas []*v1alpha1.ModelReplica) []string {
	var out []string
	for _, r := range replicas {
		out = append(out, r.Name)
	}
	return out
}

// told notes that some replicas gave their room to others of the new revision.
func (st *stage) told(a *Answer) {
	if len(st.swapped) > 0 {
		a.Swaps += len(st.swapped)
		st.swapped = nil
	}
}

// place gives every replica of the revision a Mac that can have one; swap may
// have the room of an old one.
func (st *stage) place(swap types.UID) (changed bool) {
	for i := range st.own {
		r := &st.own[i]
		if r.Spec.NodeName != "" || r.Spec.Revision != st.revision {
			continue
		}
		r.Spec.Swap = swap != "" && r.UID == swap
		before := st.last[r.Name].Reason
		asked := st.patient(r)
		d := st.snapshot().Pick(&asked)
		st.last[r.Name] = d
		if d.Reason == v1alpha1.ReasonPrefetching {
			st.fetch(&asked, d.Prefetch)
			d = st.snapshot().Pick(&asked)
			st.last[r.Name] = d
		}
		if d.Awaits != "" && st.evict(&asked, d) {
			d = st.snapshot().Pick(&asked)
			st.last[r.Name] = d
		}
		if d.Mac == "" {
			meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: d.Reason})
			changed = changed || d.Reason == v1alpha1.ReasonNoRoom && before != d.Reason
			continue
		}
		r.Spec.NodeName = d.Mac
		becomeReady(r)
		changed = true
	}
	return changed
}

func (st *stage) snapshot() *plan.Snapshot {
	return plan.NewSnapshot(st.macs, slices.Concat(st.others, st.own), st.now).Under(st.rules).Asking(st.asks)
}

// fetch has the weights of a replica lie on a Mac.
func (st *stage) fetch(r *v1alpha1.ModelReplica, mac string) {
	st.macs = slices.Clone(st.macs)
	for i := range st.macs {
		if m := &st.macs[i]; m.Name == mac {
			for _, part := range r.Spec.Model.Parts() {
				m.Status.Weights = append(slices.Clone(m.Status.Weights), v1alpha1.StoredWeights{Digest: part.Digest, Bytes: part.Bytes()})
				m.Status.Disk.FreeBytes -= part.Bytes()
			}
		}
	}
}

// evict has those of a lower priority that drain on a Mac, or would, be gone.
func (st *stage) evict(r *v1alpha1.ModelReplica, d plan.Decision) (changed bool) {
	goes := func(x v1alpha1.ModelReplica) bool {
		return x.Spec.NodeName == d.Awaits && x.Spec.Priority.Value < r.Spec.Priority.Value && (!x.DeletionTimestamp.IsZero() ||
			slices.ContainsFunc(d.Victims, func(v *v1alpha1.ModelReplica) bool { return v.UID == x.UID }))
	}
	for _, x := range st.others {
		if goes(x) && x.DeletionTimestamp.IsZero() {
			st.preempted = append(st.preempted, x.Namespace+"/"+x.Name)
		}
	}
	before := len(st.others)
	st.others = slices.DeleteFunc(slices.Clone(st.others), goes)
	for i := range st.own {
		if x := &st.own[i]; slices.ContainsFunc(d.Victims, func(v *v1alpha1.ModelReplica) bool { return v.UID == x.UID }) {
			st.swapped = append(st.swapped, x.Name)
			x.Spec.NodeName = "" // released
		}
	}
	return len(st.others) < before || len(st.swapped) > 0
}

// patient is a replica as placement sees it in the end: it waited long enough
// for Macs that still look for the files.
func (st *stage) patient(r *v1alpha1.ModelReplica) v1alpha1.ModelReplica {
	asked := *r.DeepCopy()
	asked.CreationTimestamp = metav1.NewTime(st.now.Add(-time.Hour))
	if st.filesUnknown && strings.HasPrefix(asked.Spec.Model.Source, fleet.FileScheme) {
		asked.Spec.Model.Source = "" // which Macs hold the files is another question
	}
	return asked
}

// conclude writes what came out.
func (a *Answer) conclude(st *stage, stays map[string]bool, q Question) {
	slices.SortFunc(st.own, func(x, y v1alpha1.ModelReplica) int {
		return cmp.Or(cmp.Compare(x.Spec.Slot, y.Spec.Slot), cmp.Compare(x.Name, y.Name))
	})
	a.Verdict = Fits
	for i := range st.own {
		r := &st.own[i]
		out := Replica{Name: r.Name, Slot: r.Spec.Slot, Mac: r.Spec.NodeName, Stays: stays[r.Name], Reason: v1alpha1.ReasonPlaced}
		if d, judged := st.last[r.Name]; judged {
			out.Reason, out.Message = d.Reason, d.Message
		}
		if out.Mac == "" && a.Verdict == Fits {
			a.Verdict, a.Reason, a.Message = DoesNotFit, out.Reason, out.Message
			asked := st.patient(r)
			a.Macs = macs(st.snapshot(), &asked)
		}
		a.Replicas = append(a.Replicas, out)
	}
	a.Preempted = st.preempted
	a.remark(st, q)
}

func (a *Answer) remark(st *stage, q Question) {
	if q.Deployment.Spec.Suspend {
		a.Notes = append(a.Notes, "spec.suspend is true: no model would be loaded")
	} else if scaledToZero(q.Deployment) {
		a.Notes = append(a.Notes, "spec.replicas is 0: no model would be loaded")
	}
	if st.filesUnknown && strings.HasPrefix(q.Deployment.Spec.Model.Resolved().Source, fleet.FileScheme) {
		a.Notes = append(a.Notes, "which Macs have the files is unknown before they inspect the source: only memory, labels, taints and chips were evaluated")
	}
	if len(st.preempted) > 0 {
		a.Notes = append(a.Notes, "replicas with a lower priority would be preempted: "+strings.Join(st.preempted, ", "))
	}
	if q.Facts != nil && !st.filesUnknown {
		a.Notes = append(a.Notes, "--model was not needed: the fleet already knows this source")
	}
	if a.Swaps > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("no Mac has room alongside the old revision: %d of its replicas would be replaced one at a time, and requests would wait meanwhile", a.Swaps))
	}
	left := 0
	for i := range st.own {
		if st.own[i].Spec.Revision != st.revision {
			left++
		}
	}
	if a.Verdict == DoesNotFit && left > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%d replicas of the old revision would continue to serve; set rollout.onInsufficientMemory to Swap to replace them in place, one at a time", left))
	}
}
