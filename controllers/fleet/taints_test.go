//go:build !race

package fleet_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

func TestNoExecuteTaintsEndTheStayOfAReplica(t *testing.T) {
	for name, tc := range map[string]struct {
		taints      []v1alpha1.Taint
		tolerations []v1alpha1.Toleration
		want        string // the taint; empty: it stays
		after       time.Duration
	}{
		"no taint":                {},
		"another effect":          {taints: []v1alpha1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: corev1.TaintEffectPreferNoSchedule}}},
		"not tolerated":           {taints: execute("a", "b"), want: "a=b"},
		"another key":             {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{{Key: "b", Operator: corev1.TolerationOpExists}}, want: "a"},
		"another value":           {taints: execute("a", "b"), tolerations: []v1alpha1.Toleration{{Key: "a", Value: "c"}}, want: "a=b"},
		"another tolerated":       {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}, want: "a"},
		"for ever":                {taints: execute("a", "b"), tolerations: []v1alpha1.Toleration{{Key: "a", Value: "b"}}},
		"everything":              {taints: execute("a", "b"), tolerations: []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}},
		"for a while":             {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{seconds("a", 30)}, want: "a", after: 30 * time.Second},
		"for no time":             {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{seconds("a", 0)}, want: "a"},
		"the longest of two":      {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{seconds("a", 30), seconds("a", 60), seconds("a", 5)}, want: "a", after: time.Minute},
		"for a while and ever":    {taints: execute("a", ""), tolerations: []v1alpha1.Toleration{seconds("a", 30), {Key: "a"}}},
		"the first of two taints": {taints: append(execute("a", ""), execute("b", "")...), tolerations: []v1alpha1.Toleration{seconds("a", 60), seconds("b", 30)}, want: "b", after: 30 * time.Second},
	} {
		mac := &v1alpha1.MacNode{Spec: v1alpha1.MacNodeSpec{Taints: tc.taints}}
		got := fleet.Evicted(mac, tc.tolerations)
		if (got != nil) != (tc.want != "") || got != nil && (got.Taint != tc.want || got.After != tc.after) {
			t.Errorf("%s: %+v, want %q after %s", name, got, tc.want, tc.after)
		}
		_, admits := fleet.Eligible(mac, v1alpha1.PlacementSpec{Tolerations: tc.tolerations})
		keeps := len(tc.taints) > 0 && tc.taints[0].Effect != corev1.TaintEffectNoExecute
		if !keeps && admits != (got == nil) {
			t.Errorf("%s: the Mac admits it: %v, and ends its stay: %+v", name, admits, got)
		}
	}
	if fleet.Evicted(nil, nil) != nil {
		t.Error("a Mac that does not exist evicts")
	}
}

func execute(key, value string) []v1alpha1.Taint {
	return []v1alpha1.Taint{{Key: key, Value: value, Effect: corev1.TaintEffectNoExecute}}
}

func seconds(key string, n int64) v1alpha1.Toleration {
	return v1alpha1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(n)}
}
