package macnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// alertRoom is a Mac whose conditions a test changes, and operators that look.
type alertRoom struct {
	t     *testing.T
	c     client.Client
	clock *clocktesting.FakePassiveClock
	r     *Alerts
}

func newAlertRoom(t *testing.T) *alertRoom {
	a := &alertRoom{t: t, c: objects(t, aMac()), clock: clocktesting.NewFakePassiveClock(start)}
	a.restart()
	return a
}

// restart replaces the process by one without memory.
func (a *alertRoom) restart() { a.r = &Alerts{Client: a.c, Clock: a.clock} }

// say sets a condition as the agent reports it at that time, and runs the operator.
func (a *alertRoom) say(kind string, s metav1.ConditionStatus, reason string, since time.Time) {
	a.t.Helper()
	var mac v1alpha1.MacNode
	if err := a.c.Get(a.t.Context(), request.NamespacedName, &mac); err != nil {
		a.t.Fatal(err)
	}
	mac.Status.Conditions = slices.DeleteFunc(mac.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	mac.Status.Conditions = append(mac.Status.Conditions, metav1.Condition{Type: kind, Status: s, Reason: reason, Message: "39 GiB of 40 GiB",
		LastTransitionTime: metav1.NewTime(since)})
	if err := a.c.Status().Update(a.t.Context(), &mac); err != nil {
		a.t.Fatal(err)
	}
	a.look()
}

func (a *alertRoom) look() {
	a.t.Helper()
	for range 2 {
		if _, err := a.r.Reconcile(a.t.Context(), request); err != nil {
			a.t.Fatal(err)
		}
	}
}

// told returns the Events so far, each as "TYPE REASON: first word of the message".
func (a *alertRoom) told() []string {
	a.t.Helper()
	var list corev1.EventList
	if err := a.c.List(a.t.Context(), &list); err != nil {
		a.t.Fatal(err)
	}
	var out []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind != "MacNode" || e.InvolvedObject.Name != "m" || e.Namespace != "default" {
			a.t.Errorf("an Event about %+v in %s", e.InvolvedObject, e.Namespace)
		}
		level, _, _ := strings.Cut(e.Message, ":")
		out = append(out, e.Type+" "+e.Reason+": "+level)
	}
	slices.Sort(out)
	return out
}

func (a *alertRoom) want(events ...string) {
	a.t.Helper()
	slices.Sort(events)
	if got := a.told(); !slices.Equal(got, events) {
		a.t.Errorf("told %q, want %q", got, events)
	}
}

const pressure = v1alpha1.ConditionMemoryPressure

func TestPressureChangesAreReportedBothWays(t *testing.T) {
	a := newAlertRoom(t)
	a.say(pressure, "False", v1alpha1.ReasonBelowSoftMark, start)
	a.want() // no alert, no Event
	a.say(pressure, "True", v1alpha1.ReasonSoftPressure, start.Add(time.Minute))
	a.say(pressure, "True", v1alpha1.ReasonHardPressure, start.Add(time.Minute))
	a.want("Warning MemoryPressure: SoftPressure", "Warning MemoryPressure: HardPressure")
	a.say(pressure, "False", v1alpha1.ReasonBelowSoftMark, start.Add(2*time.Minute))
	a.want("Warning MemoryPressure: SoftPressure", "Warning MemoryPressure: HardPressure", "Normal MemoryPressure: BelowSoftMark")
}

func TestAMacThatSwingsIsToldOfOnceInAWhile(t *testing.T) {
	a := newAlertRoom(t)
	a.say(pressure, "False", v1alpha1.ReasonBelowSoftMark, start)
	for second := 0; second < 3600; second += 5 {
		at := start.Add(time.Duration(second) * time.Second)
		a.clock.SetTime(at)
		a.say(pressure, []metav1.ConditionStatus{"True", "False"}[second%2], []string{v1alpha1.ReasonSoftPressure, v1alpha1.ReasonBelowSoftMark}[second%2], at)
	}
	if n := len(a.told()); n < 12 || n > 14 {
		t.Errorf("%d Events in an hour of swings, want two per ten minutes", n)
	}
}

func TestARestartedOperatorTellsWhatHoldsOnce(t *testing.T) {
	a := newAlertRoom(t)
	a.say(v1alpha1.ConditionWiredStranded, "True", v1alpha1.ReasonWiredUnowned, start)
	for range 3 {
		a.clock.SetTime(a.clock.Now().Add(time.Minute))
		a.restart()
		a.look()
	}
	a.want("Warning WiredStranded: WiredUnowned")
	// An old condition was reported by an earlier process.
	a.say(v1alpha1.ConditionGuardInactive, "True", v1alpha1.ReasonProbeFails, start.Add(-2*time.Hour))
	a.want("Warning WiredStranded: WiredUnowned", "Warning GuardInactive: ProbeFails")
	b := newAlertRoom(t)
	b.say(v1alpha1.ConditionGuardInactive, "True", v1alpha1.ReasonProbeFails, start.Add(-2*time.Hour))
	b.want()
}

// Even if an alert of its predecessor was reported a moment before.
func TestRecreatedMacIsReported(t *testing.T) {
	a := newAlertRoom(t)
	a.say(v1alpha1.ConditionWiredStranded, "True", v1alpha1.ReasonWiredUnowned, start)
	var old v1alpha1.MacNode
	if err := a.c.Get(t.Context(), request.NamespacedName, &old); err != nil {
		t.Fatal(err)
	}
	next := aMac()
	next.UID = "another"
	if err := errors.Join(a.c.Delete(t.Context(), &old), a.c.Create(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	a.restart()
	a.say(v1alpha1.ConditionWiredStranded, "True", v1alpha1.ReasonWiredUnowned, start)
	a.want("Warning WiredStranded: WiredUnowned", "Warning WiredStranded: WiredUnowned")
}

func TestAlertHasTheMacsMessage(t *testing.T) {
	for _, kind := range []string{v1alpha1.ConditionMemoryPressure, v1alpha1.ConditionWiredStranded, v1alpha1.ConditionMemoryDiverged, v1alpha1.ConditionGuardInactive} {
		a := newAlertRoom(t)
		a.say(kind, "True", v1alpha1.ReasonWiredUnowned, start)
		var list corev1.EventList
		if err := a.c.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
			t.Fatalf("%s: %d Events (%v)", kind, len(list.Items), err)
		}
		if e := list.Items[0]; e.Reason != kind || e.Message != v1alpha1.ReasonWiredUnowned+": 39 GiB of 40 GiB" {
			t.Errorf("%s: %s %q", kind, e.Reason, e.Message)
		}
	}
}

func TestAChangedSentenceIsNoNews(t *testing.T) {
	a := newAlertRoom(t)
	a.say(pressure, "True", v1alpha1.ReasonSoftPressure, start)
	var mac v1alpha1.MacNode
	if err := a.c.Get(t.Context(), request.NamespacedName, &mac); err != nil {
		t.Fatal(err)
	}
	before := alerts(&mac)
	mac.Status.Conditions[0].Message = "38 GiB of 40 GiB"
	if after := alerts(&mac); after[pressure] != before[pressure] {
		t.Errorf("%v became %v", before, after)
	}
	a.want("Warning MemoryPressure: SoftPressure")
}

// TestAttackAMacInventsAlerts: each report of a Mac has reasons that no report had before.
func TestAttackAMacInventsAlerts(t *testing.T) {
	a := newAlertRoom(t)
	a.look()
	const reports = 100
	for i := range reports {
		for _, kind := range alerted() {
			a.say(kind, metav1.ConditionTrue, fmt.Sprint("R", i), start)
		}
	}
	if n := len(a.told()); n != 128 {
		t.Errorf("%d reports made %d Events, want 128", 4*reports, n)
	}
	a.clock.SetTime(start.Add(5 * time.Second))
	a.say(v1alpha1.ConditionMemoryPressure, metav1.ConditionTrue, "later", a.clock.Now())
	if n := len(a.told()); n != 129 {
		t.Errorf("%d Events after five seconds, want 129", n)
	}
}

// TestAttackAMacClashesAllTheTime: a Mac clears the report of a second agent, or names another one,
// with each write of its Lease.
func TestAttackAMacClashesAllTheTime(t *testing.T) {
	for name, clears := range map[string]bool{"clears the report": true, "names another": false} {
		t.Run(name, func(t *testing.T) { clashes(t, clears) })
	}
}

func clashes(t *testing.T, clears bool) {
	mac, clock := aMac(), clocktesting.NewFakeClock(start)
	c := objects(t, mac)
	h := &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock}
	ready := status.True(v1alpha1.ConditionReady, v1alpha1.ReasonReporting, "reports")
	writes, version, last := 0, "", ""
	for i := range 300 { // five minutes
		clock.Step(time.Second)
		var twin *clash
		if i%2 == 0 || !clears {
			last = fmt.Sprint("studio/", i)
			twin = &clash{holder: last, until: clock.Now().Add(clashLasts)}
		}
		var now v1alpha1.MacNode
		if err := c.Get(t.Context(), request.NamespacedName, &now); err != nil {
			t.Fatal(err)
		}
		if now.ResourceVersion != version {
			writes, version = writes+1, now.ResourceVersion
		}
		if _, err := h.report(t.Context(), &now, ready, twin); err != nil {
			t.Fatal(err)
		}
	}
	if writes > 16 {
		t.Errorf("the status is written %d times in five minutes, want about two a minute", writes)
	}
	var list corev1.EventList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	if n := len(list.Items); n < 1 || n > 6 {
		t.Errorf("%d Events in five minutes, want one a minute at most", n)
	}
	// Then one machine clashes, and ends: the condition follows.
	for _, twin := range []*clash{{holder: "studio/other"}, {holder: "studio/other"}, nil} {
		clock.Step(clashLasts)
		var now v1alpha1.MacNode
		if err := c.Get(t.Context(), request.NamespacedName, &now); err != nil {
			t.Fatal(err)
		}
		after, err := h.report(t.Context(), &now, ready, twin)
		if err != nil {
			t.Fatal(err)
		}
		shown := meta.FindStatusCondition(after, v1alpha1.ConditionIdentityClash)
		if (shown.Status == metav1.ConditionTrue) != (twin != nil) || twin != nil && !strings.Contains(shown.Message, twin.holder) {
			t.Errorf("the condition is %+v after %+v", shown, twin)
		}
	}
}
