package controllers_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/controllers/identity"
)

// freshAuthority creates an authority for this test and the following ones: a root from a
// jumped clock would not be valid yet.
func freshAuthority(t *testing.T) {
	t.Helper()
	forget := func() {
		c, err := client.New(env.Config(), client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{identity.SecretCA, identity.SecretGateway} {
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
			if err := c.Delete(context.Background(), s); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	}
	forget()
	t.Cleanup(forget)
}

// rotations is the world whose authority is replaced.
type rotations struct{ joins }

// touch annotates the authority's Secret; any change triggers the operator before its own
// timers.
func (w rotations) touch(key, value string) {
	w.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: identity.SecretCA}}
	w.change(s, func() { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) })
}

// rotationSays waits for the annotation about the rotation.
func (w rotations) rotationSays(parts ...string) {
	w.t.Helper()
	w.eventually("the rotation says "+strings.Join(parts, " and "), func() error {
		var s corev1.Secret
		if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretCA}, &s); err != nil {
			return err
		}
		for _, p := range parts {
			if !strings.Contains(s.Annotations[identity.AnnotationRotation], p) {
				return fmt.Errorf("it says %q", s.Annotations[identity.AnnotationRotation])
			}
		}
		return nil
	})
}

// rootsOf returns the fingerprints of the trusted roots in a Secret.
func (w rotations) rootsOf(name string) ([]string, error) {
	var s corev1.Secret
	if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: name}, &s); err != nil {
		return nil, err
	}
	_, fingerprints, err := agentapi.Roots(s.Data["ca.crt"])
	return fingerprints, err
}

func (w rotations) wantRoots(n int, names ...string) (roots []string) {
	w.t.Helper()
	for _, name := range names {
		w.eventually(fmt.Sprintf("Secret %s names %d roots", name, n), func() error {
			var err error
			if roots, err = w.rootsOf(name); err == nil && len(roots) != n {
				err = fmt.Errorf("it names %d", len(roots))
			}
			return err
		})
	}
	return roots
}

// signedBy returns which root of the gateways' Secret has signed.
func (w rotations) signedBy(leaf *x509.Certificate) string {
	w.t.Helper()
	var s corev1.Secret
	w.must(w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretGateway}, &s))
	for _, pem := range strings.SplitAfter(string(s.Data["ca.crt"]), "-----END CERTIFICATE-----\n") {
		if strings.TrimSpace(pem) == "" {
			continue
		}
		root, err := x509.ParseCertificate(der(w.t, []byte(pem)))
		w.must(err)
		if leaf.CheckSignatureFrom(root) == nil {
			return agentapi.Fingerprint(root)
		}
	}
	return "a root that gateways do not trust"
}

func (w rotations) confirm(a *fleettest.Agent, roots []string) {
	w.t.Helper()
	w.play(a, func(s *fleettest.Script) { s.Roots = slices.Clone(roots) })
}

func (w rotations) forgetMac(name string) {
	w.t.Helper()
	mac := macNamed(name)
	w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, mac)))
	w.eventually(name+" is gone", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(mac), mac); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}

// There are two live Macs, one that joins meanwhile with an older token, one that never
// came, and two operators in succession.
func TestTheAuthorityRotates(t *testing.T) {
	freshAuthority(t)
	w := rotations{joins{newWorld(t)}}
	a, b := w.mac("mac-1", holding(gib)), w.mac("mac-2", holding(gib))
	w.must(w.c.Create(w.ctx, macNamed("never-came")))
	defer w.forgetMac("never-came")
	early := w.mint("late")
	defer w.forgetMac("late")
	gateway, _, _ := w.secretOf(identity.SecretGateway)
	old := w.wantRoots(1, identity.SecretGateway, "mac-mac-1", "mac-mac-2")
	w.confirm(a, old)
	w.confirm(b, old)

	// 1. Both roots are published; the old one signs.
	w.touch(identity.AnnotationRotate, "1")
	both := w.wantRoots(2, identity.SecretGateway, "mac-mac-1", "mac-mac-2", "mac-never-came", "mac-late")
	w.rotationSays("Spreading", "gateways have time to read the next root until")
	if got := w.signedBy(w.joined("mac-1").certificate.Leaf); got != old[0] {
		t.Errorf("while gateways read the next root, %s signs", got)
	}
	after, _, _ := w.secretOf(identity.SecretGateway)
	if !after.Leaf.Equal(gateway.Leaf) {
		t.Error("the gateways' certificate was replaced before its time")
	}

	// 2. Live Macs are waited for, one by one, by either operator.
	w.pass(authoritySpread + 20*time.Second)
	w.touch("test/wake", "1")
	w.rotationSays("Spreading", "mac-1, mac-2")
	w.stop()
	w.startOperator()
	w.confirm(a, both)
	w.rotationSays("Spreading", "next root: mac-2")
	w.confirm(b, both)
	w.rotationSays("Retiring")

	// 3. An older token is valid under the root that signs now.
	joined := w.joinedWith(early)
	if got := w.signedBy(joined.certificate.Leaf); got == old[0] || !slices.Contains(w.wantRoots(2, "mac-late"), got) {
		t.Errorf("after the switch %s signs", got)
	}
	after, _, _ = w.secretOf(identity.SecretGateway)
	if !after.Leaf.Equal(gateway.Leaf) || w.signedBy(after.Leaf) != old[0] {
		t.Error("the switch replaced the gateways' certificate before its time")
	}

	// 4. The old root is dropped when no certificate of it can be valid.
	w.retires(old[0])
	w.wantEvents(identity.EventRotationBegun, identity.EventRotationSpread, identity.EventRootSigns, identity.EventRotationEnded)
}

// retires advances the time until the old root is dropped.
func (w rotations) retires(old string) {
	w.t.Helper()
	w.clock.jump(27 * time.Hour)
	w.touch("test/wake", "2")
	w.rotationSays("Settled")
	last := w.wantRoots(1, identity.SecretGateway, "mac-mac-1", "mac-mac-2", "mac-never-came", "mac-late")
	if last[0] == old {
		w.t.Error("the old root stays and the next one went")
	}
	w.eventually("gateways have a certificate of it", func() error {
		now, _, _ := w.secretOf(identity.SecretGateway)
		if w.signedBy(now.Leaf) != last[0] {
			return errors.New("it is of another root")
		}
		return nil
	})
}

// wantEvents requires Events about the current Secret of the authority.
func (w rotations) wantEvents(reasons ...string) {
	w.t.Helper()
	var s corev1.Secret
	w.must(w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: identity.SecretCA}, &s))
	w.eventually("Events of each step", func() error {
		var list corev1.EventList
		if err := w.c.List(w.ctx, &list, client.InNamespace(system)); err != nil {
			return err
		}
		var told []string
		for _, e := range list.Items {
			if e.InvolvedObject.UID == s.UID {
				told = append(told, e.Reason)
			}
		}
		for _, r := range reasons {
			if !slices.Contains(told, r) {
				return fmt.Errorf("there is no Event %s among %v", r, told)
			}
		}
		return nil
	})
}
