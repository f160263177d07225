//go:build !race

package modeldeployment

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// TestAttackEditsFillTheHistory: each edit of a few bytes makes a revision of 96 KiB.
func TestAttackEditsFillTheHistory(t *testing.T) {
	s := rolled(nil)
	s.deployment.Spec.RevisionHistoryLimit = ptr.To[int32](100)
	s.revisions = nil
	for i := range 100 {
		object := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("edit-", i)}, Revision: int64(i)}
		object.Data.Raw = make([]byte, 96<<10)
		s.revisions = append(s.revisions, revision{object: object})
	}
	s.revisions[3].object.Name = "old" // it served
	s.current = &s.revisions[99]
	gone, bytes := map[string]bool{}, 0
	for _, r := range surplusRevisions(s) {
		gone[r.object.Name] = true
	}
	for _, r := range s.revisions {
		if !gone[r.object.Name] {
			bytes += len(r.object.Data.Raw)
		}
	}
	if gone["edit-99"] || gone["old"] || gone["edit-98"] || bytes > 2*96<<10+maxHistoryBytes {
		t.Errorf("%d bytes stay; current removed: %v, served: %v, previous: %v", bytes, gone["edit-99"], gone["old"], gone["edit-98"])
	}
	s.revisions[98].object.Data.Raw = make([]byte, 2*maxHistoryBytes)
	if n := len(surplusRevisions(s)); n != 97 {
		t.Errorf("%d go before a large previous one, want all other 97", n)
	}
}

// wide gives a scope a revision whose replicas take about 90 KiB each.
func wide(s *scope) {
	var files []model.File
	for i := range 200 {
		files = append(files, model.File{Path: fmt.Sprint(strings.Repeat("x", 100), i), Bytes: 1, SHA256: strings.Repeat("ab", 32)})
	}
	s.deployment.Spec.Model.Source = "file://models/m"
	e, refusal := fleet.Resolve(&s.deployment.Spec, fleettest.Model("file://models/m", "m", 98_000_000))
	if refusal != nil {
		panic(refusal)
	}
	s.revisions[2].engine = e
	s.revisions[2].engine.Model.Files = files
	s.deployment.Namespace, s.deployment.UID, s.deployment.Status.CurrentRevision = "ns", "own", "new"
	s.deployment.Spec.Replicas = ptr.To[int32](1000)
}

// TestAttackReplicasThatNoMacCanHold: a small manifest makes replicas that no quota counts.
func TestAttackReplicasThatNoMacCanHold(t *testing.T) {
	s := rolled(wide)
	missing := plan(s.desired(), nil, now).create
	one, err := newReplica(s, missing[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := fleet.ReplicaBytes(one); n < 80<<10 || len(missing)*n > maxUnplacedBytes || len(missing) < 2 {
		t.Errorf("%d replicas of %d bytes", len(missing), n)
	}
	small := rolled(wide)
	small.revisions[2].engine.Model.Files = nil
	if n := len(plan(small.desired(), nil, now).create); n != maxUnplaced {
		t.Errorf("%d small replicas, want %d", n, maxUnplaced)
	}
}

// TestAttackManyDeploymentsOfUnplacedReplicas: their replicas together are bounded, and each
// deployment has one that waits.
func TestAttackManyDeploymentsOfUnplacedReplicas(t *testing.T) {
	s := rolled(wide)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme)
	for i := range 50 {
		r, err := newReplica(s, replicaToCreate{revision: "new", slot: int32(i)})
		if err != nil {
			t.Fatal(err)
		}
		r.Spec.DeploymentRef.UID = "another"
		c.WithObjects(r)
	}
	reconciler := &Reconciler{Client: c.Build()}
	missing := plan(s.desired(), nil, now).create
	for name, want := range map[string]int{"full": 1, "empty": len(missing)} {
		s.footprint = nil // another pass
		if s.deployment.Namespace = "ns"; name == "empty" {
			s.deployment.Namespace = name
		}
		if got, err := reconciler.withinNamespace(t.Context(), s, missing, 0); err != nil || len(got) != want {
			t.Errorf("%s: %d replicas (%v), want %d", name, len(got), err, want)
		}
	}
	s.deployment.Namespace, s.footprint = "ns", nil
	if got, err := reconciler.withinNamespace(t.Context(), s, missing, 1); err != nil || len(got) != 0 {
		t.Errorf("%d replicas more (%v), want none", len(got), err)
	}
}

// TestAttackPrefetchersThatWait: they have the bounds of other replicas, which come first.
func TestAttackPrefetchersThatWait(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build()}
	deployment := func(i int, serving int32) *scope {
		s := rolled(wide)
		s.deployment.Name, s.deployment.UID = fmt.Sprint("d", i), types.UID(fmt.Sprint("uid-", i))
		s.deployment.Spec.Replicas, s.deployment.Spec.Prefetch.Macs = &serving, 500
		if err := errors.Join(r.carryOut(t.Context(), s, plan(s.desired(), s.replicas, now)), r.prefetch(t.Context(), s)); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := deployment(0, 0); len(s.prefetchers) != s.unplaced() || s.unplaced() != 2 {
		t.Errorf("%d prefetchers of a deployment wait, want %d", len(s.prefetchers), s.unplaced())
	}
	if s := deployment(1, 1); len(s.replicas) != 1 || len(s.prefetchers) != 1 {
		t.Errorf("%d replicas and %d prefetchers wait, want one of each", len(s.replicas), len(s.prefetchers))
	}
	if s := deployment(2, 9); len(s.replicas) != 2 || len(s.prefetchers) != 0 {
		t.Errorf("%d replicas and %d prefetchers wait, want two replicas", len(s.replicas), len(s.prefetchers))
	}
	for i := range 40 {
		deployment(3+i, 0)
	}
	if s := deployment(50, 0); len(s.prefetchers) != 1 {
		t.Errorf("%d prefetchers wait in a full namespace, want 1", len(s.prefetchers))
	}
	if s := deployment(51, 9); len(s.replicas) != 1 || len(s.prefetchers) != 0 {
		t.Errorf("%d replicas and %d prefetchers wait in a full namespace, want one replica", len(s.replicas), len(s.prefetchers))
	}
	var list v1alpha1.ModelReplicaList
	if err := r.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items { // each has a Mac
		list.Items[i].Spec.PrefetchNodeName = "mac-1"
		if err := r.Client.Update(t.Context(), &list.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	if s := deployment(52, 9); len(s.replicas) != 2 {
		t.Errorf("%d replicas wait where prefetchers have Macs, want 2", len(s.replicas))
	}
}
