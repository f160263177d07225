//go:build !race

package fleet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestDeploymentsThatWaitForRoomLeaveTheirInspectionsToOthers: a Mac has room for 64 inspections, and
// in a full fleet as many deployments may wait for memory. What Macs found of their sources is known.
func TestDeploymentsThatWaitForRoomLeaveTheirInspectionsToOthers(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	for name, tc := range map[string]struct {
		scheme     string
		generation int64 // that was accepted
		want       bool
	}{
		"accepted":                    {scheme: "hf://owner/", generation: 3, want: true},
		"an earlier spec is accepted": {scheme: "hf://owner/", generation: 2},
		"each Mac has its own files":  {scheme: FileScheme, generation: 3},
	} {
		for _, namespaces := range []int{1, MaxInspections + 1} {
			var all []v1alpha1.ModelDeployment
			for i := range MaxInspections + 1 {
				d := deployment(fmt.Sprint("d-", i), fmt.Sprint(tc.scheme, "model-", i), time.Duration(1000-i)*time.Hour)
				d.Namespace, d.Generation = fmt.Sprint("team-", i%namespaces), 3
				if i < MaxInspections {
					d.Status.Conditions = []metav1.Condition{
						{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, ObservedGeneration: tc.generation},
						{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoRoom, ObservedGeneration: 3},
					}
				}
				all = append(all, d)
			}
			newest := all[MaxInspections].Spec.Model.Source
			got := Inspections("a", all, macs, nil)
			if asked := slices.ContainsFunc(got, func(in v1alpha1.Inspection) bool { return in.Source == newest }); asked != tc.want || len(got) != MaxInspections {
				t.Errorf("%s, %d namespaces: %d inspections, that of the newest source %v", name, namespaces, len(got), asked)
			}
		}
	}
}
