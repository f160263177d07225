package macnode

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// TestReportsTriggerFewOrders: a tenant's server chooses the messages of failures, and a Mac may
// report another chip again and again. Neither derives the orders of Macs that it does not concern.
func TestReportsTriggerFewOrders(t *testing.T) {
	about := func(d *v1alpha1.ModelDeployment, reason, message string) v1alpha1.InspectionStatus {
		return v1alpha1.InspectionStatus{ID: fleet.InspectionID(d), State: v1alpha1.InspectionFailed, Reason: reason, Message: message}
	}
	var all []client.Object
	var deployments []*v1alpha1.ModelDeployment
	for i := range 60 {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("d", i), UID: types.UID(fmt.Sprint("d", i)), Generation: 1}}
		d.Spec.Model.Source = fmt.Sprint("hf://org/", i/20)
		deployments, all = append(deployments, d), append(all, d)
	}
	deployments[0].Spec.Placement.Chips = []string{"M1"}
	var macs []*v1alpha1.MacNode
	for i := range 40 {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mac-%02d", i), UID: types.UID(fmt.Sprint(i))}}
		m.Status.Chip = "M1"
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
		for _, d := range []*v1alpha1.ModelDeployment{deployments[0], deployments[20]} {
			m.Status.Inspections = append(m.Status.Inspections, about(d, v1alpha1.ReasonSourceUnreachable, "HTTP 500"))
		}
		macs, all = append(macs, m), append(all, m)
	}
	r := &Orders{Client: objects(t, all...), Clock: testingclock.NewFakePassiveClock(time.Unix(1000, 0)),
		Inspectors: &fleet.Inspectors{Now: func() time.Time { return time.Unix(1_800_000_000, 0) }}}
	for name, tc := range map[string]struct {
		change     func(*v1alpha1.MacNode)
		min, max   int
		standing   int // orders derived because of the Mac's standing
		standingTo int
	}{
		"nothing":                       {change: func(*v1alpha1.MacNode) {}},
		"another message":               {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Message = "HTTP 501" }},
		"another result":                {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Reason = v1alpha1.ReasonSourceNotFound }, min: 8, max: 10},
		"another result of two sources": {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = nil }, min: 9, max: 20},
		"a chip that one names":         {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M2" }, standing: 8, standingTo: 10},
		"a chip that none names":        {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M3" }, standing: 8, standingTo: 10},
		"taints":                        {change: func(m *v1alpha1.MacNode) { m.Spec.Taints = []v1alpha1.Taint{{Key: "k"}} }, standing: 12, standingTo: 24},
	} {
		after := macs[3].DeepCopy()
		tc.change(after)
		if n := len(r.inspectors(t.Context(), macs[3], after)); n < tc.min || n > tc.max {
			t.Errorf("%s: the orders of %d Macs are derived for reports, want %d to %d", name, n, tc.min, tc.max)
		}
		if n := len(r.peers(t.Context(), macs[3], after)); n < tc.standing || n > tc.standingTo {
			t.Errorf("%s: the orders of %d Macs are derived for its standing, want %d to %d", name, n, tc.standing, tc.standingTo)
		}
	}
	liar := macs[3].DeepCopy()
	liar.Status.Chip = "M2"
	again := liar.DeepCopy()
	again.Status.Chip = "M3"
	if n := len(r.peers(t.Context(), liar, again)); n != 0 {
		t.Errorf("the orders of %d Macs are derived for a chip that no placement names", n)
	}
	got, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "mac-03"}})
	if err != nil || got.RequeueAfter != 3*time.Minute {
		t.Errorf("%+v (%v), want orders of the next round", got, err)
	}
}
