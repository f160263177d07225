//go:build !race

package modeldeployment

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// placer is an API server that keeps replicas, and gives each a Mac.
type placer struct {
	client.Client
	replicas []v1alpha1.ModelReplica
}

func (p *placer) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	of := (&client.ListOptions{}).ApplyOptions(opts)
	l.(*v1alpha1.ModelReplicaList).Items = slices.DeleteFunc(slices.Clone(p.replicas), func(r v1alpha1.ModelReplica) bool {
		return of.Namespace != "" && r.Namespace != of.Namespace
	})
	return nil
}

func (p *placer) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	r := o.(*v1alpha1.ModelReplica).DeepCopy()
	if r.UID = types.UID(r.Name); fleet.Prefetches(r) {
		r.Spec.PrefetchNodeName = r.Name
	} else {
		r.Spec.NodeName = "mac-1"
	}
	p.replicas = append(p.replicas, *r)
	return nil
}

func (p *placer) at(name string) int {
	return slices.IndexFunc(p.replicas, func(r v1alpha1.ModelReplica) bool { return r.Name == name })
}

func (p *placer) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	p.replicas[p.at(o.GetName())] = *o.(*v1alpha1.ModelReplica).DeepCopy()
	return nil
}

func (p *placer) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	i := p.at(o.GetName())
	p.replicas = slices.Delete(p.replicas, i, i+1)
	return nil
}

// bytes is what all replicas take.
func (p *placer) bytes() (n int) {
	for i := range p.replicas {
		n += bytesOf(&p.replicas[i])
	}
	return n
}

// deployed is a scope of one of many deployments of OnDemand replicas.
func (p *placer) deployed(name string, replicas, macs int32, placement v1alpha1.PlacementSpec) *scope {
	s := rolled(wide)
	s.revisions[2].engine.Model.Files = s.revisions[2].engine.Model.Files[:2]
	s.deployment.Name, s.deployment.UID = name, types.UID(name)
	s.deployment.Spec.Replicas, s.deployment.Spec.Prefetch.Macs = ptr.To(replicas), macs
	s.deployment.Spec.Residency.Policy, s.deployment.Spec.Placement = v1alpha1.ResidencyOnDemand, placement
	var own []v1alpha1.ModelReplica
	for _, r := range p.replicas {
		if r.Spec.DeploymentRef.UID == name {
			own = append(own, *r.DeepCopy())
		}
	}
	s.replicas, s.prefetchers = fleet.Serving(own)
	return s
}

// pass is what Reconcile does with a scope.
func (p *placer) pass(t *testing.T, s *scope) {
	t.Helper()
	r := &Reconciler{Client: p}
	if s.failure = r.carryOut(t.Context(), s, plan(s.desired(), s.replicas, now)); s.failure == nil {
		s.failure = r.prefetch(t.Context(), s)
	}
	if s.failure != nil && !full(s.failure) {
		t.Fatal(s.failure)
	}
}

// wideAffinity is a placement of about 30 KB that any Mac matches.
func wideAffinity() v1alpha1.PlacementSpec {
	term := v1alpha1.NodeSelectorTerm{}
	for i := range 14 {
		r := v1alpha1.NodeSelectorRequirement{Key: fmt.Sprint("k", i), Operator: corev1.NodeSelectorOpNotIn}
		for range 32 {
			r.Values = append(r.Values, strings.Repeat("x", 60))
		}
		term.MatchExpressions = append(term.MatchExpressions, r)
	}
	required := &v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{term}}
	return v1alpha1.PlacementSpec{Affinity: &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}}
}

// TestAttackPlacedReplicasOfManyBytes: OnDemand replicas and prefetches, all with a Mac, whose
// deployments state a placement of 30 KB.
func TestAttackPlacedReplicasOfManyBytes(t *testing.T) {
	p, last := &placer{}, (*scope)(nil)
	for before := -1; before < len(p.replicas); {
		before = len(p.replicas)
		for i := range 4 {
			last = p.deployed(fmt.Sprint("d", i), 1000, 200, wideAffinity())
			p.pass(t, last)
		}
	}
	if n := p.bytes(); n > fleet.ReplicasRoom.Namespace || n < fleet.ReplicasRoom.Namespace-100<<10 {
		t.Errorf("%d replicas take %d bytes, want up to %d", len(p.replicas), n, fleet.ReplicasRoom.Namespace)
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionDegraded} {
		if c := condition(deriveStatus(last).Conditions, kind); c.Reason != v1alpha1.ReasonCreateFailed || !strings.Contains(c.Message, "shorten spec.placement") {
			t.Errorf("%s: %s, %s", kind, c.Reason, c.Message)
		}
	}
	if p.pass(t, p.deployed("another", 1, 0, v1alpha1.PlacementSpec{})); p.bytes() > fleet.ReplicasRoom.Namespace {
		t.Errorf("a deployment in a full namespace creates up to %d bytes", p.bytes())
	}
	// What makes room is not delayed, and then others continue.
	p.pass(t, p.deployed("d0", 0, 0, wideAffinity()))
	s := p.deployed("another", 1, 0, v1alpha1.PlacementSpec{})
	if p.pass(t, s); s.failure != nil || len(s.replicas) != 1 {
		t.Errorf("%d replicas once there is room, %v", len(s.replicas), s.failure)
	}
}

// TestAttackPlacedReplicasThatGrow: the placement of existing replicas is changed in place.
func TestAttackPlacedReplicasThatGrow(t *testing.T) {
	p := &placer{}
	p.pass(t, p.deployed("d", 1, 1, v1alpha1.PlacementSpec{}))
	for i := int32(1); len(p.replicas) < 1530; i++ {
		r := p.replicas[1] // the prefetching one
		if i < 1500 {
			r = p.replicas[0]
		}
		r.Name, r.Spec.Slot = fmt.Sprint("r", i), i
		r.UID = types.UID(r.Name)
		p.replicas = append(p.replicas, r)
	}
	follow := func(placement v1alpha1.PlacementSpec) *scope {
		for {
			s := p.deployed("d", 1500, 30, placement)
			s.deployment.Spec.Rollout.DrainSeconds = ptr.To[int32](7)
			if p.pass(t, s); !s.more {
				return s
			}
		}
	}
	if s := follow(wideAffinity()); !full(s.failure) || p.bytes() > fleet.ReplicasRoom.Namespace {
		t.Errorf("%d bytes, %v", p.bytes(), s.failure)
	}
	narrow := 0
	for _, r := range p.replicas {
		if r.Spec.Placement.Affinity == nil {
			narrow++
		}
		if !fleet.Prefetches(&r) && r.Spec.DrainSeconds != 7 {
			t.Fatalf("%s keeps its drainSeconds", r.Name)
		}
	}
	if narrow < 100 || narrow > 1400 {
		t.Errorf("%d replicas keep their placement", narrow)
	}
	if s := follow(v1alpha1.PlacementSpec{}); s.failure != nil || p.bytes() > fleet.ReplicasRoom.Namespace/2 {
		t.Errorf("%d bytes with the short placement again, %v", p.bytes(), s.failure)
	}
}

// TestThousandsOfSmallReplicasFitIntoANamespace: the bound is for large specs.
func TestThousandsOfSmallReplicasFitIntoANamespace(t *testing.T) {
	p := &placer{}
	s := p.deployed("d", 1, 0, v1alpha1.PlacementSpec{NodeSelector: map[string]string{"room": "lab-2"}})
	p.pass(t, s)
	for i := range 7999 {
		r := p.replicas[0]
		r.Name = fmt.Sprint("r", i)
		p.replicas = append(p.replicas, r)
	}
	s = p.deployed("e", 1, 0, v1alpha1.PlacementSpec{})
	if p.pass(t, s); s.failure != nil || len(s.replicas) != 1 {
		t.Errorf("%d replicas, %v", len(s.replicas), s.failure)
	}
}

// revising is an API server that has revisions.
type revising struct {
	placer
	revisions appsv1.ControllerRevisionList
}

func (v *revising) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	of := (&client.ListOptions{}).ApplyOptions(opts)
	l.(*appsv1.ControllerRevisionList).Items = slices.DeleteFunc(slices.Clone(v.revisions.Items), func(r appsv1.ControllerRevision) bool {
		return of.Namespace != "" && r.Namespace != of.Namespace
	})
	return nil
}

func (v *revising) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	v.revisions.Items = append(v.revisions.Items, *o.(*appsv1.ControllerRevision))
	return nil
}

// TestAttackManyDeploymentsWithRevisions: each has few, and all together fill the memory.
func TestAttackManyDeploymentsWithRevisions(t *testing.T) {
	s, v := rolled(wide), &revising{}
	for range fleet.RevisionsRoom.Namespace>>20 - 1 {
		v.revisions.Items = append(v.revisions.Items, revisionOf(s.deployment.Namespace))
	}
	r := &Reconciler{Client: v}
	e := s.revisions[0].engine
	e.Context.MaxTokens++
	if _, err := r.ensureRevision(t.Context(), s, e); err != nil {
		t.Fatalf("refused although there is room: %v", err)
	}
	v.revisions.Items = append(v.revisions.Items, revisionOf(s.deployment.Namespace))
	before := len(v.revisions.Items)
	e.Context.MaxTokens++
	_, err := r.ensureRevision(t.Context(), s, e)
	if s.failure = err; !refused(err) || s.failureReason() != v1alpha1.ReasonCreateFailed || len(v.revisions.Items) != before {
		t.Errorf("a revision beyond the room: %v", err)
	}
	if _, err := r.ensureRevision(t.Context(), s, s.revisions[len(s.revisions)-1].engine); err != nil {
		t.Errorf("a revision that exists is refused: %v", err)
	}
}

// TestRevisionsTakeNoMoreThanTheyAreCountedFor: an edit of a number makes another engine of less
// than 1 KB, of which a deployment may keep a hundred.
func TestRevisionsTakeNoMoreThanTheyAreCountedFor(t *testing.T) {
	const many = 10_000
	s, v := rolled(wide), &revising{}
	s.deployment.Name = strings.Repeat("d", 52)
	e := s.revisions[0].engine
	e.Model = fleettest.Model("hf://owner/name", "a", 1<<20)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, fleet.IndexOwner: func(o any) ([]string, error) {
		owner := string(metav1.GetControllerOf(o.(*appsv1.ControllerRevision)).UID)
		return []string{owner, s.deployment.Namespace + "/" + owner}, nil
	}})
	var before, after goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	for i := range many {
		s.deployment.UID = types.UID(fmt.Sprintf("%036d", i/2)) // two of each
		e.Context.MaxTokens = int64(i)
		v.revisions.Items, s.revisions = nil, nil
		if _, err := (&Reconciler{Client: v}).ensureRevision(t.Context(), s, e); err != nil {
			t.Fatal(err)
		}
		o := &appsv1.ControllerRevision{}
		if text, err := json.Marshal(v.revisions.Items[0]); err != nil || json.Unmarshal(text, o) != nil {
			t.Fatal(err)
		}
		o.Annotations, o.UID, o.ResourceVersion = nil, s.deployment.UID, fmt.Sprint(i)
		if err := store.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	goruntime.GC()
	goruntime.ReadMemStats(&after)
	v.revisions.Items = nil
	for _, o := range store.List() {
		v.revisions.Items = append(v.revisions.Items, *o.(*appsv1.ControllerRevision))
	}
	counted, err := (&Reconciler{Client: v}).revisionBytes(t.Context())
	if taken := int(after.HeapAlloc) - int(before.HeapAlloc); err != nil || taken > counted {
		t.Errorf("%d revisions take %d bytes each, and are counted for %d (%v)", many, taken/many, counted/many, err)
	}
}

// revisionOf is a revision of 1 MiB.
func revisionOf(namespace string) appsv1.ControllerRevision {
	r := appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: make([]byte, 1<<20)}}
	r.Namespace = namespace
	return r
}

// TestAttackNamespacesWithRevisions: each of several namespaces has as many as one may, and all
// together fill the memory. Another one keeps its least room.
func TestAttackNamespacesWithRevisions(t *testing.T) {
	const namespaces = 6
	s, v := rolled(wide), &revising{}
	e := s.revisions[0].engine
	for i := range namespaces {
		s.deployment.Namespace = fmt.Sprint("evil-", i)
		had := len(v.revisions.Items)
		for err := error(nil); err == nil; {
			e.Context.MaxTokens++
			if _, err = (&Reconciler{Client: v}).ensureRevision(t.Context(), s, e); err == nil {
				v.revisions.Items[len(v.revisions.Items)-1] = revisionOf(s.deployment.Namespace)
			}
		}
		if more := (len(v.revisions.Items) - had) << 20; more < fleet.RevisionsRoom.Least {
			t.Errorf("namespace %d has room for %d bytes", i, more)
		}
	}
	if n := len(v.revisions.Items) << 20; n > fleet.RevisionsRoom.All+namespaces*fleet.RevisionsRoom.Least {
		t.Errorf("%d namespaces have %d bytes", namespaces, n)
	}
}

// TestAttackNamespacesWithReplicas: each of several namespaces has as many as one may.
func TestAttackNamespacesWithReplicas(t *testing.T) {
	const namespaces = 6
	p := &placer{}
	for i := range namespaces {
		had := p.bytes()
		for before := -1; before < len(p.replicas); {
			before = len(p.replicas)
			s := p.deployed(fmt.Sprint("d", i), 1000, 1000, wideAffinity())
			s.deployment.Namespace = fmt.Sprint("evil-", i)
			p.pass(t, s)
		}
		if more := p.bytes() - had; more < fleet.ReplicasRoom.Least-100<<10 {
			t.Errorf("namespace %d has room for %d bytes", i, more)
		}
	}
	if n := p.bytes(); n > fleet.ReplicasRoom.All+namespaces*fleet.ReplicasRoom.Least {
		t.Errorf("%d namespaces have %d bytes", namespaces, n)
	}
}
