package macnode

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// granter signs nothing for one source.
type granter struct {
	source string
	err    error
}

func (g granter) Grant(_ context.Context, want agentapi.Grant, _ string, _ time.Duration) (string, error) {
	if want.Source == g.source {
		return "", g.err
	}
	return "signed", nil
}

// The assignments of a Mac are those of many tenants, and a failure for one must not affect
// the others.
func TestAGrantThatFailsLeavesOutOnePeer(t *testing.T) {
	broken := errors.New("no authority")
	for name, tc := range map[string]struct{ err, want error }{
		"a source that is too long": {err: agentapi.ErrGrantTooLong},
		"the authority is missing":  {err: broken, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			long, good := fleettest.Model("https://long", "long", 1_000_000), fleettest.Model("hf://org/good", "good", 2_000_000)
			var macs []client.Object
			for _, name := range []string{"has", "lacks"} {
				m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{fleet.LabelSite: "office"}}}
				m.Status.Address = &v1alpha1.MacAddress{Host: name, Port: 7443}
				m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
				macs = append(macs, m)
			}
			macs[0].(*v1alpha1.MacNode).Status.Weights = []v1alpha1.StoredWeights{{Digest: long.Digest, Bytes: 1}, {Digest: good.Digest, Bytes: 1}}
			for _, model := range []string{"long", "good"} {
				r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: model, UID: types.UID(model)}}
				r.Spec.NodeName, r.Spec.Desired, r.Spec.Model, r.Spec.Epoch = "lacks", v1alpha1.DesiredRunning, long, 1
				if model == "good" {
					r.Spec.Model = good
				}
				macs = append(macs, r)
			}
			c := objects(t, macs...)
			o := &Orders{Client: c, Clock: testingclock.NewFakePassiveClock(time.Unix(1000, 0)), Grants: granter{source: long.Source, err: tc.err}}
			if _, err := o.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "lacks"}}); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			var assigned v1alpha1.MacAssignment
			if err := c.Get(t.Context(), client.ObjectKey{Name: "lacks"}, &assigned); err != nil {
				t.Fatal(err)
			}
			got := map[string]int{}
			for _, a := range assigned.Spec.Assignments {
				got[a.Name] = len(a.Peers)
			}
			if n, ok := got["long"]; len(got) != 2 || !ok || n != 0 || got["good"] != 1 {
				t.Errorf("orders with peers %v, want long without and good with one", got)
			}
		})
	}
}
