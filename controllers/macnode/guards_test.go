package macnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
)

func objects(t *testing.T, os ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(os...).WithStatusSubresource(&v1alpha1.MacNode{}, &v1alpha1.MacAssignment{}).
		WithIndex(&v1alpha1.MacAssignment{}, fleet.IndexAsked, func(o client.Object) (ids []string) {
			for _, in := range o.(*v1alpha1.MacAssignment).Spec.Inspections {
				ids = append(ids, in.ID)
			}
			return ids
		}).
		WithIndex(&v1alpha1.ModelDeployment{}, fleet.IndexInspection, func(o client.Object) []string {
			return []string{fleet.InspectionID(o.(*v1alpha1.ModelDeployment))}
		}).
		WithIndex(&v1alpha1.ModelReplica{}, fleet.IndexOwner, func(o client.Object) []string { return []string{o.(*v1alpha1.ModelReplica).Spec.DeploymentRef.UID} }).
		WithIndex(&v1alpha1.ModelReplica{}, fleet.IndexNode, func(o client.Object) []string { return []string{fleet.OrderedOn(o.(*v1alpha1.ModelReplica))} }).Build()
}

// aMac returns one that was not judged yet: the first look at its Lease makes it Ready.
func aMac() *v1alpha1.MacNode {
	return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
}

func leaseOf(renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "mac-m"},
		Spec: coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(renewed))}}
}

var request = reconcile.Request{NamespacedName: client.ObjectKey{Name: "m"}}

// The operator's own watch may be the one that is silent.
func TestALeaseIsReadPastTheCacheBeforeAMacIsCalledSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		live   time.Time
		reason string
	}{
		"only our watch was silent": {live: start.Add(time.Hour), reason: v1alpha1.ReasonReporting},
		"the Mac is silent":         {live: start, reason: v1alpha1.ReasonMacSilent},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(start)
			cached, live := objects(t, aMac(), leaseOf(start)), objects(t, leaseOf(tc.live))
			h := &Heartbeat{Client: cached, Live: live, Namespace: "system", Clock: clock}
			for range 2 {
				if _, err := h.Reconcile(t.Context(), request); err != nil {
					t.Fatal(err)
				}
				clock.Step(40 * time.Second)
			}
			var mac v1alpha1.MacNode
			if err := cached.Get(t.Context(), request.NamespacedName, &mac); err != nil {
				t.Fatal(err)
			}
			if got := mac.Status.Conditions[0].Reason; got != tc.reason {
				t.Errorf("judged %s, want %s", got, tc.reason)
			}
		})
	}
}

// The watchdog looks at all Macs every few seconds.
func TestTheWatchdogCopiesNoMacs(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	c := objects(t, aMac(), leaseOf(start))
	h := &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock, wake: make(chan event.GenericEvent, 1)}
	if _, err := h.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	clock.Step(time.Hour)
	shared, unchanged := fleettest.Sharing(t, c)
	h.Client = shared
	(&watchdog{heartbeat: h}).look(t.Context())
	if len(h.wake) != 1 {
		t.Error("the silence of a Mac triggers no pass")
	}
	unchanged()
}

func TestTheWatchdogNotesThatNobodyAnswers(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	away := false
	live := interceptor.NewClient(objects(t, leaseOf(start)), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if away {
				return errors.New("connection refused")
			}
			return c.List(ctx, list, opts...)
		},
	})
	h := &Heartbeat{Client: objects(t, aMac(), leaseOf(start)), Live: live, Namespace: "system", Clock: clock}
	if _, err := h.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	away = true
	clock.Step(time.Hour)
	(&watchdog{heartbeat: h}).look(t.Context())
	if p, _ := h.pulses.Of("m", clock.Now()); p.Silence != 0 {
		t.Errorf("a silence of %s, though the operator could observe nothing", p.Silence)
	}
}

func reclaim(id string, at time.Time) v1alpha1.Reclaim {
	return v1alpha1.Reclaim{ID: id, Namespace: "ns", Name: "r", ReplicaUID: "u", Epoch: 1, Load: 1, Reason: v1alpha1.ReclaimDrained, Exit: v1alpha1.ExitClean,
		FreedBytes: ptr.To[int64](159744000), HostCheck: v1alpha1.HostCheckVerified, Time: metav1.NewMicroTime(at)}
}

func TestEachReclaimIsToldOnce(t *testing.T) {
	mac := aMac()
	mac.Status.Reclaims = []v1alpha1.Reclaim{reclaim("u/1/2", start), reclaim("u/1/1", start.Add(-2*time.Hour))}
	c := objects(t, mac)
	var told float64
	for process := range 3 {
		// Time passes, and each process starts without memory.
		clock := clocktesting.NewFakePassiveClock(start.Add(time.Duration(process) * time.Minute))
		registry := prometheus.NewRegistry()
		metrics, err := signal.New(registry, c)
		if err != nil {
			t.Fatal(err)
		}
		r := &Reclaims{Client: c, Clock: clock, Metrics: metrics}
		r.holders.bound(replicaOn("m", "ns", "r", "u"))
		for range 2 {
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "metalfleet_operator_freed_bytes_total" {
				for _, m := range f.GetMetric() {
					told += m.GetCounter().GetValue()
				}
			}
		}
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	on := map[string]string{}
	for _, e := range events.Items {
		on[e.InvolvedObject.Kind+" in "+e.Namespace] += e.Message
	}
	want := "freed 159744000 bytes (152.3 MiB) on m: engine of ns/r, epoch 1, load 1; reason Drained, exit Clean, host check Verified"
	named := strings.ReplaceAll(want, "ns/r", "replica u")
	if len(events.Items) != 2 || on["MacNode in default"] != named || on["ModelReplica in ns"] != want {
		t.Errorf("events: %v", on)
	}
	if told != 159744000 {
		t.Errorf("all processes together counted %.0f bytes, want 159744000", told)
	}
}

func replicaOn(mac, namespace, name, uid string) *v1alpha1.ModelReplica {
	r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	r.Spec.NodeName = mac
	return r
}

// TestAttackAMacInventsReclaims: a Mac reports, as often as it likes, the ends of engines that
// it never had.
func TestAttackAMacInventsReclaims(t *testing.T) {
	mac := aMac()
	c := objects(t, mac)
	registry := prometheus.NewRegistry()
	metrics, err := signal.New(registry, c)
	if err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(start)
	r := &Reclaims{Client: c, Clock: clock, Metrics: metrics}
	r.holders.bound(replicaOn("m", "ns", "mine", "u"))
	r.holders.bound(replicaOn("other", "ns", "theirs", "v"))
	const reports, each = 40, 16
	for n := range reports {
		mac.Status.Reclaims = nil
		for i := range each {
			lie := reclaim(fmt.Sprintf("%d/%d", n, i), start)
			switch i % 4 {
			case 0:
				lie.Namespace, lie.Name = "kube-system", "coredns"
			case 1:
				lie.Name, lie.ReplicaUID = "theirs", "v"
			case 2:
				lie.Namespace, lie.Name = "another", "mine" // with the UID of its own replica
			default:
				lie.Name = "mine"
			}
			mac.Status.Reclaims = append(mac.Status.Reclaims, lie)
		}
		if err := c.Status().Update(t.Context(), mac); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.InvolvedObject.Kind != "MacNode" && (e.Namespace != "ns" || e.InvolvedObject.Name != "mine") {
			t.Fatalf("an Event about %s %s/%s", e.InvolvedObject.Kind, e.Namespace, e.InvolvedObject.Name)
		}
	}
	if n := len(events.Items); n < 128 || n > 256 {
		t.Errorf("%d Events for %d reclaims, want %d to %d", n, reports*each, 128, 256)
	}
}

func TestEachReclaimReasonNamesTheNextStep(t *testing.T) {
	for reason, want := range map[v1alpha1.ReclaimReason]struct{ kind, step string }{
		v1alpha1.ReclaimDrained:       {kind: corev1.EventTypeNormal},
		v1alpha1.ReclaimReplaced:      {kind: corev1.EventTypeNormal},
		v1alpha1.ReclaimIdle:          {kind: corev1.EventTypeNormal, step: "the next request loads it again"},
		v1alpha1.ReclaimMadeRoom:      {kind: corev1.EventTypeNormal, step: "the next request loads it again"},
		v1alpha1.ReclaimHeadroom:      {kind: corev1.EventTypeNormal, step: "the next request loads it again"},
		v1alpha1.ReclaimSoftPressure:  {kind: corev1.EventTypeNormal, step: "once there is room"},
		v1alpha1.ReclaimHardPressure:  {kind: corev1.EventTypeWarning, step: "once there is room"},
		v1alpha1.ReclaimEmergency:     {kind: corev1.EventTypeWarning, step: "foreignBytes"},
		v1alpha1.ReclaimOverLimit:     {kind: corev1.EventTypeWarning, step: "memory.limit"},
		v1alpha1.ReclaimLoadCancelled: {kind: corev1.EventTypeWarning, step: "loaded again"},
		v1alpha1.ReclaimCrashed:       {kind: corev1.EventTypeWarning, step: "STATE/logs"},
		v1alpha1.ReclaimLoadFailed:    {kind: corev1.EventTypeWarning, step: "condition Loaded"},
		v1alpha1.ReclaimUnassigned:    {kind: corev1.EventTypeWarning},
	} {
		t.Run(string(reason), func(t *testing.T) {
			mac := aMac()
			r := reclaim("u/1/1", start)
			r.Reason = reason
			mac.Status.Reclaims = []v1alpha1.Reclaim{r}
			for _, e := range eventsOf(t, mac) {
				plain := "freed 159744000 bytes (152.3 MiB) on m: engine of ns/r, epoch 1, load 1; reason " + string(reason) + ", exit Clean, host check Verified"
				if e.InvolvedObject.Kind == "MacNode" {
					plain = strings.ReplaceAll(plain, "ns/r", "replica u")
				}
				step, isPlain := strings.CutPrefix(e.Message, plain)
				if e.Type != want.kind || !isPlain || (step == "") != (want.step == "") || !strings.Contains(step, want.step) {
					t.Errorf("%s %q, want %s and %q", e.Type, e.Message, want.kind, want.step)
				}
			}
		})
	}
}

// eventsOf returns the Events that an operator creates for a Mac's reclaims.
func eventsOf(t *testing.T, mac *v1alpha1.MacNode) []corev1.Event {
	t.Helper()
	c := objects(t, mac)
	metrics, err := signal.New(prometheus.NewRegistry(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := &Reclaims{Client: c, Clock: clocktesting.NewFakePassiveClock(start), Metrics: metrics}
	r.holders.bound(replicaOn("m", "ns", "r", "u"))
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil || len(events.Items) != 2 {
		t.Fatalf("%d events (%v), want 2", len(events.Items), err)
	}
	return events.Items
}

func TestUnmeasuredReclaimHasNoFigure(t *testing.T) {
	mac := aMac()
	r := reclaim("u/1/1", start)
	r.FreedBytes, r.HostCheck = nil, v1alpha1.HostCheckStranded
	mac.Status.Reclaims = []v1alpha1.Reclaim{r}
	for _, e := range eventsOf(t, mac) {
		if !strings.HasPrefix(e.Message, "freed an unknown number of bytes on m") || !strings.Contains(e.Message, "reboot the Mac to free it") || e.Type != corev1.EventTypeWarning {
			t.Errorf("%s %q", e.Type, e.Message)
		}
	}
}

// A reclaim that happens while the operator watches is reported regardless of the Mac's
// clock.
func TestAWrongClockHidesNoReclaim(t *testing.T) {
	mac := aMac()
	c := objects(t, mac)
	metrics, err := signal.New(prometheus.NewRegistry(), c)
	if err != nil {
		t.Fatal(err)
	}
	r := &Reclaims{Client: c, Clock: clocktesting.NewFakePassiveClock(start), Metrics: metrics}
	r.holders.bound(replicaOn("m", "ns", "r", "u"))
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	mac.Status.Reclaims = []v1alpha1.Reclaim{reclaim("u/1/1", start.Add(-1000*time.Hour))}
	if err := c.Status().Update(t.Context(), mac); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil || len(events.Items) != 2 {
		t.Errorf("%d events (%v), want 2", len(events.Items), err)
	}
}

// A condition follows the reports of gateways, and stays while there are none. Its message and
// the Event do not depend on the error, which would reveal what is at another's address.
func TestReachabilityIsWhatGatewaysReport(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	mac := aMac()
	mac.Status.Address = &v1alpha1.MacAddress{Host: "192.0.2.7", Port: 7443}
	c := objects(t, mac, leaseOf(start))
	var found demand.Reach
	h := &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock, Reach: func(types.UID) demand.Reach { return found }}
	for _, step := range []struct {
		found  demand.Reach
		reason string // empty: no condition
	}{
		{found: demand.Reach{}, reason: ""},
		{found: demand.Reach{Known: true, Gateways: 2, By: 1, Err: "refused"}, reason: v1alpha1.ReasonReached},
		{found: demand.Reach{Known: true, Gateways: 2, Err: "refused"}, reason: v1alpha1.ReasonMacUnreachable},
		{found: demand.Reach{}, reason: v1alpha1.ReasonMacUnreachable},
		{found: demand.Reach{Known: true, Gateways: 1, By: 1}, reason: v1alpha1.ReasonReached},
	} {
		found = step.found
		if _, err := h.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		var now v1alpha1.MacNode
		if err := c.Get(t.Context(), request.NamespacedName, &now); err != nil {
			t.Fatal(err)
		}
		got := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReachable)
		if (got == nil) != (step.reason == "") || got != nil && got.Reason != step.reason {
			t.Errorf("after %+v the condition is %+v, want %q", step.found, got, step.reason)
		}
		if got != nil && got.Status == metav1.ConditionFalse && (!strings.Contains(got.Message, "192.0.2.7:7443") || strings.Contains(got.Message, "refused")) {
			t.Errorf("the message lacks the address, or contains the error: %s", got.Message)
		}
		clock.Step(time.Second)
	}
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	if len(events.Items) != 1 || events.Items[0].Reason != v1alpha1.ReasonMacUnreachable || strings.Contains(events.Items[0].Message, "refused") {
		t.Errorf("%d Events: %+v", len(events.Items), events.Items)
	}
}

// TestAnUnreachableMacThatMovesAllTheTimeIsWrittenSeldom: each write stores its whole MacNode again.
func TestAnUnreachableMacThatMovesAllTheTimeIsWrittenSeldom(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	c := objects(t, aMac(), leaseOf(start))
	h := &Heartbeat{Client: c, Live: c, Namespace: "system", Clock: clock, Reach: func(types.UID) demand.Reach { return demand.Reach{Known: true, Gateways: 1} }}
	h.rewrites.Burst, h.rewrites.Every = rewriteBurst, rewriteEvery
	seen := map[string]bool{}
	look := func(port int32) (message string) {
		var mac v1alpha1.MacNode
		if err := c.Get(t.Context(), request.NamespacedName, &mac); err != nil {
			t.Fatal(err)
		}
		mac.Status.Address = &v1alpha1.MacAddress{Host: "192.0.2.7", Port: port}
		if err := c.Status().Update(t.Context(), &mac); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), request.NamespacedName, &mac); err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionReachable).Message
	}
	for port := range int32(100) {
		seen[look(port+1)] = true
	}
	if len(seen) != rewriteBurst+1 { // with that of the change to unreachable
		t.Errorf("written %d times at once, want %d", len(seen), rewriteBurst+1)
	}
	clock.Step(rewriteEvery)
	if m := look(7443); !strings.Contains(m, ":7443 ") && !strings.Contains(m, ":7443.") {
		t.Errorf("its last address is not shown %s later: %s", rewriteEvery, m)
	}
}
