package macnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
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
	grant  string
}

func (g granter) Grant(_ context.Context, want agentapi.Grant, _ string, _ time.Duration) (string, error) {
	if want.Source == g.source {
		return "", g.err
	}
	return cmp.Or(g.grant, "signed"), nil
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
			got, err := withPeers(t, granter{source: "https://long", err: tc.err}, "has")
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if n, ok := got["long"]; len(got) != 2 || !ok || n != 0 || got["good"] != 1 {
				t.Errorf("orders with peers %v, want long without and good with one", got)
			}
		})
	}
}

// All assignments of a Mac are one object, and those with a long source have long grants.
func TestALongSourceHasFewPeers(t *testing.T) {
	hosts := []string{strings.Repeat("a", 253), strings.Repeat("b", 253), strings.Repeat("c", 253)}
	for grant, want := range map[string]int{strings.Repeat("g", 600): 3, strings.Repeat("g", 2048): 1} {
		if got, err := withPeers(t, granter{grant: grant}, hosts...); err != nil || got["good"] != want {
			t.Errorf("%d peers with grants of %d characters, %v; want %d", got["good"], len(grant), err, want)
		}
	}
}

// withPeers returns how many peers each assignment of a Mac gets, if Macs with these hosts have its
// weights.
func withPeers(t *testing.T, g granter, hosts ...string) (map[string]int, error) {
	t.Helper()
	long, good := fleettest.Model("https://long", "long", 1_000_000), fleettest.Model("hf://org/good", "good", 2_000_000)
	var all []client.Object
	for i, host := range append(hosts, "lacks") {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("has-", i), UID: types.UID(host), Labels: map[string]string{fleet.LabelSite: "office"}}}
		m.Status.Address = &v1alpha1.MacAddress{Host: host, Port: 7443}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
		if m.Status.Weights = []v1alpha1.StoredWeights{{Digest: long.Digest, Bytes: 1}, {Digest: good.Digest, Bytes: 1}}; host == "lacks" {
			m.Name, m.Status.Weights = host, nil
		}
		all = append(all, m)
	}
	for _, model := range []string{"long", "good"} {
		r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: model, UID: types.UID(model)}}
		r.Spec.NodeName, r.Spec.Desired, r.Spec.Model, r.Spec.Epoch = "lacks", v1alpha1.DesiredRunning, long, 1
		if model == "good" {
			r.Spec.Model = good
		}
		all = append(all, r)
	}
	c := objects(t, all...)
	o := &Orders{Client: c, Clock: testingclock.NewFakePassiveClock(time.Unix(1000, 0)), Grants: g}
	_, failed := o.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "lacks"}})
	var assigned v1alpha1.MacAssignment
	if err := c.Get(t.Context(), client.ObjectKey{Name: "lacks"}, &assigned); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, a := range assigned.Spec.Assignments {
		got[a.Name] = len(a.Peers)
	}
	return got, failed
}
