//go:build !race

package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestEveryMacHasItsOwnReason(t *testing.T) {
	refused := func(r *v1alpha1.ModelReplica) {
		r.Spec.Avoid = []v1alpha1.AvoidedMac{{Name: "e", Until: metav1.NewTime(now.Add(90 * time.Second)), Reason: "the ledger has no room"}}
	}
	r := replica("r", 8*gib, refused)
	s := NewSnapshot([]v1alpha1.MacNode{
		mac("f", 10*gib), mac("a", 10*gib), mac("b", 4*gib), mac("c", 10*gib, cordonedMac), mac("d", 10*gib, silentMac), mac("e", 10*gib), mac("g", 10*gib, func(m *v1alpha1.MacNode) {
			m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReachable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMacUnreachable})
		}),
	}, []v1alpha1.ModelReplica{replica("s", 6*gib, on("a")), replica("t", gib, on("f"))}, now)
	var got []string
	for _, c := range s.Candidates(&r) {
		got = append(got, fmt.Sprintf("%s %v %s: %s", c.Mac, c.Fits, v1alpha1.FormatBytes(c.FreeBytes), c.Why))
	}
	want := []string{
		"a false 4.0 GiB: short of memory (need 8.0 GiB, free 4.0 GiB)",
		"b false 4.0 GiB: too small even if empty (need 8.0 GiB, capacity 4.0 GiB)",
		"c false 10.0 GiB: cordoned",
		"d false 10.0 GiB: not ready",
		"e false 10.0 GiB: avoided for another 1m30s after a refusal: the ledger has no room",
		"f true 9.0 GiB: 1.0 GiB of 10.0 GiB reserved",
		"g false 10.0 GiB: not reachable by any gateway (see Reachable in `kubectl describe mac`)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if d := s.Pick(&r); d.Mac != "f" {
		t.Errorf("Pick chose %q, and the one candidate is f", d.Mac)
	}
}
