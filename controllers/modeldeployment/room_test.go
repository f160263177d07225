//go:build !race

package modeldeployment

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// TestAPassOverADeploymentThatIsRefusedListsNoOthers: a namespace may have thousands of them, each with a
// credential that is looked for every ten seconds.
func TestAPassOverADeploymentThatIsRefusedListsNoOthers(t *testing.T) {
	all := make([]v1alpha1.ModelDeployment, 4000)
	for i := range all {
		d := &all[i]
		d.Namespace, d.Name, d.UID = "n", fmt.Sprintf("d%04d", i), types.UID(fmt.Sprint("uid-", i))
		d.Spec.Model.Source = "hf://org/model"
	}
	r := overCache(t, all)
	bytes, _ := allocated(func() any {
		s, err := r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all[0])})
		if err == nil {
			err = r.judge(t.Context(), s)
		}
		if err != nil || s.verdict.engine != nil {
			t.Fatalf("got %+v, %v", s.verdict.condition, err)
		}
		return s
	})
	if bytes > 1<<20 {
		t.Errorf("the pass allocates %d bytes", bytes)
	}
	s := &scope{deployment: &all[0], verdict: verdict{crowded: true}, tokenAgain: 10 * time.Second}
	if again := s.again(); again != repeatInspected {
		t.Errorf("one for which there is no room is looked at again in %s", again)
	}
}

// TestAnAcceptedDeploymentGetsNoNameTooMany: those of others are counted in the cache.
func TestAnAcceptedDeploymentGetsNoNameTooMany(t *testing.T) {
	for names, want := range map[int]string{maxNames - 2: v1alpha1.ReasonAccepted, maxNames: v1alpha1.ReasonSpecTooLarge} {
		rehearsal := rehearsed()
		record := fleettest.Model("file://m.gguf", "seed", 98_000_000)
		rehearsal.Record = &record
		accepted, err := rehearsal.Accept()
		if err != nil || accepted.Engine == nil {
			t.Fatalf("got %+v, %v", accepted, err)
		}
		other := v1alpha1.ModelDeployment{}
		other.Namespace, other.Name, other.UID = rehearsal.Deployment.Namespace, "other", "other"
		for i := range names {
			other.Status.ServedNames = append(other.Status.ServedNames, fmt.Sprint("name-", i))
		}
		r := overCache(t, []v1alpha1.ModelDeployment{*rehearsal.Deployment, other})
		s := &scope{now: rehearsal.Now, deployment: rehearsal.Deployment, revisions: []revision{{engine: *accepted.Engine}}}
		if err := r.judge(t.Context(), s); err != nil || s.verdict.condition.Reason != want {
			t.Errorf("%d names of others: %+v, %v; want %s", names, s.verdict.condition, err, want)
		}
	}
}
