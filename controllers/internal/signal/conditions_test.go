//go:build !race

package signal

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func TestConditionsOfMacsAndProblemsAreExported(t *testing.T) {
	is := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	mac := func(name string, conditions ...metav1.Condition) *v1alpha1.MacNode {
		m := &v1alpha1.MacNode{}
		m.Name, m.Status.Conditions = name, conditions
		return m
	}
	replica := func(name string, conditions ...metav1.Condition) *v1alpha1.ModelReplica {
		r := &v1alpha1.ModelReplica{}
		r.Namespace, r.Name, r.Status.Conditions = "team", name, conditions
		return r
	}
	halted := &v1alpha1.ModelDeployment{}
	halted.Namespace, halted.Name = "team", "chat"
	halted.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonHalted)}

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		mac("alive", is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReporting), is(v1alpha1.ConditionWiredStranded, metav1.ConditionTrue, v1alpha1.ReasonWiredUnowned)),
		mac("dead", is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonMacGone), is(v1alpha1.ConditionAgentCurrent, metav1.ConditionFalse, v1alpha1.ReasonAgentRolledBack)),
		mac("silent", is(v1alpha1.ConditionReachable, metav1.ConditionFalse, v1alpha1.ReasonMacUnreachable), is(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonMacSilent), is("OfItsOwn", metav1.ConditionTrue, "Chosen")),
		mac("ordered", is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNeverReported)),
		replica("full", is(v1alpha1.ConditionDownloaded, metav1.ConditionFalse, v1alpha1.ReasonDiskFull)),
		replica("full-too", is(v1alpha1.ConditionDownloaded, metav1.ConditionFalse, v1alpha1.ReasonDiskFull)),
		replica("fails", is(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoadFailed)),
		replica("invents", is(v1alpha1.ConditionLoaded, metav1.ConditionFalse, "AReasonOfAMac")),
		halted,
	).Build()
	registry := prometheus.NewRegistry()
	if _, err := New(registry, fleettest.DuringAWrite(reader)); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"metalfleet_operator_problems MacNode AgentRefused":        0,
		"metalfleet_operator_problems MacNode AgentRolledBack":     1,
		"metalfleet_operator_problems ModelDeployment Halted":      1,
		"metalfleet_operator_problems ModelReplica BackOff":        0,
		"metalfleet_operator_problems ModelReplica CanaryFailed":   0,
		"metalfleet_operator_problems ModelReplica DiskFull":       2,
		"metalfleet_operator_problems ModelReplica DownloadFailed": 0,
		"metalfleet_operator_problems ModelReplica LoadFailed":     1,
	}
	for _, mac := range []string{"alive", "dead", "silent", "ordered"} {
		for _, kind := range []string{"MemoryPressure", "WiredStranded", "MemoryDiverged", "GuardInactive", "IdentityClash", "WritesSuspended"} {
			want["metalfleet_operator_mac_condition "+kind+" "+mac] = 0
		}
		if mac != "ordered" { // its agent has not joined yet
			want["metalfleet_operator_mac_condition Ready "+mac] = 0
		}
	}
	want["metalfleet_operator_mac_condition Ready alive"] = 1
	want["metalfleet_operator_mac_condition Reachable silent"] = 0
	want["metalfleet_operator_mac_condition WiredStranded alive"] = 1
	got := gathered(t, registry)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the series are (-want +got):\n%s", diff)
	}
}

// gathered returns the values of the gauges of conditions, by name and labels.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "metalfleet_operator_mac_condition" && f.GetName() != "metalfleet_operator_problems" {
			continue
		}
		for _, s := range f.GetMetric() {
			key := f.GetName()
			for _, l := range s.GetLabel() { // in the order of their names
				key += " " + l.GetValue()
			}
			out[key] = s.GetGauge().GetValue()
		}
	}
	return out
}
