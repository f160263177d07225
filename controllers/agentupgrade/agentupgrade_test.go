//go:build !race

package agentupgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/agentupgrade/turn"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// room is a fleet of two Macs, and an operator.
type room struct {
	t     *testing.T
	c     client.WithWatch
	clock *clocktesting.FakePassiveClock
	r     *Reconciler
}

func newRoom(t *testing.T) *room {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass, UID: "uid-of-z"}}
	class.Spec.Release = &v1alpha1.AgentRelease{Version: "v0.4.0", Source: "https://releases.example.com/a.tar.gz", SHA256: strings.Repeat("a", 64)}
	c := interceptor.NewClient(
		fake.NewClientBuilder().WithScheme(s).WithObjects(aMac("mini"), aMac("studio"), assigned("mini"), assigned("studio"), class).WithStatusSubresource(&v1alpha1.MacNode{}, &v1alpha1.MacClass{}).Build(),
		interceptor.Funcs{SubResourceApply: mergeConditions})
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))
	return &room{t: t, c: c, clock: clock, r: &Reconciler{Client: c, Version: "v0.4.0", Clock: clock}}
}

// mergeConditions applies conditions as an API server does: a map by type. The fake client
// knows no schema and replaces the list.
func mergeConditions(ctx context.Context, c client.Client, sub string, o runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var class v1alpha1.MacClass
	if err := json.Unmarshal(raw, &class); err == nil && class.Kind == "MacClass" {
		after := class.Status
		if err := c.Get(ctx, client.ObjectKeyFromObject(&class), &class); err != nil {
			return err
		}
		class.Status.Upgrade = after.Upgrade
		return c.SubResource(sub).Update(ctx, &class)
	}
	var said, mac v1alpha1.MacNode
	if err := json.Unmarshal(raw, &said); err != nil {
		return err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(&said), &mac); err != nil {
		return err
	}
	for _, condition := range said.Status.Conditions {
		meta.SetStatusCondition(&mac.Status.Conditions, condition)
	}
	return c.SubResource(sub).Update(ctx, &mac)
}

func aMac(name string) *v1alpha1.MacNode {
	m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-x"}}
	m.Status.AgentVersion = "v0.3.0"
	m.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting},
		{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted},
	}
	return m
}

func assigned(mac string) *v1alpha1.MacAssignment {
	return &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: mac, UID: "uid-of-y"}}
}

// order returns the agent that was ordered for a Mac.
func (o *room) order(mac string) *v1alpha1.AgentOrder {
	o.t.Helper()
	a := &v1alpha1.MacAssignment{}
	if err := o.c.Get(o.t.Context(), client.ObjectKey{Name: mac}, a); err != nil {
		o.t.Fatal(err)
	}
	return a.Spec.Agent
}

func (o *room) look() reconcile.Result {
	o.t.Helper()
	res, err := o.r.Reconcile(o.t.Context(), reconcile.Request{})
	if err != nil {
		o.t.Fatal(err)
	}
	return res
}

func (o *room) mac(name string) *v1alpha1.MacNode {
	o.t.Helper()
	m := &v1alpha1.MacNode{}
	if err := o.c.Get(o.t.Context(), client.ObjectKey{Name: name}, m); err != nil {
		o.t.Fatal(err)
	}
	return m
}

// says sets what a Mac's agent reports.
func (o *room) says(name, version string, phase v1alpha1.AgentUpgradePhase) {
	o.t.Helper()
	m := o.mac(name)
	m.Status.AgentVersion = version
	a := o.order(name)
	m.Status.AgentUpgrade = &v1alpha1.AgentUpgrade{To: a.Version, SHA256: a.SHA256, Attempt: a.Attempt, Phase: phase, Message: "it ended at once"}
	if err := o.c.Status().Update(o.t.Context(), m); err != nil {
		o.t.Fatal(err)
	}
}

func (o *room) wantOrdered(names ...string) {
	o.t.Helper()
	var got []string
	for _, name := range []string{"mini", "studio"} {
		if o.order(name) != nil {
			got = append(got, name)
		}
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		o.t.Errorf("ordered %v, want %v", got, names)
	}
}

func (o *room) wantReason(name, reason string) {
	o.t.Helper()
	c := meta.FindStatusCondition(o.mac(name).Status.Conditions, v1alpha1.ConditionAgentCurrent)
	if c == nil || c.Reason != reason {
		o.t.Errorf("%s: %+v, want %s", name, c, reason)
	}
}

func TestMacsAreUpgradedOneAtATime(t *testing.T) {
	o := newRoom(t)
	o.look()
	o.wantOrdered("mini")
	o.look()
	o.wantReason("mini", v1alpha1.ReasonAgentUpgrading)
	o.wantReason("studio", v1alpha1.ReasonAgentOutdated)
	o.says("mini", "v0.4.0", v1alpha1.UpgradeSucceeded)
	o.look() // observes that it runs
	if res := o.look(); res.RequeueAfter != turn.Settle {
		t.Errorf("looks again after %s, want %s", res.RequeueAfter, turn.Settle)
	}
	o.wantReason("mini", v1alpha1.ReasonAgentCurrent)
	o.wantOrdered("mini")
	o.clock.SetTime(o.clock.Now().Add(turn.Settle))
	o.look()
	o.wantOrdered("mini", "studio")
}

func TestARollbackIsToldOnceAndHalts(t *testing.T) {
	o := newRoom(t)
	o.look()
	o.says("mini", "v0.3.0", v1alpha1.UpgradeRolledBack)
	for range 3 {
		o.look()
		o.clock.SetTime(o.clock.Now().Add(time.Hour))
	}
	o.wantOrdered("mini")
	o.wantReason("mini", v1alpha1.ReasonAgentRolledBack)
	var events corev1.EventList
	if err := o.c.List(t.Context(), &events); err != nil || len(events.Items) != 1 ||
		events.Items[0].Reason != v1alpha1.ReasonAgentRolledBack || !strings.Contains(events.Items[0].Message, "it ended at once") {
		t.Errorf("Events %+v, %v", events.Items, err)
	}
}

// class returns the only class.
func (o *room) class() *v1alpha1.MacClass {
	o.t.Helper()
	c := &v1alpha1.MacClass{}
	if err := o.c.Get(o.t.Context(), client.ObjectKey{Name: v1alpha1.DefaultMacClass}, c); err != nil {
		o.t.Fatal(err)
	}
	return c
}

func TestAClassReportsItsUpgrade(t *testing.T) {
	o := newRoom(t)
	o.look()
	if u := o.class().Status.Upgrade; u == nil || u.State != string(turn.Upgrading) || u.Mac != "mini" || u.UpgradedMacs != 0 {
		t.Errorf("%+v, want mini", u)
	}
	o.says("mini", "v0.4.0", v1alpha1.UpgradeSucceeded)
	o.look()
	if u := o.class().Status.Upgrade; u == nil || u.UpgradedMacs != 1 {
		t.Errorf("%+v, want one that is upgraded", u)
	}
	c := o.class()
	c.Spec.Release = nil
	if err := o.c.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	o.look()
	if u := o.class().Status.Upgrade; u != nil {
		t.Errorf("%+v is left of a release that was withdrawn", u)
	}
	o.wantReason("studio", v1alpha1.ReasonAgentSupported)
}

// TestALongMessageOfAMacIsWrittenOnce: it is cut, and has characters of more than one byte.
func TestALongMessageOfAMacIsWrittenOnce(t *testing.T) {
	for extra := range 4 {
		o := newRoom(t)
		o.look()
		o.says("mini", "v0.3.0", v1alpha1.UpgradeRolledBack)
		m := o.mac("mini")
		m.Status.AgentUpgrade.Message = strings.Repeat("x", extra) + strings.Repeat("\U0001F600", 1000)
		if err := o.c.Status().Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		o.look()
		o.look()
		written := o.class()
		o.look()
		if again := o.class(); again.ResourceVersion != written.ResourceVersion || len(again.Status.Upgrade.Message) < maxMessage-8 {
			t.Errorf("%d: written again, with %q", extra, again.Status.Upgrade.Message)
		}
	}
}

// TestAMacThatReportsAnotherVersionAllTheTimeIsJudgedSeldom: each judgement stores its whole MacNode again.
func TestAMacThatReportsAnotherVersionAllTheTimeIsJudgedSeldom(t *testing.T) {
	o := newRoom(t)
	o.r.limits.Burst, o.r.limits.Every = judgeBurst, judgeEvery
	judged := map[string]bool{}
	for i := range 10 * judgeBurst {
		m := o.mac("studio")
		m.Status.AgentVersion = fmt.Sprintf("v0.3.%d", i)
		if err := o.c.Status().Update(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if res := o.look(); i > judgeBurst && res.RequeueAfter != judgeEvery {
			t.Errorf("the next look is in %s, want %s", res.RequeueAfter, judgeEvery)
		}
		judged[meta.FindStatusCondition(o.mac("studio").Status.Conditions, v1alpha1.ConditionAgentCurrent).Message] = true
	}
	if len(judged) != judgeBurst {
		t.Errorf("judged %d times at once, want %d", len(judged), judgeBurst)
	}
	o.clock.SetTime(o.clock.Now().Add(judgeEvery))
	o.look()
	if c := meta.FindStatusCondition(o.mac("studio").Status.Conditions, v1alpha1.ConditionAgentCurrent); judged[c.Message] {
		t.Errorf("the last version is not judged %s later: %s", judgeEvery, c.Message)
	}
}

func TestAMacOfAnotherClassIsNotUpgraded(t *testing.T) {
	o := newRoom(t)
	m := o.mac("mini")
	m.Spec.Class = "lab"
	if err := o.c.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	o.look()
	o.wantOrdered("studio")
	o.wantReason("mini", v1alpha1.ReasonAgentSupported)
}

// TestAMacThatCannotBeWrittenKeepsNoOtherBack: the first by name is refused by the API server.
func TestAMacThatCannotBeWrittenKeepsNoOtherBack(t *testing.T) {
	o := newRoom(t)
	refused := errors.New("request is too large")
	o.r.Client = interceptor.NewClient(o.c, interceptor.Funcs{SubResourceApply: func(ctx context.Context, c client.Client, sub string, a runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
		if raw, err := json.Marshal(a); err != nil || strings.Contains(string(raw), `"mini"`) {
			return errors.Join(err, refused)
		}
		return c.SubResource(sub).Apply(ctx, a, opts...)
	}})
	if _, err := o.r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	if c := meta.FindStatusCondition(o.mac("studio").Status.Conditions, v1alpha1.ConditionAgentCurrent); c == nil || c.Status != metav1.ConditionFalse {
		t.Errorf("studio has %+v", c)
	}
}

func TestAPassCopiesNoObjects(t *testing.T) {
	o := newRoom(t)
	var unchanged func()
	o.r.Client, unchanged = fleettest.Sharing(t, o.c)
	o.look()
	o.wantOrdered("mini")
	unchanged()
}
