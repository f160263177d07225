//go:build !race

package explain

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

var now = time.Unix(1_800_000_000, 0)

// is a condition that began a minute ago.
func is(kind string, s metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: s, Reason: reason, Message: "the sentence of " + reason, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))}
}

func yes(kinds ...string) []metav1.Condition {
	var out []metav1.Condition
	for _, k := range kinds {
		out = append(out, is(k, metav1.ConditionTrue, k))
	}
	return out
}

func deployment(conditions ...metav1.Condition) *v1alpha1.ModelDeployment {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "m", Generation: 1}}
	d.Spec.Model.Source = "hf://o/n"
	d.Status.ObservedGeneration = 1
	d.Status.Conditions = conditions
	return d
}

func placed(name, mac string, conditions ...metav1.Condition) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	r.Spec.DeploymentRef.UID, r.Spec.NodeName = "m", mac
	r.Status.Conditions = conditions
	return r
}

func TestStages(t *testing.T) {
	accepted := is(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	on := func(last ...metav1.Condition) v1alpha1.ModelReplica {
		return placed("r", "a", append(yes(v1alpha1.ConditionPlaced), last...)...)
	}
	upTo := func(kinds []string, last metav1.Condition) v1alpha1.ModelReplica {
		return on(append(yes(kinds...), last)...)
	}
	const no, unknown = metav1.ConditionFalse, metav1.ConditionUnknown
	disk, room, loaded := v1alpha1.ConditionDownloaded, v1alpha1.ConditionAdmitted, v1alpha1.ConditionLoaded
	loading := upTo([]string{disk, room}, is(loaded, no, v1alpha1.ReasonLoading))
	loading.Status.Progress.BytesTotal, loading.Status.Summary.Progress = 9, "Loading 44%"
	old := deployment(accepted)
	old.Generation = 2
	zero := deployment(accepted, is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonScaledToZero))
	zero.Spec.Replicas = ptr.To[int32](0)
	suspended := deployment(accepted, is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSuspended))
	suspended.Spec.Suspend = true
	going := deployment(accepted)
	going.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
	serving := deployment(accepted, is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady))
	two := deployment(accepted)
	two.Spec.Replicas = ptr.To[int32](2)
	for name, tc := range map[string]struct {
		d        *v1alpha1.ModelDeployment
		replicas []v1alpha1.ModelReplica
		stage    Stage
		reason   string // of the holdup; empty: there is none
		of       string
	}{
		"the operator never looked":   {d: deployment(), replicas: nil, stage: StageOperator, reason: v1alpha1.ReasonPending, of: ""},
		"it looked at an older state": {d: old, replicas: nil, stage: StageOperator, reason: v1alpha1.ReasonPending, of: ""},
		"the source is looked at":     {d: deployment(is(v1alpha1.ConditionAccepted, unknown, v1alpha1.ReasonInspecting)), replicas: nil, stage: StageSource, reason: v1alpha1.ReasonInspecting, of: ""},
		"the source is refused":       {d: deployment(is(v1alpha1.ConditionAccepted, no, v1alpha1.ReasonSourceNotFound)), replicas: nil, stage: StageSource, reason: v1alpha1.ReasonSourceNotFound, of: ""},
		"has not created a replica":   {d: deployment(accepted), replicas: nil, stage: StageReplicas, reason: v1alpha1.ReasonPending, of: ""},
		"no Mac has room":             {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{placed("r", "", is(v1alpha1.ConditionPlaced, no, v1alpha1.ReasonNoRoom))}, stage: StagePlacement, reason: v1alpha1.ReasonNoRoom, of: "r"},
		"placement has not evaluated": {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{placed("r", "")}, stage: StagePlacement, reason: v1alpha1.ReasonPending, of: "r"},
		"its Mac is silent":           {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{on(is(v1alpha1.ConditionReady, no, v1alpha1.ReasonMacSilent))}, stage: StageMac, reason: v1alpha1.ReasonMacSilent, of: "r"},
		"its Mac took no order":       {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{on()}, stage: StageDownload, reason: v1alpha1.ReasonPending, of: "r"},
		"the disk is full":            {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{on(is(disk, no, v1alpha1.ReasonDiskFull))}, stage: StageDownload, reason: v1alpha1.ReasonDiskFull, of: "r"},
		"the ledger refuses":          {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{upTo([]string{disk}, is(room, no, v1alpha1.ReasonInsufficientRoom))}, stage: StageMemory, reason: v1alpha1.ReasonInsufficientRoom, of: "r"},
		"it loads":                    {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{loading}, stage: StageLoad, reason: v1alpha1.ReasonLoading, of: "r"},
		"it crashed":                  {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{upTo([]string{disk, room}, is(loaded, no, v1alpha1.ReasonEngineCrashed))}, stage: StageLoad, reason: v1alpha1.ReasonEngineCrashed, of: "r"},
		"it does not answer yet":      {d: deployment(accepted), replicas: []v1alpha1.ModelReplica{on(yes(disk, room, loaded)...)}, stage: StageStart, reason: v1alpha1.ReasonPending, of: "r"},
		"it serves":                   {d: serving, replicas: []v1alpha1.ModelReplica{on(yes(disk, room, loaded, v1alpha1.ConditionServing, v1alpha1.ConditionReady)...)}, stage: StageServing, reason: "", of: ""},
		"a quota, and there is none":  {d: deployment(accepted, is(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonCreateFailed)), replicas: nil, stage: StageReplicas, reason: v1alpha1.ReasonCreateFailed, of: ""},
		"a rollout is halted": {d: deployment(accepted, is(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonHalted)),
			replicas: []v1alpha1.ModelReplica{on(yes(v1alpha1.ConditionReady)...)}, stage: StageServing, reason: v1alpha1.ReasonHalted, of: ""},
		"on demand":                   {d: deployment(accepted, is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonOnDemand)), replicas: nil, stage: StageOnDemand, reason: "", of: ""},
		"suspended":                   {d: suspended, replicas: nil, stage: StageSuspended, reason: "", of: ""},
		"scaled to zero":              {d: zero, replicas: nil, stage: StageZero, reason: "", of: ""},
		"being deleted":               {d: going, replicas: []v1alpha1.ModelReplica{on()}, stage: StageDraining, reason: v1alpha1.ReasonDraining, of: ""},
		"the least advanced is shown": {d: two, replicas: []v1alpha1.ModelReplica{loading, placed("s", "", is(v1alpha1.ConditionPlaced, no, v1alpha1.ReasonNoRoom))}, stage: StagePlacement, reason: v1alpha1.ReasonNoRoom, of: "s"},
	} {
		t.Run(name, func(t *testing.T) {
			s := Deployment(tc.d, World{Now: now, Replicas: tc.replicas})
			if s.Stage != tc.stage || (s.Holdup == nil) != (tc.reason == "") {
				t.Fatalf("stage %q, want %q; holdup %+v", s.Stage, tc.stage, s.Holdup)
			}
			if h := s.Holdup; h != nil && (h.Reason != tc.reason || h.Of != tc.of || h.Message == "" || h.Next == "" && h.Meaning == "") {
				t.Errorf("holdup %+v, want the reason %s of %q, with what it means", h, tc.reason, tc.of)
			}
			var b strings.Builder
			if err := s.Draw(&b, now, false); err != nil || !strings.HasPrefix(b.String(), "ns/m is ") {
				t.Errorf("drawn as %q, %v", b.String(), err)
			}
		})
	}
}

func TestEveryMacSaysWhatItFound(t *testing.T) {
	d := deployment(is(v1alpha1.ConditionAccepted, metav1.ConditionUnknown, v1alpha1.ReasonInspecting))
	d.Spec.Model.Source = "file://m.gguf"
	d.Spec.Placement.Chips = []string{"M2Ultra"}
	id := fleet.InspectionID(d)
	mac := func(name, chip string, ready metav1.ConditionStatus, found ...v1alpha1.InspectionStatus) v1alpha1.MacNode {
		m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Status.Chip, m.Status.Inspections = chip, found
		m.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, ready, v1alpha1.ReasonReporting)}
		return m
	}
	yes, no := metav1.ConditionTrue, metav1.ConditionUnknown
	s := Deployment(d, World{Now: now, Macs: []v1alpha1.MacNode{
		mac("a", "M2Ultra", yes, v1alpha1.InspectionStatus{ID: id, State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceNotFound, Message: "no such file"}),
		mac("b", "M2Ultra", yes, v1alpha1.InspectionStatus{ID: id, State: v1alpha1.InspectionRunning}), mac("c", "M2Ultra", yes),
		mac("d", "M1", yes), mac("e", "M2Ultra", no), mac("f", "M2Ultra", yes, v1alpha1.InspectionStatus{ID: id, State: v1alpha1.InspectionResolved}),
	}})
	var got []string
	for _, m := range s.Macs {
		got = append(got, m.Name+" "+m.Verdict)
	}
	want := "a SourceNotFound: no such file; b inspecting; c requested, not started yet; d with another chip; e not ready; f found the model"
	if strings.Join(got, "; ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "; "), want)
	}
}

func TestWhoIsMissingOfARoutingIsNoted(t *testing.T) {
	ready := is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	accepted := is(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	for status, want := range map[metav1.ConditionStatus]int{metav1.ConditionTrue: 0, metav1.ConditionFalse: 1} {
		s := Deployment(deployment(accepted, ready, is(v1alpha1.ConditionRouted, status, v1alpha1.ReasonTargetNotFound)), World{Now: now})
		if len(s.Notes) != want || want == 1 && !strings.Contains(s.Notes[0], "the sentence of TargetNotFound") {
			t.Errorf("Routed %s: notes %q", status, s.Notes)
		}
	}
}
