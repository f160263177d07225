//go:build !race

package fleet_test

import (
	"testing"

	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

func suspended(d *v1alpha1.ModelDeployment) *v1alpha1.ModelDeployment {
	d.Spec.Suspend = true
	return d
}

func TestHowManyReplicasAreWanted(t *testing.T) {
	scaled := func(least *int32, most int32, decided ...int32) *v1alpha1.ModelDeployment {
		d := &v1alpha1.ModelDeployment{}
		d.Spec.Replicas = ptr.To[int32](1) // what an absent one reads as
		d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: least, MaxReplicas: most}
		if len(decided) > 0 {
			d.Status.Autoscaling = &v1alpha1.AutoscalingStatus{DesiredReplicas: decided[0]}
		}
		return d
	}
	fixed := func(n *int32) *v1alpha1.ModelDeployment {
		d := &v1alpha1.ModelDeployment{Status: v1alpha1.ModelDeploymentStatus{Autoscaling: &v1alpha1.AutoscalingStatus{DesiredReplicas: 9}}}
		d.Spec.Replicas = n
		return d
	}
	for name, tc := range map[string]struct {
		d    *v1alpha1.ModelDeployment
		want int32
	}{
		"as its user says":                     {d: fixed(ptr.To[int32](3)), want: 3},
		"as its user does not say":             {d: fixed(nil), want: 1},
		"before a decision, from zero":         {d: scaled(ptr.To[int32](0), 4), want: 1},
		"before a decision, from three":        {d: scaled(ptr.To[int32](3), 4), want: 3},
		"as decided":                           {d: scaled(nil, 4, 3), want: 3},
		"none, though its user wants three":    {d: suspended(fixed(ptr.To[int32](3)))},
		"none, though three are decided":       {d: suspended(scaled(ptr.To[int32](2), 4, 3))},
		"zero":                                 {d: scaled(ptr.To[int32](0), 4, 0)},
		"no fewer than are allowed":            {d: scaled(nil, 4, 0), want: 1},
		"no more than are allowed, since then": {d: scaled(nil, 2, 4), want: 2},
	} {
		if got := fleet.Wanted(tc.d); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestWhichOfTooManyMayGo(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	r := &v1alpha1.ModelReplica{}
	r.UID, r.Spec.NodeName = "r1", "mac-1"
	if !fleet.MayRemove(d, r) {
		t.Error("its user said fewer, and it may not be removed")
	}
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	if fleet.MayRemove(d, r) {
		t.Error("without a decision it may be removed")
	}
	d.Status.Autoscaling = &v1alpha1.AutoscalingStatus{Removable: []string{"r2"}}
	if fleet.MayRemove(d, r) {
		t.Error("another one is idle, but it may be removed")
	}
	d.Status.Autoscaling.Removable = []string{"r2", "r1"}
	if !fleet.MayRemove(d, r) {
		t.Error("it is idle, and may not be removed")
	}
	d.Status.Autoscaling, r.Spec.NodeName = nil, ""
	if !fleet.MayRemove(d, r) {
		t.Error("it has no Mac, and may not be removed")
	}
}
