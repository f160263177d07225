//go:build !race

package status

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
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
	if again := Merge(second, 2, t0, True("B", "Yes", "")); !again[0].LastTransitionTime.Time.Equal(t0) {
		t.Errorf("a time in the future stays: %+v", again)
	}
}

// TestAttackLongMessages: they keep the beginning and the next step.
func TestAttackLongMessages(t *testing.T) {
	for _, filler := range []string{"x", "ü", "\U0001F600"} {
		for extra := range 4 {
			long := "first " + strings.Repeat("x", extra) + strings.Repeat(filler, 20_000) + " next step"
			got := Merge(nil, 1, time.Unix(0, 0), False("A", "No", long))[0].Message
			if len(got) > maxMessage || len(got) < maxMessage-16 || !utf8.ValidString(got) || !strings.HasPrefix(got, "first ") || !strings.HasSuffix(got, " next step") {
				t.Errorf("%q: a message of %d bytes: %.20q", filler, len(got), got)
			}
		}
	}
	for _, filler := range []string{"x", "ü", "\U0001F600"} {
		for extra := range 4 {
			got := Shorten(strings.Repeat("x", extra)+strings.Repeat(filler, 600), 512)
			if len(got) > 512 || len(got) < 512-4 || !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
				t.Errorf("%q: %d bytes: %q", filler, len(got), got)
			}
		}
	}
	if got := Shorten("ü", 2); got != "ü" {
		t.Errorf("a message within the bound is %q", got)
	}
	whole := strings.Repeat("x", maxMessage)
	if got := Merge(nil, 1, time.Unix(0, 0), False("A", "No", whole))[0].Message; got != whole {
		t.Error("a message within the bound was changed")
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

// TestASpecThatOthersClaim: only the operator writes the specs that are applied here, but who may change the metadata may
// claim their fields in managedFields.
func TestASpecThatOthersClaim(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}).Build()
	agent := func(version string) *ac.MacAssignmentApplyConfiguration {
		return ac.MacAssignment("studio").WithSpec(ac.MacAssignmentSpec().WithAgent(ac.AgentOrder().WithVersion(version)))
	}
	if err := Apply(t.Context(), c, "person", agent("v1")); err != nil {
		t.Fatal(err)
	}
	if err := Apply(t.Context(), c, "operator", agent("v2")); err != nil {
		t.Error(err)
	}
	var mac v1alpha1.MacAssignment
	if err := c.Get(t.Context(), client.ObjectKey{Name: "studio"}, &mac); err != nil || mac.Spec.Agent == nil || mac.Spec.Agent.Version != "v2" {
		t.Errorf("spec %+v (%v), want the operator's", mac.Spec, err)
	}
}

// TestConvertAppliesTheFieldsThatAreWritten: a zero that the API writes is applied, and an
// omitted one is not.
func TestConvertAppliesTheFieldsThatAreWritten(t *testing.T) {
	at := metav1.Unix(1000, 0)
	for _, s := range []v1alpha1.ModelDeploymentStatus{{}, {Replicas: 2, ServedNames: []string{"a"}, Autoscaling: &v1alpha1.AutoscalingStatus{Reason: "Load", LastScaleTime: &at},
		Conditions: Merge(nil, 3, at.Time, True("Ready", "Yes", ""))}} {
		if got, err := Convert[ac.ModelDeploymentStatusApplyConfiguration](s); err != nil || !Equal(got, s) {
			t.Errorf("%+v (%v), want %+v", got, err, s)
		}
	}
}

// The operator can still change it: otherwise a compromised Mac could stay Ready for ever.
func TestAConditionThatAnAgentCoOwns(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(mac).WithStatusSubresource(mac).Build()
	ready := func(k Condition) *ac.MacNodeApplyConfiguration {
		return ac.MacNode("studio").WithStatus(ac.MacNodeStatus().WithConditions(Conditions(Merge(nil, 1, time.Unix(1000, 0), k))...))
	}
	for _, err := range []error{
		ApplyStatus(t.Context(), c, "operator", ready(True("Ready", "Reporting", ""))),
		c.Status().Apply(t.Context(), ready(True("Ready", "Reporting", "")), client.FieldOwner("agent")),
		ApplyStatus(t.Context(), c, "operator", ready(False("Ready", "MacGone", ""))),
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
