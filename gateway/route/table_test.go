package route_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/route"
)

// world is the reference model that the table is compared with.
type world struct {
	deployments map[route.Key]route.Deployment
	replicas    map[string]route.Replica
	macs        map[string]route.Mac
}

// want computes from scratch which names lead to which endpoints.
func (w world) want() map[string][]route.Endpoint {
	out := map[string][]route.Endpoint{}
	owner := map[string]route.Deployment{}
	for _, d := range w.deployments {
		for _, n := range strings.Split(d.Names, "\n") {
			if n == "" {
				continue
			}
			o, taken := owner[n]
			if !taken || d.Created < o.Created || d.Created == o.Created && d.Key.String() < o.Key.String() {
				owner[n] = d
			}
		}
	}
	for _, d := range w.deployments { // NAMESPACE/NAME is its own, regardless of age
		owner[d.Key.String()] = d
	}
	for name, d := range owner {
		out[name] = nil
		for _, uid := range slices.Sorted(maps.Keys(w.replicas)) {
			r := w.replicas[uid]
			m := w.macs[r.Mac]
			if r.Deployment == d.Key && r.DeploymentUID == d.UID && r.Ready && m.Open && m.Address != "" {
				out[name] = append(out[name], route.Endpoint{Replica: uid, Epoch: r.Epoch, Mac: r.Mac, Address: m.Address, Cold: r.Cold,
					Retiring: r.Retiring, Sequences: r.Sequences})
			}
		}
	}
	return out
}

func TestRandomHistoriesEndInTheSameTable(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		table := route.NewTable()
		table.MarkSynced()
		w := world{deployments: map[route.Key]route.Deployment{}, replicas: map[string]route.Replica{}, macs: map[string]route.Mac{}}
		for step := range 300 {
			change(rng, table, w)
			want := w.want()
			for name, endpoints := range want {
				m, ok := table.Lookup(name)
				if !ok {
					t.Fatalf("seed %d step %d: %q is not known", seed, step, name)
				}
				if d := cmp.Diff(endpoints, m.Endpoints()); d != "" {
					t.Fatalf("seed %d step %d: %q: %s", seed, step, name, d)
				}
			}
			for _, name := range []string{"a", "b", "Org/M-1", "ns/d0", "ns/d1", "ns/d2"} {
				if _, ok := table.Lookup(name); ok {
					if _, wanted := want[name]; !wanted {
						t.Fatalf("seed %d step %d: %q should be gone", seed, step, name)
					}
				}
			}
		}
	}
}

// change applies one random change to the table and to the reference model.
func change(rng *rand.Rand, table *route.Table, w world) {
	pick := func(names ...string) string { return names[rng.IntN(len(names))] }
	key := route.Key{Namespace: "ns", Name: pick("d0", "d1", "d2")}
	switch rng.IntN(7) {
	case 0, 1:
		d := route.Deployment{Key: key, UID: pick("u1", "u2"), Created: int64(rng.IntN(3)), Names: pick("", "a", "b", "a\nb", "b\nns/d0", "ns/d1", "Org/M-1\na")}
		w.deployments[key] = d
		table.SetDeployment(d)
	case 2:
		uid := pick("u1", "u2")
		if w.deployments[key].UID == uid {
			delete(w.deployments, key)
		}
		table.DeleteDeployment(key, uid)
	case 3, 4:
		r := route.Replica{UID: pick("r0", "r1", "r2", "r3", "r4"), Epoch: int64(rng.IntN(3)), Deployment: key,
			DeploymentUID: pick("u1", "u2"), Mac: pick("", "m0", "m1"), Ready: rng.IntN(4) > 0, Cold: rng.IntN(2) == 0, Retiring: rng.IntN(3) == 0,
			Sequences: int64(rng.IntN(2))}
		w.replicas[r.UID] = r
		table.SetReplica(r)
	case 5:
		uid := pick("r0", "r1", "r2", "r3", "r4")
		delete(w.replicas, uid)
		table.DeleteReplica(uid)
	case 6:
		m := route.Mac{Name: pick("m0", "m1"), Address: pick("", "h:1", "h:2", "h:2"), Open: rng.IntN(4) > 0}
		if rng.IntN(5) == 0 {
			delete(w.macs, m.Name)
			table.DeleteMac(m.Name)
			return
		}
		w.macs[m.Name] = m
		table.SetMac(m)
	}
}

func TestChangedIsClosedOnEveryChangeAndOnDeletion(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	key := route.Key{Namespace: "ns", Name: "m"}
	table.SetDeployment(route.Deployment{Key: key, UID: "1", Names: "m"})
	m, _ := table.Lookup("m")
	told := func(what string, want bool, change func()) {
		t.Helper()
		changed := m.Changed()
		change()
		select {
		case <-changed:
			if !want {
				t.Errorf("%s: told of nothing", what)
			}
		default:
			if want {
				t.Errorf("%s: not told", what)
			}
		}
	}
	replica := route.Replica{UID: "r", Deployment: key, DeploymentUID: "1", Mac: "a"}
	told("a replica that is not ready", false, func() { table.SetReplica(replica) })
	told("a Mac", false, func() { table.SetMac(route.Mac{Name: "a", Address: "h:1", Open: true}) })
	replica.Ready = true
	told("ready", true, func() { table.SetReplica(replica) })
	told("the same again", false, func() { table.SetReplica(replica) })
	told("the Mac closes", true, func() { table.SetMac(route.Mac{Name: "a", Address: "h:1"}) })
	if m.Gone() {
		t.Error("gone before its end")
	}
	told("made again under its name", true, func() { table.SetDeployment(route.Deployment{Key: key, UID: "2", Names: "m"}) })
	if !m.Gone() {
		t.Error("another deployment has its name, and it is not gone")
	}
	m, _ = table.Lookup("m")
	told("deleted", true, func() { table.DeleteDeployment(key, "2") })
	if !m.Gone() {
		t.Error("deleted, and not gone")
	}
}

func TestABareNameBelongsToTheOldestClaimant(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	young := route.Deployment{Key: route.Key{Namespace: "b", Name: "chat"}, UID: "2", Created: 20, Names: "chat\nb/chat"}
	old := route.Deployment{Key: route.Key{Namespace: "a", Name: "chat"}, UID: "1", Created: 10, Names: "chat\na/chat"}
	table.SetDeployment(young)
	table.SetDeployment(old)
	owner := func(name string) string {
		m, ok := table.Lookup(name)
		if !ok {
			return ""
		}
		return m.Key.String()
	}
	for name, want := range map[string]string{"chat": "a/chat", "a/chat": "a/chat", "b/chat": "b/chat", "c/chat": ""} {
		if got := owner(name); got != want {
			t.Errorf("%q belongs to %q, want %q", name, got, want)
		}
	}
	var listed []string
	for n := range table.Names() {
		listed = append(listed, n.Name)
	}
	if d := cmp.Diff([]string{"b/chat", "chat"}, listed); d != "" {
		t.Error(d)
	}
	// The operator resolved the conflict against the younger one: its status claims only
	// its full name. When the older one is deleted, the operator lets the younger one claim
	// the name.
	young.Names = "b/chat"
	table.SetDeployment(young)
	table.DeleteDeployment(old.Key, old.UID)
	if got := owner("chat"); got != "" {
		t.Errorf("no deployment claims the name, but %q has it", got)
	}
	if got := owner("b/chat"); got != "b/chat" {
		t.Error("the full name was lost")
	}
}

func TestReplicasThatMayBePicked(t *testing.T) {
	now := metav1.Now()
	ready := func(change func(*v1alpha1.ModelReplica)) *v1alpha1.ModelReplica {
		r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{Desired: v1alpha1.DesiredRunning}}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
		change(r)
		return r
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.ModelReplica)
		want   bool
	}{
		"ready":            {change: func(*v1alpha1.ModelReplica) {}, want: true},
		"not ready":        {change: func(r *v1alpha1.ModelReplica) { r.Status.Conditions[0].Status = metav1.ConditionFalse }, want: false},
		"unknown":          {change: func(r *v1alpha1.ModelReplica) { r.Status.Conditions[0].Status = metav1.ConditionUnknown }, want: false},
		"nothing reported": {change: func(r *v1alpha1.ModelReplica) { r.Status.Conditions = nil }, want: false},
		"going":            {change: func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &now }, want: false},
		"told to drain":    {change: func(r *v1alpha1.ModelReplica) { r.Spec.Desired = v1alpha1.DesiredDrained }, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := route.ReplicaOf(ready(tc.change)).Ready; got != tc.want {
				t.Errorf("ready = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAReplicaOnDemandIsPickedThoughItIsNotLoaded(t *testing.T) {
	for status, cold := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: false, metav1.ConditionFalse: true} {
		r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{Desired: v1alpha1.DesiredRunning}}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonOnDemand},
			{Type: v1alpha1.ConditionLoaded, Status: status, Reason: v1alpha1.ReasonOnDemand}}
		if got := route.ReplicaOf(r); !got.Ready || got.Cold != cold {
			t.Errorf("loaded %s: %+v, want it ready, and cold %v", status, got, cold)
		}
	}
}

func TestReplicaOfReadsTheRetirement(t *testing.T) {
	for value, want := range map[string]bool{"": false, "true": true} {
		r := &v1alpha1.ModelReplica{}
		r.Annotations = map[string]string{"example.com/long": "x", v1alpha1.AnnotationRetiring: value}
		kept, err := route.Slim(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := route.ReplicaOf(kept.(*v1alpha1.ModelReplica)); got.Retiring != want || r.Annotations["example.com/long"] != "" {
			t.Errorf("%q: %+v, annotations %v", value, got, r.Annotations)
		}
	}
}

// TestFactsOfAModel: what clients are shown holds for every replica that may serve them,
// and a deployment without replicas shows only what its spec sets.
func TestFactsOfAModel(t *testing.T) {
	key := route.Key{Namespace: "ns", Name: "d"}
	record := func(context int64) *v1alpha1.ModelReplica {
		r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{DeploymentRef: v1alpha1.DeploymentReference{Name: "d", UID: "u"}, Desired: v1alpha1.DesiredRunning,
			Context: v1alpha1.ContextLimits{MaxTokens: context, MaxConcurrentRequests: 4, KVCacheTokens: 9}}}
		r.Namespace = "ns"
		r.Spec.Model = model.Record{Source: "https://example.com/m.gguf", Digest: "sha256:1", Format: model.FormatGGUF, Files: []model.File{{Path: "m.gguf"}}, Features: []model.Feature{model.Chat, model.Tools},
			Facts: model.Facts{Architecture: "qwen3", Quantization: "Q4_K", ContextTokens: 40960, WeightBytes: 7, VisionPatches: 256, Layers: 3}}
		return r
	}
	replica := func(uid string, context int64, ready bool) route.Replica {
		kept, err := route.Slim(record(context))
		if err != nil {
			t.Fatal(err)
		}
		r := kept.(*v1alpha1.ModelReplica)
		if r.Spec.Model.Source != "" || r.Spec.Model.Files != nil || r.Spec.Model.Facts.Layers != 0 {
			t.Errorf("the cache keeps %+v", r.Spec.Model)
		}
		out := route.ReplicaOf(r)
		out.UID, out.Ready = uid, ready
		return out
	}
	known := func(context int64) route.Facts {
		return route.Facts{Context: context, Trained: 40960, Task: model.Generate, Digest: "sha256:1", Bytes: 7, Format: "gguf", Architecture: "qwen3", Quantization: "Q4_K", Sees: true, Tools: true}
	}
	table := route.NewTable()
	table.MarkSynced()
	want := func(step string, f route.Facts) {
		t.Helper()
		m, _ := table.Lookup("ns/d")
		if d := cmp.Diff(f, m.Facts()); d != "" {
			t.Errorf("%s: %s", step, d)
		}
	}
	table.SetDeployment(route.Deployment{Key: key, UID: "u"})
	want("nothing known", route.Facts{})
	spec := &v1alpha1.ModelDeployment{Spec: v1alpha1.ModelDeploymentSpec{Context: v1alpha1.ContextSpec{MaxTokens: 4096, MaxConcurrentRequests: 2}}}
	spec.Namespace, spec.Name, spec.UID = "ns", "d", "u"
	kept, err := route.Slim(spec)
	if err != nil {
		t.Fatal(err)
	}
	table.SetDeployment(route.DeploymentOf(kept.(*v1alpha1.ModelDeployment)))
	want("no replica", route.Facts{Context: 4096})
	table.SetReplica(replica("b", 2048, false))
	want("one that is not ready", known(2048))
	table.SetReplica(replica("c", 8192, true))
	want("one that is ready", known(8192))
	table.SetReplica(replica("d", 1024, true))
	want("the shortest of those that answer", known(1024))
	other := replica("e", 16, true)
	other.DeploymentUID = "before"
	table.SetReplica(other)
	want("one of a predecessor", known(1024))
	table.DeleteReplica("d")
	want("after a deletion", known(8192))
}

// What a template of the deployment does with tools is not known.
func TestAnotherTemplateMayHaveNoTools(t *testing.T) {
	r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{ChatTemplate: "{{ messages }}", Model: model.Record{Digest: "sha256:1", Features: []model.Feature{model.Chat, model.Tools}}}}
	if route.ReplicaOf(r).Facts.Tools {
		t.Error("the replica has tools")
	}
	kept, err := route.Slim(r)
	if err != nil {
		t.Fatal(err)
	}
	r = kept.(*v1alpha1.ModelReplica)
	if route.ReplicaOf(r).Facts.Tools || r.Spec.ChatTemplate != "" {
		t.Errorf("the cache keeps the template %q, or its replica has tools", r.Spec.ChatTemplate)
	}
}

// TestAttackMetadataInTheGatewaysMemory: a tenant may write as much as etcd stores.
func TestAttackMetadataInTheGatewaysMemory(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "u", GenerateName: "g", Labels: map[string]string{"l": "v"}, Annotations: map[string]string{"a": "b"},
		Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
	for _, o := range []client.Object{&v1alpha1.ModelDeployment{ObjectMeta: meta}, &v1alpha1.ModelReplica{ObjectMeta: meta}, &v1alpha1.MacNode{ObjectMeta: meta}} {
		kept, err := route.Slim(o)
		if err != nil {
			t.Fatal(err)
		}
		have := reflect.ValueOf(kept).Elem().FieldByName("ObjectMeta").Interface()
		if d := cmp.Diff(metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "u"}, have); d != "" {
			t.Errorf("%T keeps its metadata: %s", o, d)
		}
	}
}

func TestADeploymentIsSuspendedAndResumed(t *testing.T) {
	table := route.NewTable()
	table.MarkSynced()
	for _, suspended := range []bool{true, false, true} {
		d := &v1alpha1.ModelDeployment{Spec: v1alpha1.ModelDeploymentSpec{Suspend: suspended}}
		d.Namespace, d.Name, d.UID = "ns", "d", "u"
		var changed <-chan struct{}
		if m, known := table.Lookup("ns/d"); known {
			changed = m.Changed()
		}
		kept, err := route.Slim(d)
		if err != nil {
			t.Fatal(err)
		}
		table.SetDeployment(route.DeploymentOf(kept.(*v1alpha1.ModelDeployment)))
		if m, _ := table.Lookup("ns/d"); m.Suspended() != suspended {
			t.Errorf("suspended: %v, want %v", m.Suspended(), suspended)
		}
		select {
		case <-changed:
		default:
			if changed != nil {
				t.Error("those who wait were not notified")
			}
		}
	}
}

func TestMacsThatTakeRequests(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		change func(*v1alpha1.MacNode)
		open   bool
	}{
		"nothing known against it": {change: func(*v1alpha1.MacNode) {}, open: true},
		"away": {change: func(m *v1alpha1.MacNode) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}}
		}},
		"shutting down": {change: func(m *v1alpha1.MacNode) {
			m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse}}
		}},
		"going": {change: func(m *v1alpha1.MacNode) { m.DeletionTimestamp = &now }},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1alpha1.MacNode{Status: v1alpha1.MacNodeStatus{Address: &v1alpha1.MacAddress{Host: "::1", Port: 7443}}}
			tc.change(m)
			if got := route.MacOf(m); got.Open != tc.open || got.Address != "[::1]:7443" {
				t.Errorf("MacOf = %+v", got)
			}
		})
	}
}

func BenchmarkReplicaChange(b *testing.B) {
	table := route.NewTable()
	table.MarkSynced()
	for d := range 1000 {
		key := route.Key{Namespace: "ns", Name: fmt.Sprint("d", d)}
		table.SetDeployment(route.Deployment{Key: key, UID: key.Name, Names: key.Name})
		table.SetMac(route.Mac{Name: fmt.Sprint("m", d), Address: "h:1", Open: true})
		for r := range 10 {
			table.SetReplica(route.Replica{UID: fmt.Sprint(d, "-", r), Deployment: key, DeploymentUID: key.Name, Mac: fmt.Sprint("m", r), Ready: true})
		}
	}
	for i := 0; b.Loop(); i++ {
		table.SetReplica(route.Replica{UID: "500-3", Deployment: route.Key{Namespace: "ns", Name: "d500"}, DeploymentUID: "d500", Mac: "m3", Ready: i%2 == 0})
	}
}

// Each rebuild of the index reads all deployments: a start must not do it for each of them.
func TestNamesAreIndexedOnceAtTheStart(t *testing.T) {
	table := route.NewTable()
	for _, name := range []string{"a", "b"} {
		table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: name}, UID: name, Names: name})
	}
	if names := slices.Collect(table.Names()); len(names) > 0 {
		t.Errorf("%v before all deployments were read", names)
	}
	table.MarkSynced()
	if names := slices.Collect(table.Names()); len(names) != 2 {
		t.Errorf("%v", names)
	}
	table.SetDeployment(route.Deployment{Key: route.Key{Namespace: "ns", Name: "c"}, UID: "c", Names: "c"})
	if _, known := table.Find("c"); !known {
		t.Error("a deployment that came later has no name")
	}
}
