package controllers_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/test/testenv"
)

// TestDeleteADeploymentOfADeadMac: the Mac dies at the moment of the delete.
func TestDeleteADeploymentOfADeadMac(t *testing.T) {
	w := newWorld(t)
	dead := w.mac("mac-1", holding(60*gib))
	d := w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.play(dead, silence)
	last := w.watchReplica(w.replicas("small")[0].Name)
	w.must(w.c.Delete(w.ctx, d))
	w.endsInTime(d)
	if r := last(); r.Status.Freed.HostCheck != v1alpha1.HostCheckIndeterminate || r.Status.Freed.Bytes != nil {
		t.Errorf("freed of a dead Mac: %+v, want Indeterminate and no figure", r.Status.Freed)
	}
}

// TestDeleteWhileAReplicaDrains: the Mac dies in the middle of an announced drain of an
// hour.
func TestDeleteWhileAReplicaDrains(t *testing.T) {
	w := newWorld(t)
	s := holding(60 * gib)
	s.Behave = func(v1alpha1.Assignment) fleettest.Behaviour { return fleettest.KeepsBusy }
	dead := w.mac("mac-1", s)
	d := w.deploy("small", func(s *v1alpha1.ModelDeploymentSpec) { s.Rollout.DrainSeconds = ptr.To[int32](3600) })
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.must(w.c.Delete(w.ctx, d))
	w.eventually("the Mac drains it", func() error {
		r, err := alone(w.replicas("small"))
		if err == nil && r.Status.Progress.Stage != v1alpha1.StageDraining {
			err = fmt.Errorf("stage %s", r.Status.Progress.Stage)
		}
		return err
	})
	w.pass(60 * time.Second)
	if len(w.replicas("small")) != 1 {
		t.Fatal("a replica that drains was let go")
	}
	w.play(dead, silence)
	w.endsInTime(d)
}

// TestDeleteANamespaceWhoseSecretsWentFirst: the namespace controller deletes in any order.
// One Mac is dead, the other alive, and the Secret with the hub token is deleted before the
// deployment that names it.
func TestDeleteANamespaceWhoseSecretsWentFirst(t *testing.T) {
	if !testenv.HasControllers() {
		t.Fatal("this test needs kube-controller-manager among the assets: run `make kube`")
	}
	w := hubTokens{newWorld(t)}
	w.mac("mac-1", onTheHub())
	dead := w.mac("mac-2", onTheHub())
	w.letReadSecrets()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "hub"}, StringData: map[string]string{"token": "hf_first"}}
	w.must(w.c.Create(w.ctx, secret))
	for name, mac := range map[string]string{"alive": "mac-1", "dead": "mac-2"} {
		w.withToken(name, mac, "hub")
		w.deployment(name, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	}
	w.play(dead, silence)
	w.must(w.c.Delete(w.ctx, secret))
	for _, name := range []string{"alive", "dead"} {
		w.readAgain(name)
		w.deployment(name, v1alpha1.ConditionAccepted, v1alpha1.ReasonSecretNotFound)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}
	w.must(w.c.Delete(w.ctx, ns))
	w.endsInTime(ns)
	for _, mac := range []string{"mac-1", "mac-2"} {
		w.eventually("no token stays on "+mac, func() error {
			if got := w.tokensOf(mac); len(got) > 0 {
				return fmt.Errorf("%d are there", len(got))
			}
			return nil
		})
	}
	if err := w.macs[0].Failure(); err != nil {
		t.Error("the living Mac:", err)
	}
}

// TestDeleteAMacTakesAllOfItBack: a live Mac is deleted. Its replica is created elsewhere,
// its objects are deleted, and its account has no permissions from the moment the MacNode
// is gone.
func TestDeleteAMacTakesAllOfItBack(t *testing.T) {
	w := newWorld(t)
	first := w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(60*gib))
	w.looked()
	w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	old := w.replicas("small")[0]
	if old.Spec.NodeName != "mac-1" {
		t.Fatalf("placed on %s", old.Spec.NodeName)
	}
	l := looking{a: w.asAgent("mac-1"), ctx: w.ctx}
	for what, try := range l.itsOwn() {
		w.eventually("the agent may "+what, try)
	}
	first.Stop() // its script has other rights than an agent
	mac := macNamed("mac-1")
	w.must(w.declareLost("mac-1"))
	w.must(w.c.Delete(w.ctx, mac))
	w.endsInTime(mac)
	w.macs = w.macs[1:]
	for what, try := range l.itsOwn() {
		w.eventually("the agent of a Mac that was deleted may not "+what, refused(try))
	}
	wantNothingOf(w, "mac-1")
	w.eventually("served elsewhere", func() error {
		r, err := alone(w.replicas("small"))
		if err == nil && (r.UID == old.UID || r.Spec.NodeName != "mac-2") {
			err = errors.New(brief(r))
		}
		return err
	})
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)

	// A new Mac of that name has another account: once the API server's cache of the old
	// token has expired, after 10 s, the token is invalid.
	w.mac("mac-1", holding(100*gib))
	for what, try := range l.itsOwn() {
		w.eventually("the old account may not "+what, func() error {
			if err := try(); !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("got %w, want Unauthorized", err)
			}
			return nil
		})
	}
}

// refused returns an error if the call is allowed.
func refused(try func() error) func() error {
	return func() error {
		if err := try(); !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %w, want a refusal", err)
		}
		return nil
	}
}

// wantNothingOf requires that no object of a Mac is left.
func wantNothingOf(w *world, mac string) {
	w.t.Helper()
	for _, account := range []string{"mac-" + mac, "join-" + mac} {
		here, everywhere := metav1.ObjectMeta{Namespace: system, Name: account}, metav1.ObjectMeta{Name: "metalfleet-" + account}
		for _, o := range []client.Object{
			&corev1.ServiceAccount{ObjectMeta: here}, &corev1.Secret{ObjectMeta: here}, &coordinationv1.Lease{ObjectMeta: here},
			&rbacv1.Role{ObjectMeta: here}, &rbacv1.RoleBinding{ObjectMeta: here},
			&rbacv1.ClusterRole{ObjectMeta: everywhere}, &rbacv1.ClusterRoleBinding{ObjectMeta: everywhere},
		} {
			if err := w.gone(o); err != nil {
				w.t.Error(err)
			}
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: objectOf(mac)}
	if err := w.c.SubResource("token").Create(w.ctx, account, &authenticationv1.TokenRequest{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("its account gives tokens: %v", err)
	}
}

// TestDeleteADeploymentWhoseReplicasAreOrphaned: the garbage collector removes the owner of each
// replica and revision, which this test does in its place. The replicas are released, and the revisions deleted, all the same.
func TestDeleteADeploymentWhoseReplicasAreOrphaned(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	d := w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	revisions := func() (out []appsv1.ControllerRevision) {
		var list appsv1.ControllerRevisionList
		w.must(w.c.List(w.ctx, &list, client.InNamespace(d.Namespace)))
		return list.Items
	}
	r, orphan := w.replicas("small")[0], client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`))
	w.play(mac, silence)
	w.must(w.c.Delete(w.ctx, d))
	w.must(w.c.Patch(w.ctx, &r, orphan))
	for _, old := range revisions() {
		w.must(w.c.Patch(w.ctx, &old, orphan))
	}
	w.endsInTime(d)
	w.eventually("no revision is left", func() error {
		if n := len(revisions()); n > 0 {
			return fmt.Errorf("%d revisions", n)
		}
		return nil
	})
}

// TestDeleteIsNotOverWhenAnotherEpochWasReleased: a Mac that returns first reports its old
// state. A report on a replica or an epoch that was not assigned to it releases nothing,
// and makes nothing ready.
func TestDeleteIsNotOverWhenAnotherEpochWasReleased(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	d := w.deploy("small", nil)
	w.deployment("small", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	replica := w.replicas("small")[0]
	w.play(mac, silence)
	w.must(w.c.Delete(w.ctx, d))
	is := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Forged", LastTransitionTime: metav1.Now()}
	}
	told := func(uid types.UID, epoch int64) v1alpha1.AssignmentStatus {
		return v1alpha1.AssignmentStatus{ReplicaUID: string(uid), Epoch: epoch, Conditions: []metav1.Condition{is(v1alpha1.ConditionServing), is(v1alpha1.ConditionReleased)},
			Freed: v1alpha1.Freed{Bytes: ptr.To[int64](1 << 50), TotalBytes: 1 << 50, Reason: v1alpha1.ReclaimDrained, HostCheck: v1alpha1.HostCheckVerified}}
	}
	var m v1alpha1.MacNode
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &m))
	before := m.DeepCopy()
	m.Status.Assignments = []v1alpha1.AssignmentStatus{told(replica.UID, replica.Spec.Epoch+1), told("00000000-0000-0000-0000-000000000000", 1)}
	w.must(w.c.Status().Patch(w.ctx, &m, client.MergeFrom(before)))
	w.settled(time.Second)
	rs := w.replicas("small")
	if len(rs) != 1 || meta.IsStatusConditionTrue(rs[0].Status.Conditions, v1alpha1.ConditionReleased) || rs[0].Status.Freed.TotalBytes != 0 {
		t.Fatalf("another epoch's word released it: %d replicas", len(rs))
	}
	if n := w.get("small").Status.FreedBytesTotal; n != 0 {
		t.Errorf("%d bytes of an unknown epoch are counted as freed", n)
	}
	w.endsInTime(d)
}

// TestDeleteAndAMacThatComesBack: its deployment and its namespace are gone when it
// returns. It stops its engine and gets other assignments; no memory is reserved twice.
func TestDeleteAndAMacThatComesBack(t *testing.T) {
	w := newWorld(t)
	mac := w.mac("mac-1", holding(60*gib))
	d := w.deploy("first", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("36Gi") })
	w.deployment("first", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	old := w.replicas("first")[0]
	w.play(mac, silence)
	w.must(w.c.Delete(w.ctx, d))
	w.endsInTime(d)
	w.deploy("second", func(s *v1alpha1.ModelDeploymentSpec) { s.Memory.Limit = quantity("36Gi") })
	w.pass(20 * time.Second)
	for _, r := range w.replicas("second") {
		if r.Spec.NodeName != "" {
			t.Fatal("a Mac that is gone was given work")
		}
	}
	w.play(mac, func(s *fleettest.Script) { s.Silent = false })
	w.deployment("second", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.eventually("the Mac stopped what it held", func() error {
		var m v1alpha1.MacNode
		w.must(w.c.Get(w.ctx, client.ObjectKey{Name: "mac-1"}, &m))
		a := w.assigned("mac-1")
		switch {
		case len(m.Status.Reclaims) != 1 || m.Status.Reclaims[0].ReplicaUID != string(old.UID) || m.Status.Reclaims[0].Reason != v1alpha1.ReclaimUnassigned:
			return fmt.Errorf("reclaims %v", m.Status.Reclaims)
		case len(a.Assignments) != 1 || a.Assignments[0].ReplicaUID == string(old.UID):
			return errors.New("its orders name another replica than the second's")
		case m.Status.Memory.ReservedBytes != 36*gib:
			return fmt.Errorf("%d bytes are reserved, want those of one replica", m.Status.Memory.ReservedBytes)
		}
		return nil
	})
}
