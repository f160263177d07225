package macnode

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
)

// Without them an otherwise empty spec would become null, which the API server rejects.
func TestEmptyOrdersNameBothLists(t *testing.T) {
	c, err := orders{}.configure(&v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mini", UID: "u"}}, "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(c)
	want := `{"kind":"MacAssignment","apiVersion":"metalfleet.dev/v1alpha1","metadata":{"name":"mini","uid":"a",` +
		`"ownerReferences":[{"apiVersion":"metalfleet.dev/v1alpha1","kind":"MacNode","name":"mini","uid":"u","controller":true,"blockOwnerDeletion":false}]},"spec":{"assignments":[],"inspections":[]}}`
	if err != nil || string(b) != want {
		t.Errorf("%s (%v), want %s", b, err, want)
	}
}

// In a large fleet, a new deployment triggers a few Macs, not all.
// TestADeploymentThatSettlesHasOrdersDerived: another one may have its place among the inspections.
func TestADeploymentThatSettlesHasOrdersDerived(t *testing.T) {
	passes := func(before, now metav1.ConditionStatus) bool {
		of := func(s metav1.ConditionStatus) *v1alpha1.ModelDeployment {
			d := &v1alpha1.ModelDeployment{}
			d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: s}}
			return d
		}
		return statusChanged().Update(event.UpdateEvent{ObjectOld: of(before), ObjectNew: of(now)})
	}
	if !passes(metav1.ConditionFalse, metav1.ConditionTrue) || !passes(metav1.ConditionTrue, metav1.ConditionUnknown) || passes(metav1.ConditionFalse, metav1.ConditionUnknown) {
		t.Error("orders are not derived if, and only if, a deployment settles or no longer is settled")
	}
}

func TestADeploymentConcernsFewMacs(t *testing.T) {
	hub := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hub", UID: "hub"}}
	hub.Spec.Model.Source = "hf://org/model"
	local := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "local", UID: "local"}}
	local.Spec.Model.Source = "file://model"
	var all []client.Object
	for i := range 40 {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mac-%02d", i)}}
		m.Status.Chip = "M2Ultra"
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
		if i == 7 { // asked before another one became ready
			all = append(all, &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: m.Name}, Spec: v1alpha1.MacAssignmentSpec{
				Inspections: []v1alpha1.Inspection{{ID: fleet.InspectionID(hub)}}}})
		}
		all = append(all, m)
	}
	holds := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hub-0"}, Spec: v1alpha1.ModelReplicaSpec{
		DeploymentRef: v1alpha1.DeploymentReference{Name: "hub", UID: "hub"}, NodeName: "mac-11", Desired: v1alpha1.DesiredRunning, Epoch: 1}}
	others := holds.DeepCopy()
	others.Name, others.Spec.DeploymentRef.Name, others.Spec.DeploymentRef.UID, others.Spec.NodeName = "else-0", "else", "else", "mac-12"
	r := &Orders{Client: objects(t, append(all, hub, local, holds, others)...)}

	names := func(d *v1alpha1.ModelDeployment) (out []string) {
		for _, q := range r.concerned(t.Context(), d) {
			out = append(out, q.Name)
		}
		slices.Sort(out)
		return out
	}
	got := names(hub)
	if len(got) != 4 || !slices.Contains(got, "mac-07") || !slices.Contains(got, "mac-11") {
		t.Errorf("a deployment of a hub concerns %v, want the two Macs that are asked, mac-07 that was, and mac-11 that holds a replica", got)
	}
	if got := names(local); len(got) != 40 {
		t.Errorf("a deployment of files of Macs concerns %d Macs, want all 40: each has files of its own", len(got))
	}
	none, mac := &v1alpha1.MacNode{}, all[3].(*v1alpha1.MacNode)
	if got := r.peers(t.Context(), none, mac); len(got) != 3 {
		t.Errorf("a Mac that changed concerns %v, want the two that are asked for the hub's model, and the one that was", got)
	}
	reporter := mac.DeepCopy()
	if got := r.inspectors(t.Context(), mac, reporter); len(got) != 0 {
		t.Errorf("a Mac that reports nothing concerns %v", got)
	}
	reporter.Status.Inspections = []v1alpha1.InspectionStatus{{ID: fleet.InspectionID(hub), State: v1alpha1.InspectionFailed}}
	if got := r.inspectors(t.Context(), mac, reporter); len(got) != 3 {
		t.Errorf("a report about the hub's model concerns %v, want the two that are asked, and the one that was", got)
	}
}

// A tenant with replicas on all Macs delays the orders of another by one Mac.
func TestMacsWaitForOneOfAnotherNamespace(t *testing.T) {
	var many []*v1alpha1.ModelReplica
	for i := range 100 {
		many = append(many, replicaOn(fmt.Sprint("mac-", i), "large", fmt.Sprint("r-", i), fmt.Sprint("l", i)))
	}
	one := replicaOn("mac-50", "small", "r", "s")
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "small", Name: "d", UID: "d"}}
	one.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: d.Name, UID: string(d.UID)}
	for name, add := range map[string]func(requestQueue){
		"replica": func(q requestQueue) { ofReplicas().Create(t.Context(), event.CreateEvent{Object: one}, q) },
		"deployment": func(q requestQueue) {
			r := &Orders{Client: objects(t, one)}
			r.ofDeployments().Create(t.Context(), event.CreateEvent{Object: d}, q)
		},
	} {
		q := fairqueue.New("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
		for _, replica := range many {
			ofReplicas().Create(t.Context(), event.CreateEvent{Object: replica}, q)
		}
		add(q)
		var got []string
		for range 2 {
			mac, _ := q.Get()
			got = append(got, mac.Name)
		}
		q.ShutDown()
		if !slices.Contains(got, "mac-50") {
			t.Errorf("%s: the first Macs are %v, want mac-50 among them", name, got)
		}
	}
}

// A MacAssignment is written whole: many edits of a deployment in a short time are one pass for
// each Mac. The queue is that of a controller, in virtual time.
func TestManyEditsAreOnePass(t *testing.T) {
	one := replicaOn("mac-50", "small", "r", "s")
	one.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: "d", UID: "d"}
	r := &Orders{Client: objects(t, one)}
	synctest.Test(t, func(t *testing.T) {
		q := fairqueue.New("", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Millisecond, time.Second))
		defer q.ShutDown()
		passes := 0
		pass := func() {
			synctest.Wait()
			for q.Len() > 0 {
				mac, _ := q.Get()
				q.Done(mac)
				passes++
			}
		}
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "small", Name: "d", UID: "d", ResourceVersion: "1"}}
		r.ofDeployments().Create(t.Context(), event.CreateEvent{Object: d}, q)
		if pass(); passes != 1 {
			t.Fatalf("%d passes for a new deployment, want one at once", passes)
		}
		passes = 0
		for range 100 { // ten seconds
			old := d.DeepCopy()
			d.ResourceVersion += "1"
			r.ofDeployments().Update(t.Context(), event.UpdateEvent{ObjectOld: old, ObjectNew: d}, q)
			time.Sleep(100 * time.Millisecond)
			pass()
		}
		time.Sleep(time.Second)
		if pass(); passes < 10 || passes > 21 {
			t.Errorf("%d passes for 100 edits in ten seconds, want two a second", passes)
		}
	})
}

type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// shared returns a client that hands out the same objects again and again where a caller asks
// for no copies, as a cache does, and a check that they are as they were.
func shared(t *testing.T, c client.WithWatch) (client.WithWatch, func()) {
	kept, was := map[string]client.ObjectList{}, map[string]string{}
	var mu sync.Mutex
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	list := func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		o := client.ListOptions{}
		o.ApplyOptions(opts)
		if o.UnsafeDisableDeepCopy == nil {
			return c.List(ctx, list, opts...)
		}
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprintf("%T %v %s", list, o.FieldSelector, o.Namespace)
		if kept[key] == nil {
			if err := c.List(ctx, list, opts...); err != nil {
				return err
			}
			kept[key], was[key] = reflect.New(reflect.TypeOf(list).Elem()).Interface().(client.ObjectList), text(list)
			reflect.ValueOf(kept[key]).Elem().Set(reflect.ValueOf(list).Elem())
		}
		to, from := reflect.ValueOf(list).Elem().FieldByName("Items"), reflect.ValueOf(kept[key]).Elem().FieldByName("Items")
		to.Set(reflect.AppendSlice(reflect.Zero(to.Type()), from))
		return nil
	}
	return interceptor.NewClient(c, interceptor.Funcs{List: list}), func() {
		t.Helper()
		if len(kept) < 5 {
			t.Errorf("only %d lists were read without copies", len(kept))
		}
		for key, l := range kept {
			if now := text(l); now != was[key] {
				t.Errorf("%s was changed:\n%s\n%s", key, was[key], now)
			}
		}
	}
}

// TestOrdersWaitForNoWriteOfAMac: a Mac can make each of them take most of a second.
func TestOrdersWaitForNoWriteOfAMac(t *testing.T) {
	m := aMac()
	c := fleettest.DuringAWrite(objects(t, m))
	o := &Orders{Client: c, Clock: testingclock.NewFakePassiveClock(time.Unix(1000, 0)), Grants: granter{}, Inspectors: &fleet.Inspectors{}, Sites: &fleet.Sites{}}
	if _, err := o.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(m)}); err != nil {
		t.Error(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(m), &v1alpha1.MacAssignment{}); err != nil {
		t.Errorf("its orders: %v", err)
	}
}

// TestOrdersChangeNothingOfTheCache: lists are read without copies, by both workers.
func TestOrdersChangeNothingOfTheCache(t *testing.T) {
	var all []client.Object
	for _, name := range []string{"a", "b", "c"} {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{fleet.LabelSite: "here"}}}
		m.Status.Address = &v1alpha1.MacAddress{Host: name + ".example", Port: 1}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
		all = append(all, m)
	}
	for i, source := range []string{"hf://org/model", "file://model", "hf://org/other"} {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("d", i), UID: types.UID(fmt.Sprint("d", i)), Generation: 1}}
		d.Spec.Model.Source, d.Spec.Model.Files = source, []string{"z", "a"}
		d.Status.ServedNames, d.Status.Adapters = []string{"z", "a:x"}, []string{"y", "x"}
		d.Spec.Adapters = []v1alpha1.AdapterSpec{{Name: "y", Source: "hf://o/y"}, {Name: "x", Source: "hf://o/x"}}
		r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprint("r", i))}}
		r.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: d.Name, UID: string(d.UID)}
		r.Spec.NodeName, r.Spec.Desired, r.Spec.Model.Source, r.Spec.Model.Digest = "ab"[i%2:i%2+1], v1alpha1.DesiredRunning, source, "sha256:d"
		r.Spec.SharedPrefixes = []string{"z", "a"}
		all = append(all, d, r)
	}
	c, unchanged := shared(t, objects(t, all...))
	o := &Orders{Client: c, Clock: testingclock.NewFakePassiveClock(time.Unix(1000, 0)), Grants: granter{}, Inspectors: &fleet.Inspectors{}, Sites: &fleet.Sites{}}
	var workers sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		workers.Go(func() {
			if _, err := o.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
				t.Error(err)
			}
			o.peers(t.Context(), &v1alpha1.MacNode{}, all[0].(*v1alpha1.MacNode))
			o.concerned(t.Context(), all[3])
			o.inspectors(t.Context(), &v1alpha1.MacNode{}, &v1alpha1.MacNode{Status: v1alpha1.MacNodeStatus{Inspections: []v1alpha1.InspectionStatus{
				{ID: fleet.InspectionID(all[3].(*v1alpha1.ModelDeployment)), State: v1alpha1.InspectionFailed}}}})
		})
	}
	workers.Wait()
	unchanged()
}

// TestAnEditReadsTheReplicasOfItsDeployment: a tenant may have 10,000 replicas on 1,000 Macs, and edit
// a deployment without any.
func TestAnEditReadsTheReplicasOfItsDeployment(t *testing.T) {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	var all []client.Object
	for i := range 100 {
		r := replicaOn(fmt.Sprint("mac-", i), "ns", fmt.Sprint("r-", i), fmt.Sprint("u-", i))
		r.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: "other", UID: "other"}
		all = append(all, r)
	}
	read := 0
	r := &Orders{Client: interceptor.NewClient(objects(t, all...), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, o ...client.ListOption) error {
		err := c.List(ctx, l, o...)
		if replicas, is := l.(*v1alpha1.ModelReplicaList); is {
			read += len(replicas.Items)
		}
		return err
	}})}
	if got := r.concerned(t.Context(), d); len(got) > 0 || read > 0 {
		t.Errorf("it reads %d replicas of other deployments, and concerns %d Macs", read, len(got))
	}
}
