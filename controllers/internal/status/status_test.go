//go:build !race

package status

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestMergeKeepsTransitionTimes(t *testing.T) {
	t0 := time.Unix(1000, 0)
	first := Merge(nil, 1, t0, True("A", "Yes", ""), False("B", "No", ""))
	second := Merge(first, 2, t0.Add(time.Minute), True("A", "StillYes", "with another message"), True("B", "Yes", ""))
	if a := meta.FindStatusCondition(second, "A"); !a.LastTransitionTime.Time.Equal(t0) || a.Reason != "StillYes" || a.ObservedGeneration != 2 {
		t.Errorf("A did not change its status: %+v", a)
	}
	if b := meta.FindStatusCondition(second, "B"); !b.LastTransitionTime.Time.Equal(t0.Add(time.Minute)) {
		t.Errorf("B changed its status: %+v", b)
	}
	if third := Merge(second, 2, t0, True("A", "Yes", "")); len(third) != 1 {
		t.Errorf("a condition that is not wanted stayed: %+v", third)
	}
}

func TestMergeBoundsMessages(t *testing.T) {
	got := Merge(nil, 1, time.Unix(0, 0), False("A", "No", strings.Repeat("x", 2*maxMessage)))
	if len(got[0].Message) != maxMessage {
		t.Errorf("message of %d bytes, the schema allows %d", len(got[0].Message), maxMessage)
	}
}

func TestEqualTreatsAbsentAndEmptyAlike(t *testing.T) {
	type s struct {
		L []string `json:"l,omitempty"`
	}
	if !Equal(s{}, s{L: []string{}}) || Equal(s{L: []string{"a"}}, s{}) {
		t.Error("absent and empty lists must be equal, others not")
	}
}

// TestAConditionThatAnAgentCoOwns is still the operator's to change: a Mac that was
// taken over could stay Ready for ever.
func TestAConditionThatAnAgentCoOwns(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(mac).WithStatusSubresource(mac).Build()
	doc := func(manager string, k Condition) Document {
		return Document{Object: &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}, Manager: manager,
			Status: map[string]any{"conditions": Merge(nil, 1, time.Unix(1000, 0), k)}}
	}
	patch, err := doc("agent", True("Ready", "HeardFrom", "")).patch(scheme)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		Apply(t.Context(), c, doc("operator", True("Ready", "HeardFrom", ""))),
		c.Status().Patch(t.Context(), mac.DeepCopy(), patch, client.FieldOwner("agent")),
		Apply(t.Context(), c, doc("operator", False("Ready", "MacGone", ""))),
		c.Get(t.Context(), client.ObjectKeyFromObject(mac), mac),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if k := meta.FindStatusCondition(mac.Status.Conditions, "Ready"); k == nil || k.Reason != "MacGone" {
		t.Errorf("condition %+v, want MacGone", k)
	}
}
