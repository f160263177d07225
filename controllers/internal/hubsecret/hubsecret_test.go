package hubsecret

import (
	"context"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// empty is an API server without Secrets.
type empty struct {
	client.Reader
	reads int
}

func (e *empty) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	e.reads++
	return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
}

// TestAttackDeploymentsOfManySecrets: each deployment names a Secret of its own that does not
// exist, and is looked at every few seconds.
func TestAttackDeploymentsOfManySecrets(t *testing.T) {
	api := &empty{}
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := &Reader{Live: api, Clock: clock}
	read := func(namespace string, secrets int) {
		for i := range secrets {
			if _, refusal, err := r.Read(t.Context(), client.ObjectKey{Namespace: namespace, Name: fmt.Sprint(i)}, "hf://a/b"); refusal == nil || err != nil {
				t.Fatalf("%v, %v", refusal, err)
			}
		}
	}
	look := func() (reads int) {
		before := api.reads
		for range 120 {
			read("evil", 4000)
			clock.SetTime(clock.Now().Add(AgainMissing))
		}
		return api.reads - before
	}
	if n := look(); n > 4000+600*20 {
		t.Errorf("%d reads in ten minutes", n)
	}
	if n := look(); n < 4000 {
		t.Errorf("%d reads in ten minutes: their Secrets may exist by now", n)
	}
	before := api.reads
	read("team", 1)
	clock.SetTime(clock.Now().Add(AgainMissing))
	if read("team", 1); api.reads != before+2 {
		t.Error("another namespace's Secret is read less often")
	}
	clock.SetTime(clock.Now().Add(forgets + time.Second))
	read("evil", 1)
	before = api.reads
	clock.SetTime(clock.Now().Add(AgainMissing))
	if read("evil", 1); api.reads != before+1 {
		t.Error("Secrets that no deployment names any more count")
	}
}
