//go:build !race

package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func at(site string) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) {
		m.Labels = map[string]string{LabelSite: site}
		m.Status.Address = &v1alpha1.MacAddress{Host: m.Name, Port: 7443}
	}
}

func TestWhoCopiesFromWhom(t *testing.T) {
	model := fleettest.Model("hf://org/m", "a", 98_000_000)
	has := func(m *v1alpha1.MacNode) {
		m.Status.Weights = []v1alpha1.StoredWeights{{Digest: model.Digest, Bytes: 1}}
	}
	closing := func(m *v1alpha1.MacNode) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse})
	}
	sent := []v1alpha1.MacAssignment{{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.MacAssignmentSpec{
		Assignments: []v1alpha1.Assignment{{ReplicaUID: "x", Model: model, Desired: v1alpha1.DesiredRunning}}}}}
	nowhere := func(m *v1alpha1.MacNode) { m.Status.Address = nil }
	bound := func(mac string, age int, change ...func(*v1alpha1.ModelReplica)) v1alpha1.ModelReplica {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(mac, age)), CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(age) * time.Second))}}
		r.Spec.NodeName, r.Spec.Model, r.Spec.Desired = mac, model, v1alpha1.DesiredRunning
		for _, c := range change {
			c(&r)
		}
		return r
	}
	drained := func(r *v1alpha1.ModelReplica) { r.Spec.Desired = v1alpha1.DesiredDrained }
	elsewhere := func(r *v1alpha1.ModelReplica) { r.Spec.Model.Source = "https://other/m" }
	order := v1alpha1.Assignment{Model: model, Desired: v1alpha1.DesiredRunning}
	for name, tc := range map[string]struct {
		macs     []v1alpha1.MacNode // the first one is the one that copies
		assigned []v1alpha1.MacAssignment
		replicas []v1alpha1.ModelReplica
		change   func(*v1alpha1.Assignment)
		want     []string
	}{
		"a Mac of the site has them":                        {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has)}, want: []string{"b"}},
		"three at most":                                     {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has), ready("c", at("x"), has), ready("d", at("x"), has), ready("e", at("x"), has)}, want: []string{"d", "e", "b"}},
		"one of another site":                               {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("y"), has)}},
		"one without a site":                                {macs: []v1alpha1.MacNode{ready("a", at("")), ready("b", at(""), has)}},
		"one that is silent":                                {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has, silent)}},
		"one that shuts down":                               {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has, closing)}},
		"one without an address":                            {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has, nowhere)}},
		"who asks has them":                                 {macs: []v1alpha1.MacNode{ready("a", at("x"), has), ready("b", at("x"), has)}},
		"what drains copies nothing":                        {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has)}, change: func(a *v1alpha1.Assignment) { a.Desired = v1alpha1.DesiredDrained }},
		"a file of the model root":                          {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), has)}, change: func(a *v1alpha1.Assignment) { a.Model.Source = "file://m" }},
		"no Mac has them: the oldest replica's Mac is sent": {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"))}, replicas: []v1alpha1.ModelReplica{bound("a", 1), bound("b", 2)}, want: []string{"b"}},
		"it is the one that asks":                           {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"))}, replicas: []v1alpha1.ModelReplica{bound("a", 2), bound("b", 1)}},
		"one was sent before":                               {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"))}, assigned: sent, replicas: []v1alpha1.ModelReplica{bound("a", 2), bound("b", 1)}, want: []string{"b"}},
		"it is silent":                                      {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"), silent)}, replicas: []v1alpha1.ModelReplica{bound("a", 1), bound("b", 2)}},
		"it drains":                                         {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"))}, replicas: []v1alpha1.ModelReplica{bound("a", 1), bound("b", 2, drained)}},
		"it fetches the same from elsewhere":                {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("x"))}, replicas: []v1alpha1.ModelReplica{bound("a", 1), bound("b", 2, elsewhere)}},
		"it is of another site":                             {macs: []v1alpha1.MacNode{ready("a", at("x")), ready("b", at("y"))}, replicas: []v1alpha1.ModelReplica{bound("a", 1), bound("b", 2)}},
	} {
		o := order
		if tc.change != nil {
			tc.change(&o)
		}
		var got []string
		for _, m := range peersOf(t, nil, &tc.macs[0], o, tc.macs, tc.assigned, tc.replicas) {
			got = append(got, m.Name)
		}
		if name == "three at most" { // each Mac has a stable order of its own
			slices.Reverse(tc.macs[1:])
			var again []string
			for _, m := range peersOf(t, nil, &tc.macs[0], o, tc.macs, nil, nil) {
				again = append(again, m.Name)
			}
			if len(got) != 3 || !slices.Equal(got, again) {
				t.Errorf("%s: %v, and in another order %v", name, got, again)
			}
			continue
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
