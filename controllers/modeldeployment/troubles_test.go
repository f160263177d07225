//go:build !race

package modeldeployment

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// onMac returns a replica with conditions from its Mac: "Ready=True/OnDemand
// Loaded=False/WaitingForRoom".
func onMac(policy v1alpha1.ResidencyPolicy, conditions string) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{}
	r.Name, r.Spec.Revision, r.Spec.NodeName, r.Spec.Residency.Policy = "r", "now", "m", policy
	for c := range strings.FieldsSeq(conditions) {
		kind, rest, _ := strings.Cut(c, "=")
		state, reason, _ := strings.Cut(rest, "/")
		r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionStatus(state), Reason: reason, Message: "says the Mac"})
	}
	return r
}

// judge derives the conditions of a deployment with one such replica.
func judge(r v1alpha1.ModelReplica) (v1alpha1.ModelDeploymentStatus, map[string]status.Condition) {
	s := &scope{now: now, deployment: &v1alpha1.ModelDeployment{}, replicas: []v1alpha1.ModelReplica{r}}
	s.deployment.Spec.Residency.Policy = r.Spec.Residency.Policy
	s.verdict.condition = status.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
	next := v1alpha1.ModelDeploymentStatus{UpdateRevision: "now"}
	count(&next, s)
	out := map[string]status.Condition{}
	for _, c := range conditions(s, next) {
		out[c.Type] = c
	}
	return next, out
}

func TestADeploymentNamesTheReasonsOfMemory(t *testing.T) {
	const always, onDemand = v1alpha1.ResidencyAlways, v1alpha1.ResidencyOnDemand
	for name, tc := range map[string]struct {
		replica                      v1alpha1.ModelReplica
		ready, progressing, degraded string
		says                         string // in Progressing or Degraded
	}{
		"on demand, not loaded":               {replica: onMac(onDemand, "Ready=True/OnDemand Loaded=False/OnDemand"), ready: "OnDemand", progressing: "Stable", degraded: "Stable"},
		"on demand, loaded":                   {replica: onMac(onDemand, "Ready=True/Ready Loaded=True/Loaded"), ready: "Ready", progressing: "Stable", degraded: "Stable"},
		"always, loaded":                      {replica: onMac(always, "Ready=True/Ready Loaded=True/Loaded"), ready: "Ready", progressing: "Stable", degraded: "Stable"},
		"on demand, loading":                  {replica: onMac(onDemand, "Ready=True/Ready Loaded=False/Loading"), ready: "OnDemand", progressing: "Loading", degraded: "Stable", says: "says the Mac"},
		"on demand, others are busy":          {replica: onMac(onDemand, "Ready=True/Ready Loaded=False/WaitingForRoom"), ready: "OnDemand", progressing: "WaitingForRoom", degraded: "Stable", says: "raise residency.evictionPriority"},
		"always, others are busy":             {replica: onMac(always, "Ready=False/WaitingForRoom Loaded=False/WaitingForRoom"), ready: "WaitingForRoom", progressing: "WaitingForRoom", degraded: "Stable", says: "once another model on that Mac is idle"},
		"an engine ended uncleanly":           {replica: onMac(always, "Ready=False/HostUnsettled Loaded=False/HostUnsettled"), ready: "HostUnsettled", progressing: "HostUnsettled", degraded: "HostUnsettled", says: "WiredStranded"},
		"the same on demand":                  {replica: onMac(onDemand, "Ready=True/Ready Loaded=False/HostUnsettled"), ready: "OnDemand", progressing: "HostUnsettled", degraded: "HostUnsettled", says: "WiredStranded"},
		"on demand, and promised to others":   {replica: onMac(onDemand, "Ready=True/Ready Admitted=False/InsufficientMemory Loaded=False/Waiting"), ready: "OnDemand", progressing: "Stable", degraded: "InsufficientMemory", says: "make it OnDemand"},
		"always, refused":                     {replica: onMac(always, "Ready=False/InsufficientMemory Admitted=False/InsufficientMemory"), ready: "InsufficientMemory", progressing: "Waiting", degraded: "InsufficientMemory", says: "another replica is created"},
		"on demand, crashed as it was loaded": {replica: onMac(onDemand, "Ready=True/Ready Loaded=False/EngineCrashed"), ready: "OnDemand", progressing: "Stable", degraded: "EngineCrashed", says: "says the Mac"},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := judge(tc.replica)
			for kind, want := range map[string]string{v1alpha1.ConditionReady: tc.ready, v1alpha1.ConditionProgressing: tc.progressing, v1alpha1.ConditionDegraded: tc.degraded} {
				if c := got[kind]; c.Reason != want {
					t.Errorf("%s: reason %s (%s), want %s", kind, c.Reason, c.Message, want)
				}
				if c := got[kind]; kind != v1alpha1.ConditionReady && (c.Reason == v1alpha1.ReasonStable) == (c.Status == metav1.ConditionTrue) {
					t.Errorf("%s is %s for %s", kind, c.Status, c.Reason)
				}
			}
			if all := got[v1alpha1.ConditionProgressing].Message + got[v1alpha1.ConditionDegraded].Message; !strings.Contains(all, tc.says) {
				t.Errorf("%q does not say %q", all, tc.says)
			}
		})
	}
}

func TestLoadedReplicasAreCounted(t *testing.T) {
	for conditions, want := range map[string]int32{"Ready=True/OnDemand Loaded=False/OnDemand": 0, "Ready=True/Ready Loaded=True/Loaded": 1} {
		next, _ := judge(onMac(v1alpha1.ResidencyOnDemand, conditions))
		if next.LoadedReplicas != want || next.ReadyReplicas != 1 {
			t.Errorf("%s: %d loaded, %d ready; want %d and 1", conditions, next.LoadedReplicas, next.ReadyReplicas, want)
		}
	}
}

func TestALoadIsToldInBytes(t *testing.T) {
	r := onMac(v1alpha1.ResidencyOnDemand, "Ready=True/Ready Loaded=False/Loading")
	r.Status.Summary.Progress = "Loading 25% (1 B of 4 B)"
	if _, got := judge(r); got[v1alpha1.ConditionProgressing].Message != "r: Loading 25% (1 B of 4 B)" {
		t.Errorf("%+v", got[v1alpha1.ConditionProgressing])
	}
}
