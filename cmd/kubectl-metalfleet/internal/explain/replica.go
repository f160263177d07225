package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// replica returns the progress of one replica.
func replica(r *v1alpha1.ModelReplica) Replica {
	out := Replica{Name: r.Name, Mac: r.Spec.NodeName}
	out.Stage, out.Holdup = replicaStage(r)
	return out
}

func replicaStage(r *v1alpha1.ModelReplica) (Stage, *Holdup) {
	ready := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case !r.DeletionTimestamp.IsZero():
		h := &Holdup{Of: r.Name, Reason: v1alpha1.ReasonDraining, Message: "running requests finish, then the Mac releases the replica", Since: r.DeletionTimestamp}
		h.explain()
		return StageDraining, h
	case r.Spec.NodeName == "":
		return StagePlacement, of(r, v1alpha1.ConditionPlaced, "placement has not evaluated it yet")
	case ready != nil && (ready.Reason == v1alpha1.ReasonMacSilent || ready.Reason == v1alpha1.ReasonMacGone):
		return StageMac, holdup(r.Name, ready)
	case ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason == v1alpha1.ReasonOnDemand:
		return StageOnDemand, nil
	case ready != nil && ready.Status == metav1.ConditionTrue:
		return StageServing, nil
	}
	for _, step := range []struct {
		condition string
		stage     Stage
		silence   string
	}{
		{v1alpha1.ConditionDownloaded, StageDownload, "the Mac has not accepted the assignment yet"},
		{v1alpha1.ConditionAdmitted, StageMemory, "the Mac has not checked the memory yet"},
		{v1alpha1.ConditionLoaded, StageLoad, "the Mac has not started to load the model"},
		{v1alpha1.ConditionServing, StageStart, "the model is loaded, but the Mac does not report it as serving yet"},
	} {
		if !meta.IsStatusConditionTrue(r.Status.Conditions, step.condition) {
			return step.stage, withProgress(of(r, step.condition, step.silence), r)
		}
	}
	return StageStart, of(r, v1alpha1.ConditionReady, "the operator has not evaluated it yet")
}

// of is the holdup by one condition, or by its absence.
func of(r *v1alpha1.ModelReplica, condition, silence string) *Holdup {
	if c := meta.FindStatusCondition(r.Status.Conditions, condition); c != nil {
		return holdup(r.Name, c)
	}
	created := r.CreationTimestamp
	h := &Holdup{Of: r.Name, Reason: v1alpha1.ReasonPending, Message: silence, Since: &created}
	h.explain()
	return h
}

// withProgress adds the bytes of a download or a load.
func withProgress(h *Holdup, r *v1alpha1.ModelReplica) *Holdup {
	p := r.Status.Summary.Progress
	switch {
	case p == "" || r.Status.Progress.BytesTotal == 0:
	case h.Message == "":
		h.Message = p
	default:
		h.Message += " (" + p + ")"
	}
	return h
}

// inQuestion picks the replica whose Macs are listed: the one that delays the
// deployment, else the first.
func inQuestion(own []*v1alpha1.ModelReplica, h *Holdup) *v1alpha1.ModelReplica {
	if h != nil {
		if i := slices.IndexFunc(own, func(r *v1alpha1.ModelReplica) bool { return r.Name == h.Of }); i >= 0 {
			return own[i]
		}
	}
	return own[0]
}

// candidates asks placement's own filter about every Mac, as the fleet is now
// and as if the replica had none yet.
func candidates(d *v1alpha1.ModelDeployment, r *v1alpha1.ModelReplica, w World) (about string, macs []Mac) {
	others := slices.DeleteFunc(slices.Clone(w.Replicas), func(x v1alpha1.ModelReplica) bool { return x.UID == r.UID })
	snapshot := plan.NewSnapshot(w.Macs, others, w.Now).Asking(plan.AskedBy(*d))
	macs = []Mac{}
	for _, c := range snapshot.Candidates(r) {
		m := Mac{Name: c.Mac, Chosen: c.Mac == r.Spec.NodeName, Fits: c.Fits}
		switch {
		case m.Chosen && c.Fits:
			m.Verdict = "chosen; without this replica: " + c.Why
		case m.Chosen:
			m.Verdict = "chosen; now: " + c.Why
		case c.Fits && r.Spec.NodeName != "":
			m.Verdict = "could hold it as well; " + c.Why
		case c.Fits:
			m.Verdict = "can hold it; " + c.Why
		default:
			m.Verdict = c.Why
		}
		macs = append(macs, m)
	}
	return fmt.Sprintf("%s needs an estimated %s", r.Name, v1alpha1.FormatBytes(r.Spec.ReservedBytes)), macs
}

// looking returns what every Mac found at the source.
func looking(d *v1alpha1.ModelDeployment, w World) (about string, macs []Mac) {
	id := fleet.InspectionID(d)
	now := fleet.Inspectors{Now: func() time.Time { return w.Now }}
	asked := now.Asked(d, w.Macs)
	macs = []Mac{}
	for i := range w.Macs {
		mac := &w.Macs[i]
		isThis := func(m *v1alpha1.MacNode) bool { return m.Name == mac.Name }
		m := Mac{Name: mac.Name, Chosen: slices.ContainsFunc(asked, isThis)}
		why, eligible := fleet.Eligible(mac, d.Spec.Placement)
		switch {
		case !eligible:
			m.Verdict = why
		case fleet.StateOf(mac) != fleet.MacReady:
			m.Verdict = "not ready"
		case !m.Chosen:
			m.Verdict = "not needed: other Macs inspect the source"
		default:
			m.Verdict = found(mac, id)
		}
		macs = append(macs, m)
	}
	slices.SortFunc(macs, func(a, b Mac) int { return strings.Compare(a.Name, b.Name) })
	return "inspection of " + d.Spec.Model.Resolved().Source, macs
}

func found(mac *v1alpha1.MacNode, id string) string {
	for _, r := range mac.Status.Inspections {
		switch {
		case r.ID != id:
		case r.State == v1alpha1.InspectionResolved:
			return "found the model"
		case r.State == v1alpha1.InspectionFailed:
			return r.Reason + ": " + r.Message
		default:
			return "inspecting"
		}
	}
	return "requested, not started yet"
}
