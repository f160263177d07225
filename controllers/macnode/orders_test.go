package macnode

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Without them an otherwise empty spec would become null, which the API server rejects.
func TestEmptyOrdersNameBothLists(t *testing.T) {
	c, err := orders{}.configure(&v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mini", UID: "u"}}, "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(c)
	want := `{"kind":"MacAssignment","apiVersion":"metalfleet.dev/v1alpha1","metadata":{"name":"mini","uid":"a",` +
		`"ownerReferences":[{"apiVersion":"metalfleet.dev/v1alpha1","kind":"MacNode","name":"mini","uid":"u","controller":true,"blockOwnerDeletion":false}]},"spec":{"assignments":[],"inspections":[]}}`
	if err != nil || string(b) != want {
		t.Errorf("%s (%v), want %s", b, err, want)
	}
}

// In a large fleet, a new deployment triggers a few Macs, not all.
func TestADeploymentConcernsFewMacs(t *testing.T) {
	hub := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hub"}}
	hub.Spec.Model.Source = "hf://org/model"
	local := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "local"}}
	local.Spec.Model.Source = "file://model"
	var all []client.Object
	for i := range 40 {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mac-%02d", i)}}
		m.Status.Chip = "M2Ultra"
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
		if i == 7 { // asked before another one became ready
			all = append(all, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: m.Name}, Spec: v1alpha1.MacAssignmentSpec{
				Inspections: []v1alpha1.Inspection{{ID: fleet.InspectionID(hub)}}}})
		}
		all = append(all, m)
	}
	holds := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hub-0"}, Spec: v1alpha1.ModelReplicaSpec{
		DeploymentRef: v1alpha1.DeploymentReference{Name: "hub"}, NodeName: "mac-11", Desired: v1alpha1.DesiredRunning, Epoch: 1}}
	others := holds.DeepCopy()
	others.Name, others.Spec.DeploymentRef.Name, others.Spec.NodeName = "else-0", "else", "mac-12"
	r := &Orders{Client: objects(t, append(all, hub, local, holds, others)...)}

	names := func(d *v1alpha1.ModelDeployment) (out []string) {
		for _, q := range r.concerned(t.Context(), d) {
			out = append(out, q.Name)
		}
		slices.Sort(out)
		return out
	}
	got := names(hub)
	if len(got) != 4 || !slices.Contains(got, "mac-07") || !slices.Contains(got, "mac-11") {
		t.Errorf("a deployment of a hub concerns %v, want the two Macs that are asked, mac-07 that was, and mac-11 that holds a replica", got)
	}
	if got := names(local); len(got) != 40 {
		t.Errorf("a deployment of files of Macs concerns %d Macs, want all 40: each has files of its own", len(got))
	}
	if got := r.peers(t.Context(), all[3]); len(got) != 3 {
		t.Errorf("a Mac that changed concerns %v, want the two that are asked for the hub's model, and the one that was", got)
	}
	reporter := all[3].(*v1alpha1.MacNode).DeepCopy()
	if got := r.inspectors(t.Context(), reporter); len(got) != 0 {
		t.Errorf("a Mac that reports nothing concerns %v", got)
	}
	reporter.Status.Inspections = []v1alpha1.InspectionStatus{{ID: fleet.InspectionID(hub), State: v1alpha1.InspectionFailed}}
	if got := r.inspectors(t.Context(), reporter); len(got) != 3 {
		t.Errorf("a report about the hub's model concerns %v, want the two that are asked, and the one that was", got)
	}
}
