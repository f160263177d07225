package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestMessagesOfInspectionsStartNoPass: the server of a tenant's source writes them.
func TestMessagesOfInspectionsStartNoPass(t *testing.T) {
	before := &v1alpha1.MacNode{}
	before.Status.Inspections = []v1alpha1.InspectionStatus{
		{ID: "a", Source: "https://h/a", State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceUnreachable, Message: "HTTP 500"},
		{ID: "b", Source: "file://b", State: v1alpha1.InspectionRunning},
	}
	for name, tc := range map[string]struct {
		change func(m *v1alpha1.MacNode)
		want   bool
	}{
		"another message": {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[0].Message = "HTTP 501" }},
		"a start":         {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = m.Status.Inspections[:1] }},
		"another order": {change: func(m *v1alpha1.MacNode) {
			in := m.Status.Inspections
			in[0], in[1] = in[1], in[0]
		}},
		"a result":    {change: func(m *v1alpha1.MacNode) { m.Status.Inspections[1].State = v1alpha1.InspectionFailed }, want: true},
		"a chip":      {change: func(m *v1alpha1.MacNode) { m.Status.Chip = "M9" }, want: true},
		"no results":  {change: func(m *v1alpha1.MacNode) { m.Status.Inspections = nil }, want: true},
		"no change":   {change: func(*v1alpha1.MacNode) {}},
		"a heartbeat": {change: func(m *v1alpha1.MacNode) { m.ResourceVersion = "2" }},
	} {
		after := before.DeepCopy()
		tc.change(after)
		if got := macMatters().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tc.want {
			t.Errorf("%s: a pass starts: %v, want %v", name, got, tc.want)
		}
	}
}

// TestReportsOfANamespaceDelayNoPass: a change of one replica may change the messages of thousands that
// wait for a Mac, and a pass places the replicas of all.
func TestReportsOfANamespaceDelayNoPass(t *testing.T) {
	c := crowded()
	for i := range 2000 {
		c.add("crowd", fmt.Sprintf("more-%d", i), 100*gib, time.Hour, 0)
	}
	c.add("other", "large", 100*gib, 0, 0)
	r := &Reconciler{Client: c, Clock: clock.RealClock{}}
	for passes, before := 0, 0; ; passes++ {
		result, err := r.Reconcile(t.Context(), pass)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(c.reported) - before; n > maxReports {
			t.Fatalf("pass %d reports on %d replicas, want at most %d", passes, n, maxReports)
		}
		before = len(c.reported)
		switch passes {
		case 0:
			if c.reported["large"] != 1 {
				t.Error("the first pass does not report on the replica of another namespace")
			}
			c.add("other", "small", gib, 0, 0)
		case 1:
			if strings.Join(c.bound, " ") != "small" {
				t.Fatalf("the second pass placed %v, want the replica of another namespace", c.bound)
			}
		case 100:
			t.Fatal("the round does not end")
		}
		if result.RequeueAfter == 0 {
			break
		}
	}
	if len(c.reported) != 3002 || c.reported["large"] != 1 {
		t.Errorf("%d replicas have a report, the one of another namespace %d times", len(c.reported), c.reported["large"])
	}
}

// TestReasonsOfANamespaceAreRepeatedSlowly: a tenant can change the figures in the messages of thousands
// of replicas all the time.
func TestReasonsOfANamespaceAreRepeatedSlowly(t *testing.T) {
	c, clock := crowded(), &slowClock{now: time.Unix(1_800_000_000, 0)}
	c.add("other", "large", 100*gib, 0, 0)
	for i := range c.replicas {
		c.replicas[i].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTooLarge, Message: "other figures"}}
	}
	r := &Reconciler{Client: c, Clock: clock}
	rounds := func() (reports int) {
		c.reported = map[string]int{}
		for range 20 {
			result, err := r.Reconcile(t.Context(), pass)
			if err != nil {
				t.Fatal(err)
			}
			if result.RequeueAfter == repeatAgain {
				break
			}
		}
		for _, n := range c.reported {
			reports += n
		}
		return reports
	}
	if n := rounds(); n != maxReports+1 || c.reported["large"] != 1 {
		t.Errorf("%d replicas are reported, that of another namespace %d times", n, c.reported["large"])
	}
	c.replicas[999].Status.Conditions[0].Reason = v1alpha1.ReasonOverQuota
	if rounds(); c.reported["crowd-999"] != 1 {
		t.Error("another reason waits for other figures")
	}
	c.replicas[999].Status.Conditions[0].Reason = v1alpha1.ReasonTooLarge
	clock.now = clock.now.Add(repeatAgain)
	if n, most := rounds(), int(repeatAgain/repeatEvery)+1; n > most {
		t.Errorf("%d replicas are reported later, want at most %d", n, most)
	}
}
