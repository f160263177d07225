package controllers_test

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/identity/jointoken"
)

// enrolling is an enrolment token, and a client that has it.
type enrolling struct {
	joins
	name string
	c    client.Client
}

// enrolment creates an enrolment token as an administrator.
func (w joins) enrolment(name string, change func(*jointoken.EnrolmentOptions)) enrolling {
	w.t.Helper()
	server, ca, err := jointoken.Endpoint(env.Config())
	w.must(err)
	o := jointoken.EnrolmentOptions{Name: name, Count: 2, Namespace: system, Server: server, CA: ca}
	if change != nil {
		change(&o)
	}
	text, _, err := jointoken.MintEnrolment(w.ctx, w.c, o)
	w.must(err)
	token, err := join.Parse(text)
	w.must(err)
	w.t.Cleanup(func() { w.must(client.IgnoreNotFound(w.revoke(name))) })
	e := enrolling{joins: w, name: name, c: w.as(token.Credential)}
	w.eventually("the token may read its requests", func() error {
		return client.IgnoreNotFound(e.c.Get(w.ctx, client.ObjectKey{Name: join.EnrolmentRequest(name, 0)}, &certificatesv1.CertificateSigningRequest{}))
	})
	return e
}

func (w joins) revoke(enrolment string) error {
	return w.c.Delete(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: join.EnrolmentAccount(enrolment)}})
}

// asks makes a Mac's request in a slot; it returns its key.
func (e enrolling) asks(slot int, mac string) *ecdsa.PrivateKey {
	e.t.Helper()
	key, request := e.request(mac)
	e.asksWith(slot, request)
	return key
}

func (e enrolling) asksWith(slot int, request []byte) {
	e.t.Helper()
	csr := asked(join.EnrolmentAccount(e.name), request)
	csr.Name = join.EnrolmentRequest(e.name, slot)
	e.create(e.c, csr)
}

// answer waits until a request is signed (""), or denied for a reason.
func (e enrolling) answer(slot int) (csr *certificatesv1.CertificateSigningRequest, reason string) {
	e.t.Helper()
	csr = &certificatesv1.CertificateSigningRequest{}
	e.eventually(fmt.Sprintf("request %d is answered", slot), func() error {
		if err := e.c.Get(e.ctx, client.ObjectKey{Name: join.EnrolmentRequest(e.name, slot)}, csr); err != nil {
			return err
		}
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				reason = c.Reason
				return nil
			}
		}
		if len(csr.Status.Certificate) == 0 {
			return errors.New("neither certificate nor refusal")
		}
		return nil
	})
	return csr, reason
}

// access opens what a signed request brought.
func (e enrolling) access(csr *certificatesv1.CertificateSigningRequest, key *ecdsa.PrivateKey) (join.Access, error) {
	for _, c := range csr.Status.Conditions {
		if c.Type == join.ConditionAccess {
			sealed, err := join.DecodeAccess(c.Message)
			e.must(err)
			return join.Open(key, string(csr.UID), sealed)
		}
	}
	return join.Access{}, errors.New("there is no condition " + join.ConditionAccess)
}

// forgetsMac deletes a MacNode and waits until it is gone.
func (w joins) forgetsMac(mac string) {
	w.t.Helper()
	w.must(client.IgnoreNotFound(w.declareLost(mac)))
	node := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: mac}}
	w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, node)))
	w.eventually("MacNode "+mac+" is gone", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(node), node); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w)", err)
		}
		return nil
	})
}

// uses returns the Macs that the Secret of the enrolment counts.
func (e enrolling) uses() map[string]join.Use {
	e.t.Helper()
	var anchor corev1.Secret
	e.must(e.world.c.Get(e.ctx, client.ObjectKey{Namespace: system, Name: join.EnrolmentAccount(e.name)}, &anchor))
	have, err := join.ReadEnrolment(anchor.Data)
	e.must(err)
	return have.Uses
}

func TestMacsEnrolWithOneToken(t *testing.T) {
	w := joins{newWorld(t)}
	e := w.enrolment("lab", nil)
	t.Cleanup(func() { w.forgetsMac("lab-1") })
	key := e.asks(3, "lab-1")
	csr, reason := e.answer(3)
	if reason != "" {
		t.Fatal(reason)
	}
	access, err := e.access(csr, key)
	w.must(err)
	var mac v1alpha1.MacNode
	own := w.as(access.Token)
	w.eventually("the Mac reads its MacNode", func() error { return own.Get(w.ctx, client.ObjectKey{Name: "lab-1"}, &mac) })
	fingerprint, err := join.Fingerprint(&key.PublicKey)
	w.must(err)
	if mac.Labels[v1alpha1.LabelEnrolment] != "lab" || mac.Annotations[v1alpha1.AnnotationEnrolledKey] != fingerprint || e.uses()["lab-1"].Key != fingerprint {
		t.Errorf("MacNode %v %v, uses %v", mac.Labels, mac.Annotations, e.uses())
	}
	w.clock.jump(3 * time.Minute) // after the time to collect it
	w.wake(csr)
	w.eventually("its slot is free", func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(csr), csr); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the request is there (%w)", err)
		}
		return nil
	})
}

func TestAMacWaitsForAPersonsApproval(t *testing.T) {
	w := joins{newWorld(t)}
	e := w.enrolment("guarded", func(o *jointoken.EnrolmentOptions) { o.Approval = true })
	t.Cleanup(func() { w.forgetsMac("guarded-1") })
	e.asks(0, "guarded-1")
	e.asks(1, "elsewhere") // judged before a person sees it
	if _, reason := e.answer(1); reason != join.ReasonNameNotAllowed {
		t.Errorf("a name out of the pattern: %q", reason)
	}
	var csr certificatesv1.CertificateSigningRequest
	w.must(w.c.Get(w.ctx, client.ObjectKey{Name: join.EnrolmentRequest("guarded", 0)}, &csr))
	if len(csr.Status.Conditions) > 0 || len(e.uses()) > 0 {
		t.Fatalf("without approval: %v, uses %v", csr.Status.Conditions, e.uses())
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByAPerson"}}
	w.must(w.c.SubResource("approval").Update(w.ctx, &csr))
	if _, reason := e.answer(0); reason != "" {
		t.Errorf("after approval: %q", reason)
	}
}

// TestAttackTwoMachinesEnrolUnderOneName: one of them gets the name, and nothing that the other
// could read helps it.
func TestAttackTwoMachinesEnrolUnderOneName(t *testing.T) {
	w := joins{newWorld(t)}
	e := w.enrolment("twins", func(o *jointoken.EnrolmentOptions) { o.Count = 10 })
	t.Cleanup(func() { w.forgetsMac("twins-1") })
	keys := make([]*ecdsa.PrivateKey, 4)
	requests := make([][]byte, len(keys))
	var all sync.WaitGroup
	for i := range keys {
		keys[i], requests[i] = w.request("twins-1")
	}
	for i := range keys {
		all.Go(func() { e.asksWith(i, requests[i]) })
	}
	all.Wait()
	won := -1
	for i := range keys {
		switch _, reason := e.answer(i); {
		case reason == "" && won < 0:
			won = i
		case reason != join.ReasonNameTaken:
			t.Errorf("machine %d: %q, want %s; machine %d has the name", i, reason, join.ReasonNameTaken, won)
		}
	}
	if won < 0 || len(e.uses()) != 1 {
		t.Fatalf("machine %d has the name, uses %v", won, e.uses())
	}
	csr, _ := e.answer(won)
	if _, err := e.access(csr, keys[(won+1)%len(keys)]); err == nil {
		t.Error("another key opens the API token")
	}
}

// TestAttackAStolenEnrolmentToken: it admits new Macs within its pattern and count, and does
// nothing else.
func TestAttackAStolenEnrolmentToken(t *testing.T) {
	w := joins{newWorld(t)}
	w.mac("stolen-old", holding(gib)) // matches the pattern, and did not enrol
	e := w.enrolment("stolen", nil)
	t.Cleanup(func() { w.forgetsMac("stolen-1"); w.forgetsMac("stolen-2") })
	e.asks(0, "stolen-old")
	if _, reason := e.answer(0); reason != join.ReasonNameTaken {
		t.Errorf("the name of a Mac that exists: %q", reason)
	}
	e.asks(1, "other-1")
	if _, reason := e.answer(1); reason != join.ReasonNameNotAllowed {
		t.Errorf("a name out of the pattern: %q", reason)
	}
	_, replay := w.request("stolen-1")
	e.asksWith(2, replay)
	if _, reason := e.answer(2); reason != "" {
		t.Fatal(reason)
	}
	e.asks(3, "stolen-2")
	if _, reason := e.answer(3); reason != "" {
		t.Fatal(reason)
	}
	e.asks(4, "stolen-3")
	if _, reason := e.answer(4); reason != join.ReasonEnrolmentFull {
		t.Errorf("one more than its count: %q", reason)
	}
	// A Mac that an administrator removed does not come back, also not with its own key.
	w.forgetsMac("stolen-1")
	e.asksWith(5, replay)
	if _, reason := e.answer(5); reason != join.ReasonNoMac {
		t.Errorf("a Mac that was removed: %q", reason)
	}
	_, request := w.request("stolen-4")
	bad := asked(join.EnrolmentAccount("stolen"), request) // a name that is no slot
	for what, err := range map[string]error{
		"make a request of another name": e.c.Create(w.ctx, bad),
		"list requests":                  e.c.List(w.ctx, &certificatesv1.CertificateSigningRequestList{}),
		"read a Mac":                     e.c.Get(w.ctx, client.ObjectKey{Name: "stolen-2"}, &v1alpha1.MacNode{}),
		"read a Secret":                  e.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: join.EnrolmentAccount("stolen")}, &corev1.Secret{}),
		"delete a request":               e.c.Delete(w.ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: join.EnrolmentRequest("stolen", 3)}}),
		"make a token of a Mac":          e.c.SubResource("token").Create(w.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "mac-stolen-2"}}, accountToken(3600)),
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("a stolen enrolment token may %s: %v", what, err)
		}
	}
}

// TestAttackAnEnrolmentTokenThatEnded: it expired or was revoked; the API server may accept it
// for 10 s more, and the operator refuses its requests.
func TestAttackAnEnrolmentTokenThatEnded(t *testing.T) {
	w := joins{newWorld(t)}
	for _, name := range []string{"revoked", "expired"} {
		e := w.enrolment(name, nil)
		if name == "revoked" {
			w.must(w.revoke(name))
		} else {
			w.clock.jump(25 * time.Hour)
			w.wakeEnrolment(name)
		}
		w.eventually("the token "+name+" is worthless", func() error {
			_, request := w.request(name + "-1")
			csr := asked(join.EnrolmentAccount(name), request)
			csr.Name = join.EnrolmentRequest(name, 7)
			err := e.c.Create(w.ctx, csr)
			if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("got %w, want Unauthorized", err)
			}
			w.refusedOrGone(csr)
			w.must(client.IgnoreNotFound(w.c.Delete(w.ctx, csr)))
			return errors.New("the API server still knows it")
		})
		if err := w.c.Get(w.ctx, client.ObjectKey{Name: name + "-1"}, &v1alpha1.MacNode{}); !apierrors.IsNotFound(err) {
			t.Errorf("a token that was %s admitted a Mac: %v", name, err)
		}
		w.eventually("its account is gone", func() error {
			err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: join.EnrolmentAccount(name)}, &corev1.ServiceAccount{})
			if !apierrors.IsNotFound(err) {
				w.wakeEnrolment(name)
				return fmt.Errorf("it is there (%w)", err)
			}
			return nil
		})
	}
}

// refusedOrGone waits until the operator denied a request, or deleted it with its enrolment.
func (w joins) refusedOrGone(csr *certificatesv1.CertificateSigningRequest) {
	w.t.Helper()
	w.eventually("request "+csr.Name+" is refused", func() error {
		err := w.c.Get(w.ctx, client.ObjectKeyFromObject(csr), csr)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case len(csr.Status.Certificate) > 0:
			w.t.Fatalf("request %s is signed", csr.Name)
		case len(csr.Status.Conditions) > 0:
			return nil
		}
		return errors.New("neither signed nor denied")
	})
}

// wakeEnrolment has the operator look at an enrolment again: its requeues follow the real clock.
func (w joins) wakeEnrolment(name string) {
	var anchor corev1.Secret
	if err := w.c.Get(w.ctx, client.ObjectKey{Namespace: system, Name: join.EnrolmentAccount(name)}, &anchor); err == nil {
		w.wake(&anchor)
	}
}
