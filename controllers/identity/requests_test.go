//go:build !race

package identity

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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
