//go:build !race

package identity

import (
	"errors"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// TestAMacThatRequestsCertificatesAllTheTimeWaits: it deletes each request and creates another.
func TestAMacThatRequestsCertificatesAllTheTimeWaits(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	s := runtime.NewScheme()
	if err := certificatesv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	request := good(t, "mac-mac-a").request
	r := &Requests{Client: fake.NewClientBuilder().WithScheme(s).WithObjects(request).Build(), Issuer: &Issuer{Clock: clocktesting.NewFakePassiveClock(at)},
		limits: notice.Limits{Burst: requestBurst, Every: requestEvery}}
	for range requestBurst {
		r.limits.Allow(request.Name, at)
	}
	defer func() {
		if recover() != nil { // Live is nil
			t.Error("another request is judged at once")
		}
	}()
	if result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(request)}); err != nil || result.RequeueAfter != requestEvery {
		t.Errorf("%+v, %v", result, err)
	}
}

// TestADecidedRequestEndsByAnyClock: the one that decided it may have been ahead, and an enrolment
// token has few requests at a time.
func TestADecidedRequestEndsByAnyClock(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := runtime.NewScheme()
	if err := errors.Join(certificatesv1.AddToScheme(s), corev1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		decided time.Duration // from now
		ends    bool
	}{
		"just now":            {},
		"by a clock near it":  {decided: 5 * time.Second},
		"a while ago":         {decided: -collectWithin, ends: true},
		"by a clock far from": {decided: 365 * 24 * time.Hour, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			decided := func(name string) *certificatesv1.CertificateSigningRequest {
				csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: join.Signer}}
				csr.Status.Certificate = []byte("certificate")
				csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, LastUpdateTime: metav1.NewTime(now.Add(tc.decided))}}
				return csr
			}
			slot, joins := decided(join.EnrolmentRequest("lab", 7)), decided(join.RequestName(join.Account("studio")))
			token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: join.Account("studio")}, Data: map[string][]byte{join.KeyRequest: []byte(joins.UID)}}
			c := fake.NewClientBuilder().WithScheme(s).WithObjects(slot, joins, token).Build()
			issuer := &Issuer{Client: c, Namespace: space, Clock: clocktesting.NewFakePassiveClock(now)}
			for o, r := range map[client.Object]reconcile.Reconciler{
				slot: &EnrolmentRequests{Client: c, Live: c, Issuer: issuer}, joins: &Requests{Client: c, Live: c, Issuer: issuer},
			} {
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
				if err != nil || result.RequeueAfter > 2*collectWithin {
					t.Errorf("%s is looked at again after %v, %v", o.GetName(), result.RequeueAfter, err)
				}
			}
			for what, o := range map[string]client.Object{"the slot of an enrolment": slot, "a join token": token} {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) != tc.ends {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}
