package modeldeployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

func namesOf(d *v1alpha1.ModelDeployment) []string {
	h := fleet.HolderOf(d)
	return h.Names()
}

// added returns the names of the requests that a queue has, and empties it.
func added(q workqueue.TypedRateLimitingInterface[reconcile.Request]) (out []string) {
	for q.Len() > 0 {
		r, _ := q.Get()
		out = append(out, r.Name)
		q.Done(r)
	}
	slices.Sort(out)
	return out
}

// crowd returns deployments that claim NAMESPACE/NAME of the first, which no other can get, and a
// served name that it has.
func crowd(n int) []v1alpha1.ModelDeployment {
	out := make([]v1alpha1.ModelDeployment, n)
	for i := range out {
		d := &out[i]
		d.Namespace, d.Name, d.UID, d.Generation, d.ResourceVersion = "n", fmt.Sprintf("d%05d", i), types.UID(fmt.Sprint("uid-", i)), 1, fmt.Sprint(i+1)
		d.Spec.ServedNames = []string{"shared"}
		if i > 0 {
			d.Spec.ServedNames = append(d.Spec.ServedNames, "n/d00000")
		}
		for j := range 16 {
			d.Spec.Adapters = append(d.Spec.Adapters, v1alpha1.AdapterSpec{Name: fmt.Sprintf("%s%02d", strings.Repeat("y", 60), j), Source: "hf://o/a"})
		}
	}
	out[0].Status.ServedNames = []string{"shared", "n/d00000"}
	return out
}

// TestAttackEditsOfADeploymentWhoseNamesManyClaim: an edit has those passed again that claim a
// name that the deployment gets or loses, not all that claim any of its names.
func TestAttackEditsOfADeploymentWhoseNamesManyClaim(t *testing.T) {
	deployments := crowd(1000)
	other := &deployments[7]
	other.Spec.ServedNames = []string{"more"}
	r := overCache(t, deployments)
	before := &deployments[0]
	edit := func(change func(*v1alpha1.ModelDeployment)) *v1alpha1.ModelDeployment {
		d := before.DeepCopy()
		change(d)
		return d
	}
	for name, tc := range map[string]struct {
		now  *v1alpha1.ModelDeployment
		want int
	}{
		"a claim": {edit(func(d *v1alpha1.ModelDeployment) { d.Spec.ServedNames = append(d.Spec.ServedNames, "more") }), 0},
		"a name it gets": {edit(func(d *v1alpha1.ModelDeployment) {
			d.Spec.ServedNames, d.Status.ServedNames = []string{"shared", "more"}, []string{"shared", "more"}
		}), 1},
		"a name it loses":  {edit(func(d *v1alpha1.ModelDeployment) { d.Status.ServedNames = nil }), 998},
		"an adapter less":  {edit(func(d *v1alpha1.ModelDeployment) { d.Spec.Adapters = d.Spec.Adapters[1:] }), 998},
		"a deletion":       {edit(func(d *v1alpha1.ModelDeployment) { d.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), 998},
		"another instance": {edit(func(d *v1alpha1.ModelDeployment) { d.UID = "another" }), 999},
		"no change":        {edit(func(*v1alpha1.ModelDeployment) {}), 0},
	} {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		r.onClaims().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: tc.now}, q)
		if got := added(q); len(got) != tc.want {
			t.Errorf("%s: %d deployments are passed again, want %d", name, len(got), tc.want)
		}
		q.ShutDown()
	}
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	if r.onClaims().Create(t.Context(), event.CreateEvent{Object: before}, q); q.Len() != 998 {
		t.Errorf("%d after it was created, want all others that claim its names", q.Len())
	}
	added(q)
	if r.onClaims().Delete(t.Context(), event.DeleteEvent{Object: before}, q); q.Len() != 998 {
		t.Errorf("%d after it was deleted, want all others that claim its names", q.Len())
	}
}
