//go:build !race

package drain

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const gib = int64(1) << 30

var now = time.Unix(1_800_000_000, 0)

func mac(name string, capacity int64) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes = capacity, 1<<40
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	return m
}

func deployment(name string, replicas int32, change ...func(*v1alpha1.ModelDeployment)) v1alpha1.ModelDeployment {
	d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	d.Spec.Replicas = &replicas
	for _, c := range change {
		c(&d)
	}
	return d
}

func mayMiss(n int32) func(*v1alpha1.ModelDeployment) {
	return func(d *v1alpha1.ModelDeployment) { d.Spec.Rollout.MaxUnavailable = ptr.To(intstr.FromInt32(n)) }
}

// replica of 8 GiB of a deployment, ready.
func replica(of, name, mac string, change ...func(*v1alpha1.ModelReplica)) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	r.Spec = v1alpha1.ModelReplicaSpec{DeploymentRef: v1alpha1.DeploymentReference{Name: of, UID: of}, NodeName: mac, ReservedBytes: 8 * gib,
		DrainSeconds: 600, Model: model.Record{Source: "hf://o/n", VouchedBy: []string{model.VoucherPreview}}}
	r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady},
		{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionTrue}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func notReady(r *v1alpha1.ModelReplica) {
	r.Status.Conditions[0].Status, r.Status.Conditions[0].Message = metav1.ConditionFalse, "it loads"
}

func evicted(r *v1alpha1.ModelReplica) {
	r.Annotations = map[string]string{v1alpha1.AnnotationEvict: "true"}
}

func unplaced(r *v1alpha1.ModelReplica) {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoRoom, Message: "no room"})
}

func keepsWeights(r *v1alpha1.ModelReplica) { r.Spec.Desired = v1alpha1.DesiredDownloaded }

func going(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }

func onDemand(r *v1alpha1.ModelReplica) {
	r.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand
	r.Status.Conditions = r.Status.Conditions[:1]
}

func TestWhatMayGo(t *testing.T) {
	type replicas = []v1alpha1.ModelReplica
	for name, tc := range map[string]struct {
		deployment v1alpha1.ModelDeployment
		replicas   replicas
		other      int64 // capacity of the other Mac
		allow      bool
		deletes    string
		evicts     string
		waits      string
		stuck      bool
		done       bool
	}{
		"nothing is here":                     {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "b")}, other: 20 * gib, allow: false, deletes: "", waits: "", stuck: false, done: true},
		"one of two, the other serves":        {deployment: deployment("d", 2), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "b")}, other: 20 * gib, allow: false, evicts: "x", deletes: "", waits: "", stuck: false, done: false},
		"of two here, both, with room":        {deployment: deployment("d", 2), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "a")}, other: 20 * gib, allow: false, evicts: "x y", deletes: "", waits: "", stuck: false, done: false},
		"of three here, all, with room":       {deployment: deployment("d", 3), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "a"), replica("d", "z", "a")}, other: 60 * gib, allow: false, evicts: "x y z", deletes: "", waits: "", stuck: false, done: false},
		"both within the budget":              {deployment: deployment("d", 2, mayMiss(2)), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "a")}, other: 20 * gib, allow: false, deletes: "x y", waits: "", stuck: false, done: false},
		"both, and room for one":              {deployment: deployment("d", 2, mayMiss(2)), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "a")}, other: 10 * gib, allow: false, deletes: "x", waits: "ns/y stays, because no other Mac can hold it", stuck: false, done: false},
		"the only one, its successor first":   {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a")}, other: 20 * gib, allow: false, evicts: "x", deletes: "", waits: "", stuck: false, done: false},
		"the only one, and a budget":          {deployment: deployment("d", 1, mayMiss(1)), replicas: replicas{replica("d", "x", "a")}, other: 20 * gib, allow: false, deletes: "x", waits: "", stuck: false, done: false},
		"the only one, and a person allows":   {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a")}, other: 20 * gib, allow: true, deletes: "x", waits: "", stuck: false, done: false},
		"the only one is not ready":           {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", notReady)}, other: 20 * gib, allow: false, deletes: "x", waits: "", stuck: false, done: false},
		"on demand and not loaded":            {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", onDemand)}, other: 20 * gib, allow: false, deletes: "x", waits: "", stuck: false, done: false},
		"no other Mac has room":               {deployment: deployment("d", 2), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "b")}, other: 10 * gib, allow: false, deletes: "", waits: "no other Mac can hold it: 1 Mac: 1 short of memory", stuck: true, done: false},
		"no room, and a person allows":        {deployment: deployment("d", 2), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "b")}, other: 10 * gib, allow: true, deletes: "x", waits: "", stuck: false, done: false},
		"one drains already":                  {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", going), replica("d", "y", "b")}, other: 20 * gib, allow: false, deletes: "", waits: "ns/x is draining: running requests may continue for up to 600 s", stuck: false, done: false},
		"its deployment is being deleted":     {deployment: deployment("d", 1, func(d *v1alpha1.ModelDeployment) { d.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }), replicas: replicas{replica("d", "x", "a")}, other: 20 * gib, allow: false, deletes: "", waits: "is being removed with its deployment", stuck: false, done: false},
		"a model that is not whole yet waits": {deployment: deployment("d", 3), replicas: replicas{replica("d", "x", "a"), replica("d", "y", "b", notReady), replica("d", "z", "b")}, other: 60 * gib, allow: false, evicts: "x", deletes: "", waits: "", stuck: false, done: false},
		"evicted, its successor loads":        {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", evicted), replica("d", "y", "b", notReady)}, other: 20 * gib, allow: false, deletes: "", waits: "ns/x serves until its successor does: y on b (it loads)", stuck: false, done: false},
		"evicted, its successor has no Mac":   {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", evicted), replica("d", "y", "", notReady, unplaced)}, other: 20 * gib, allow: false, deletes: "", waits: "its successor has no Mac: no room", stuck: true, done: false},
		"evicted, another only keeps weights": {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", evicted), replica("d", "w", "", notReady, unplaced, keepsWeights), replica("d", "y", "b", notReady)}, other: 20 * gib, allow: false, deletes: "", waits: "ns/x serves until its successor does: y on b (it loads)", stuck: false, done: false},
		"evicted, and a person allows":        {deployment: deployment("d", 1), replicas: replicas{replica("d", "x", "a", evicted), replica("d", "y", "", notReady, unplaced)}, other: 20 * gib, allow: true, deletes: "x", waits: "", stuck: false, done: false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Drain{Mac: "a", AllowUnserved: tc.allow}
			m := d.Next(World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 64*gib), mac("b", tc.other)}, Replicas: tc.replicas, Deployments: []v1alpha1.ModelDeployment{tc.deployment}})
			var deletes []string
			for _, r := range m.Delete {
				deletes = append(deletes, r.Name)
			}
			var evicts []string
			for _, r := range m.Evict {
				evicts = append(evicts, r.Name)
			}
			if got := strings.Join(evicts, " "); got != tc.evicts {
				t.Errorf("evicts %q, want %q", got, tc.evicts)
			}
			if got := strings.Join(deletes, " "); got != tc.deletes || m.Stuck != tc.stuck || m.Done != tc.done || !strings.Contains(strings.Join(m.Waits, "\n"), tc.waits) {
				t.Errorf("deletes %q, stuck %v, done %v, waits %q", got, m.Stuck, m.Done, m.Waits)
			}
		})
	}
}

func TestADrainIsDoneWhenTheSuccessorsServe(t *testing.T) {
	d := &Drain{Mac: "a", AllowUnserved: true}
	w := World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 64*gib), mac("b", 64*gib)}, Deployments: []v1alpha1.ModelDeployment{deployment("d", 2)},
		Replicas: []v1alpha1.ModelReplica{replica("d", "x", "a"), replica("d", "y", "a")}}
	names := func(m Move) (out []string) {
		for _, r := range m.Delete {
			out = append(out, r.Name)
		}
		return out
	}
	if m := d.Next(w); !slices.Equal(names(m), []string{"x"}) {
		t.Fatalf("first: %+v", m)
	}
	d.AllowUnserved = false
	w.Replicas = []v1alpha1.ModelReplica{replica("d", "y", "a"), replica("d", "x2", "b", notReady)}
	if m := d.Next(w); len(m.Delete) != 0 || m.Stuck || !strings.Contains(strings.Join(m.Waits, ""), "ns/d has 1 of 2 replicas ready: x2 on b (it loads)") {
		t.Fatalf("while its successor loads: %+v", m)
	}
	w.Replicas = []v1alpha1.ModelReplica{replica("d", "x2", "b"), replica("d", "y2", "b", notReady)}
	if m := d.Next(w); m.Done {
		t.Fatalf("the Mac is empty, and the model is not whole: %+v", m)
	}
	w.Replicas[1] = replica("d", "y2", "b")
	if m := d.Next(w); !m.Done || len(m.Waits) != 0 {
		t.Fatalf("at the end: %+v", m)
	}
}
