//go:build !race

package identity

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/controllers/identity/rotation"
)

func TestARotationCutsNobodyOff(t *testing.T) {
	d := newDrama(t)
	var stages []rotation.Stage
	d.rotate(func(s rotation.Stage) {
		if len(stages) == 0 || stages[len(stages)-1] != s {
			stages = append(stages, s)
		}
	})
	if got, want := fmt.Sprint(stages), fmt.Sprint([]rotation.Stage{rotation.Publishing, rotation.Spreading, rotation.Retiring, rotation.Settled}); got != want {
		t.Errorf("it went through %s, want %s", got, want)
	}
	s, _ := d.secret(SecretCA)
	if left := len(s.Data[keyOld]) + len(s.Data[keyNext]) + len(s.Data[keyNextKey]); left > 0 || string(s.Data[keyHandled]) != s.Annotations[AnnotationRotate] {
		t.Error("something of the rotation is left, or it would begin again")
	}
	for range 12 {
		d.pass()
	}
	if d.authority().state.Stage() != rotation.Settled {
		t.Error("it began again")
	}
	if g, _ := d.secret(SecretGateway); !bytes.Equal(g.Data[keyCA], d.authority().bundle) {
		t.Error("gateways still trust the old root")
	}
}

// The write arrived, and the next one did not happen.
func TestARotationGoesOnAfterACrashAtEachWrite(t *testing.T) {
	whole := newDrama(t)
	before := whole.writes
	whole.rotate(nil)
	if whole.writes-before < 15 {
		t.Fatalf("a rotation has %d writes", whole.writes-before)
	}
	for k := before + 1; k <= whole.writes; k++ {
		t.Run(fmt.Sprintf("write %d", k-before), func(t *testing.T) {
			d := newDrama(t)
			d.crashAt = k
			d.rotate(nil)
			if d.back.IsZero() {
				t.Error("nothing crashed")
			}
		})
	}
}

// TestAMacThatIsGoneHoldsNothingUp: it is admitted again when it returns.
func TestAMacThatIsGoneHoldsNothingUp(t *testing.T) {
	d := newDrama(t)
	gone := d.macs[0]
	d.leave(gone)
	d.rotate(nil)
	gone.off = false
	d.pass()
	if err := d.handshakes(); err != nil {
		t.Error(err)
	}
}

func TestAMacThatLivesAndSaysNothingHoldsTheSwitch(t *testing.T) {
	d := newDrama(t)
	silent := d.macs[0]
	silent.off = true // its agent is stuck, but its Lease is renewed
	d.annotate(AnnotationRotate, "x")
	for range 12 * 6 {
		d.pass()
	}
	s, _ := d.secret(SecretCA)
	if got := d.authority().state.Stage(); got != rotation.Spreading {
		t.Fatalf("%s without the word of a Mac that lives", got)
	}
	if got, want := s.Annotations[AnnotationRotation], "Spreading: these live Macs have not confirmed that they trust the next root: m1"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	d.annotate(AnnotationRotateAtOnce, "now")
	for range 12 {
		d.pass()
	}
	if got := d.authority().state; got.Stage() != rotation.Settled || len(d.authority().trusted) != 1 {
		t.Errorf("%s after a rotation at once", got.Stage())
	}
	silent.off = false
	d.pass()
	if err := d.handshakes(); err != nil {
		t.Error(err)
	}
}

// This includes a root that was created for the rotation that it interrupts.
func TestARotationAtOnceLeavesNoRootOfBefore(t *testing.T) {
	for _, stage := range rotation.Stages() {
		t.Run(string(stage), func(t *testing.T) {
			d := newDrama(t)
			for n := 0; d.authority().state.Stage() != stage; n++ {
				if n == 100 {
					t.Fatalf("%s was not met", stage)
				}
				d.annotate(AnnotationRotate, "x")
				d.pass()
			}
			known := d.authority().trusted
			d.annotate(AnnotationRotateAtOnce, "leak")
			for range 12 {
				d.pass()
			}
			a := d.authority()
			if a.state.Stage() != rotation.Settled {
				t.Fatalf("%s after two hours", a.state.Stage())
			}
			for _, root := range known {
				if a.state.Signing.Fingerprint == agentapi.Fingerprint(root) {
					t.Error("a root of before signs")
				}
			}
			if err := d.handshakes(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestARootThatAgesIsReplacedByItself(t *testing.T) {
	d := newDrama(t)
	d.clock.SetTime(now.Add(caLife - rootLead))
	first := d.authority().state.Signing.Fingerprint
	for n := 0; d.authority().state.Signing.Fingerprint == first; n++ {
		if n == 100 {
			t.Fatal("it signs on")
		}
		d.pass()
	}
	if d.authority().state.Stage() != rotation.Retiring {
		t.Errorf("%s", d.authority().state.Stage())
	}
}

// The expiry of its certificates was not recorded.
func TestAnAuthorityOfAnOperatorOfOldKeepsItsRootForTheLongestLife(t *testing.T) {
	d := newDrama(t)
	s, _ := d.secret(SecretCA)
	delete(s.Data, keyIssuedUntil)
	d.must(d.api.Update(t.Context(), s))
	d.annotate(AnnotationRotate, "x")
	for range 12 {
		d.pass()
	}
	a := d.authority()
	if left := a.state.OldUntil.Sub(d.clock.Now()); a.state.Stage() != rotation.Retiring || left < LongestLife-4*time.Hour {
		t.Errorf("%s, the old root is dropped in %s", a.state.Stage(), left)
	}
}

func TestADamagedAuthorityIsToldAndLeftAlone(t *testing.T) {
	d := newDrama(t)
	d.annotate(AnnotationRotate, "x")
	d.pass()
	s, _ := d.secret(SecretCA)
	delete(s.Data, keyNextKey)
	d.must(d.api.Update(t.Context(), s))
	i := d.issuer()
	_, err := (&Rotation{Client: i.Client, Issuer: i}).Reconcile(t.Context(), reconcile.Request{})
	if !errors.Is(err, errNoAuthority) {
		t.Errorf("rotation: %v", err)
	}
	if _, _, err := i.signer(t.Context(), d.clock.Now(), time.Hour); !errors.Is(err, errNoAuthority) {
		t.Errorf("signing: %v", err)
	}
	if err := i.publish(t.Context(), "m1"); !errors.Is(err, errNoAuthority) {
		t.Errorf("telling: %v", err)
	}
	if after, _ := d.secret(SecretCA); after.ResourceVersion != s.ResourceVersion {
		t.Error("it was written")
	}
	var events corev1.EventList
	d.must(d.api.List(t.Context(), &events))
	told := false
	for _, e := range events.Items {
		told = told || e.Reason == EventAuthorityRefused && e.Type == corev1.EventTypeWarning && e.InvolvedObject.Name == SecretCA
	}
	if !told {
		t.Error("no Event is emitted")
	}
}

// Every other Mac learns the UID of a deleted MacNode before it is gone, for as long as a
// grant to it may be valid.
// A rotation and a change of the roots look at all Macs.
func TestRotationCopiesNoMacs(t *testing.T) {
	d := newDrama(t)
	c, unchanged := fleettest.Sharing(t, d.api)
	var s corev1.Secret
	d.must(d.api.Get(t.Context(), d.issuer().key(), &s))
	ca, err := parseAuthority(&s, d.clock.Now())
	d.must(err)
	w, err := (&Rotation{Client: c, Issuer: d.issuer()}).world(t.Context(), ca, &s)
	d.must(err)
	if all := (&Macs{Client: fleettest.DuringAWrite(c), Issuer: d.issuer()}).all(t.Context(), nil); len(w.Macs) != len(d.macs) || len(all) != len(d.macs) {
		t.Errorf("%d and %d Macs, want %d", len(w.Macs), len(all), len(d.macs))
	}
	unchanged()
}

func TestADeletedMacIsNamedToAllOthers(t *testing.T) {
	d := newDrama(t)
	r := &Macs{Client: d.client(), Issuer: d.issuer()}
	reconciled := func(mac string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: mac}}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(mac, uid string) {
		t.Helper()
		o := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac, UID: types.UID(uid)}}
		d.must(d.api.Create(t.Context(), o))
		reconciled(mac)
		d.must(d.api.Delete(t.Context(), o))
		reconciled(mac)
		d.clock.SetTime(d.clock.Now().Add(remembered))
		reconciled(mac)
		if err := d.api.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Fatalf("MacNode %s is still there: %v", mac, err)
		}
	}
	named := func(mac string) agentapi.Revoked {
		t.Helper()
		reconciled(mac)
		s, _ := d.secret(v1alpha1.AgentObjectName(mac))
		revoked, err := agentapi.ReadRevoked(s.Data[agentapi.KeyRevoked])
		d.must(err)
		return revoked
	}
	before, _ := d.secret(SecretCA)
	grant := d.clock.Now().Add(agentapi.MaxGrantLife)
	remove("stolen", "u1")
	after, _ := d.secret(SecretCA)
	if !rootsChanged(r.Issuer.key()).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("no Mac is looked at after another was deleted")
	}
	for _, mac := range []string{"m1", "m2"} {
		if end := named(mac)["u1"]; end < grant.Unix() {
			t.Errorf("Mac %s refuses the deleted one until %d, want at least %d", mac, end, grant.Unix())
		}
	}
	remove("stolen", "u2") // its successor
	if got := named("m1"); len(got) != 2 {
		t.Errorf("named: %v", got)
	}
	d.clock.SetTime(grant.Add(time.Hour))
	remove("another", "u3")
	if got := named("m1"); len(got) != 1 || got["u3"] == 0 {
		t.Errorf("named after all grants to the first ones expired: %v", got)
	}
	if d.pass(); d.authority() == nil {
		t.Error("the authority is gone")
	}
}
