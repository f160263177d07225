//go:build !race

package plan

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func revised(name string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.Revision = name }
}

func swaps(r *v1alpha1.ModelReplica) { r.Spec.Swap = true }

// It takes that of a replica of the same deployment, if there is no other room.
func TestASwapTakesTheRoomOfOneOldReplica(t *testing.T) {
	drains := func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &metav1.Time{Time: now} }
	old := func(name, mac string, change ...func(*v1alpha1.ModelReplica)) v1alpha1.ModelReplica {
		return replica(name, 9*gib, append([]func(*v1alpha1.ModelReplica){on(mac), of("d"), revised("old")}, change...)...)
	}
	two := []v1alpha1.MacNode{mac("a", 10*gib), mac("b", 10*gib)}
	type replicas = []v1alpha1.ModelReplica
	for name, tc := range map[string]struct {
		existing                replicas
		replica                 v1alpha1.ModelReplica
		awaits, victims, reason string
	}{
		"one is evicted, not serving before serving": {existing: replicas{old("s", "a", ready), old("t", "b")},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "b", victims: "t", reason: v1alpha1.ReasonSwapping},
		"no victim if it may not": {existing: replicas{old("s", "a"), old("t", "b")},
			replica: replica("r", 9*gib, of("d"), revised("new")), awaits: "", victims: "", reason: v1alpha1.ReasonNoRoom},
		"no victim of another deployment": {existing: replicas{replica("s", 9*gib, on("a"), of("e"), revised("old")), old("t", "b")},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "b", victims: "t", reason: v1alpha1.ReasonSwapping},
		"no victim of its own revision": {existing: replicas{replica("s", 9*gib, on("a"), of("d"), revised("new")), replica("t", 9*gib, on("b"), of("d"), revised("new"))},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "", victims: "", reason: v1alpha1.ReasonNoRoom},
		"no victim if there is room": {existing: replicas{old("s", "a")},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "", victims: "", reason: v1alpha1.ReasonPlaced},
		"no other victim while one drains": {existing: replicas{old("s", "a", drains), old("t", "b")},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "a", victims: "", reason: v1alpha1.ReasonSwapping},
		"of two on a Mac the one that does not serve": {existing: replicas{replica("s", 5*gib, on("a"), of("d"), revised("old"), ready), replica("t", 5*gib, on("a"), of("d"), revised("old")), replica("u", 9*gib, on("b"), of("e"))},
			replica: replica("r", 5*gib, of("d"), revised("new"), swaps), awaits: "a", victims: "t", reason: v1alpha1.ReasonSwapping},
		"never two": {existing: replicas{replica("s", 5*gib, on("a"), of("d"), revised("old")), replica("t", 5*gib, on("a"), of("d"), revised("old")), replica("u", 9*gib, on("b"), of("e"))},
			replica: replica("r", 9*gib, of("d"), revised("new"), swaps), awaits: "", victims: "", reason: v1alpha1.ReasonNoRoom},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewSnapshot(two, tc.existing, now).Pick(&tc.replica)
			var victims []string
			for _, v := range d.Victims {
				victims = append(victims, v.Name)
			}
			if d.Awaits != tc.awaits || strings.Join(victims, " ") != tc.victims || d.Reason != tc.reason {
				t.Errorf("awaits %q, victims %v, %s: %s", d.Awaits, victims, d.Reason, d.Message)
			}
		})
	}
}
