package demand_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
)

// room is a ledger on virtual time.
type room struct {
	t   *testing.T
	now time.Time
	l   *demand.Ledger
	up  map[string]time.Time
}

func newRoom(t *testing.T) *room {
	r := &room{t: t, now: time.Unix(1_800_000_000, 0), up: map[string]time.Time{}}
	r.l = demand.NewLedger(func() time.Time { return r.now })
	return r
}

var key = types.NamespacedName{Namespace: "ns", Name: "chat"}

// report sends the figures of a gateway that has been up for long: requests at replica r1,
// and waiting ones.
func (r *room) report(gateway string, running, waiting int, begun uint64) []types.NamespacedName {
	r.t.Helper()
	if r.up[gateway].IsZero() {
		r.up[gateway] = r.now.Add(-time.Hour)
	}
	m := api.Model{Namespace: "ns", Name: "chat", Running: running, Waiting: waiting, Begun: begun}
	if waiting > 0 {
		m.OldestMillis = 1500
	}
	urgent, err := r.l.Take("10.0.0.1", &api.Report{Gateway: gateway, UpMillis: r.now.Sub(r.up[gateway]).Milliseconds(), Models: []api.Model{m}, Replicas: map[string]int{"r1": running}})
	if err != nil {
		r.t.Fatal(err)
	}
	return urgent
}

func (r *room) whole(want bool, because string) {
	r.t.Helper()
	r.wholeOf(0, want, because)
}

func (r *room) wholeOf(serve int, want bool, because string) {
	r.t.Helper()
	if whole, why := r.l.Whole(serve); whole != want || !strings.Contains(why, because) {
		r.t.Errorf("whole = %v (%s), want %v (%s)", whole, why, want, because)
	}
}

func (r *room) sum(running, waiting int) {
	r.t.Helper()
	if f := r.l.Of(key); f.Running != running || f.Waiting != waiting || (f.Oldest == 1500*time.Millisecond) != (waiting > 0) {
		r.t.Errorf("%+v, want %d running and %d waiting", f, running, waiting)
	}
}

func TestSeveralGatewaysSumUp(t *testing.T) {
	r := newRoom(t)
	r.whole(false, "receives no reports")
	r.l.Listen()
	r.whole(false, "no gateway")
	r.report("a", 3, 1, 9)
	r.report("b", 2, 0, 4)
	r.sum(5, 1)
	r.whole(false, "operator has just started")
	r.now = r.now.Add(16 * time.Second)
	r.report("a", 3, 1, 9)
	r.report("b", 2, 0, 4)
	r.whole(true, "")
	if other := r.l.Of(types.NamespacedName{Namespace: "other", Name: "chat"}); other.Running+other.Waiting > 0 {
		t.Errorf("another namespace's: %+v", other)
	}
}

// The Service's endpoints include it.
func TestAGatewayWithoutReportsMakesSumsIncomplete(t *testing.T) {
	r := newRoom(t)
	r.l.Listen()
	r.now = r.now.Add(time.Minute)
	r.report("a", 1, 0, 1)
	r.wholeOf(1, true, "")
	r.wholeOf(2, false, "2 gateways accept requests, but reports come from only 1 of them")
	r.report("b", 0, 0, 0)
	r.wholeOf(2, true, "")
}

// The replicas count as busy, and the sum as incomplete (LLMKube #1543: unknown idle counts
// as busy).
func TestASilentGatewayIsNoZero(t *testing.T) {
	r := newRoom(t)
	r.l.Listen()
	r.report("a", 3, 0, 3)
	r.now = r.now.Add(20 * time.Second)
	r.report("b", 0, 1, 1)
	r.whole(false, "1 of 2 gateways have stopped reporting")
	r.sum(0, 1) // its last report has expired
	if !r.l.Busy("r1") {
		t.Error("the replica where it had requests is taken for idle")
	}
	r.now = r.now.Add(2 * time.Minute)
	r.report("b", 0, 0, 1)
	r.whole(true, "") // it is forgotten
	if r.l.Busy("r1") {
		t.Error("a gateway that is gone keeps a replica busy")
	}
}

// Its clients are about to reconnect.
func TestAGatewayThatRestartsIsNoZero(t *testing.T) {
	r := newRoom(t)
	r.l.Listen()
	r.now = r.now.Add(time.Minute)
	r.report("a", 3, 0, 3)
	r.whole(true, "")
	if _, err := r.l.Take("10.0.0.1", &api.Report{Gateway: "a", Last: true}); err != nil {
		t.Fatal(err)
	}
	r.whole(false, "no gateway")
	r.up["a2"] = r.now
	r.report("a2", 0, 0, 0)
	r.whole(false, "1 of 1 gateways have just started")
	r.now = r.now.Add(16 * time.Second)
	r.report("a2", 0, 0, 0)
	r.whole(true, "")
}

func TestWhoBeginsToWaitIsToldAtOnce(t *testing.T) {
	r := newRoom(t)
	if u := r.report("a", 1, 0, 1); len(u) > 0 {
		t.Errorf("%v are urgent", u)
	}
	if u := r.report("a", 1, 1, 2); !slices.Equal(u, []types.NamespacedName{key}) {
		t.Errorf("%v are urgent, want %v", u, key)
	}
	if u := r.report("a", 1, 2, 3); len(u) > 0 {
		t.Errorf("%v are urgent again", u)
	}
}

func TestARequestBetweenTwoReportsIsSeen(t *testing.T) {
	r := newRoom(t)
	asked := func(want bool) {
		t.Helper()
		if got := r.l.Of(key).Asked.Equal(r.now); got != want {
			t.Errorf("asked now: %v, want %v", got, want)
		}
	}
	r.report("a", 0, 0, 7)
	asked(false) // a restarted operator learns the earlier load
	r.now = r.now.Add(time.Second)
	r.report("a", 0, 0, 7)
	asked(false)
	r.now = r.now.Add(time.Second)
	r.report("a", 0, 0, 8)
	asked(true)
	r.now = r.now.Add(time.Second)
	r.report("a", 0, 0, 8)
	asked(false)
	r.up["young"] = r.now
	r.report("young", 0, 0, 1)
	asked(true)
}

func TestWhatCannotBeTrueIsRefused(t *testing.T) {
	for name, bad := range map[string]api.Report{
		"no gateway":              {},
		"fewer than none run":     {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m", Running: -1}}, Replicas: map[string]int{"r": -1}},
		"fewer than none wait":    {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m", Waiting: -1}}},
		"a wait without requests": {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m", OldestMillis: 5}}},
		"more than anybody has":   {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m", Waiting: 1 << 30}}},
		"a model twice":           {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m"}, {Namespace: "ns", Name: "m"}}},
		"a model without a name":  {Gateway: "a", Models: []api.Model{{Namespace: "ns"}}},
		"sums that differ":        {Gateway: "a", Models: []api.Model{{Namespace: "ns", Name: "m"}}, Replicas: map[string]int{"r": 1}},
		"born in the future":      {Gateway: "a", UpMillis: -1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoom(t)
			if _, err := r.l.Take("10.0.0.1", &bad); !errors.Is(err, api.ErrInvalid) {
				t.Errorf("Take = %v", err)
			}
			if r.l.Gateways() > 0 {
				t.Error("and it was taken")
			}
		})
	}
}

func TestAMacIsReachableIfAGatewayReachesIt(t *testing.T) {
	r := newRoom(t)
	take := func(gateway string, reached []string, unreached map[string]string) {
		t.Helper()
		if _, err := r.l.Take("10.0.0.1", &api.Report{Gateway: gateway, UpMillis: 1000, Reached: reached, Unreached: unreached}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(mac types.UID, want api.Reach) {
		t.Helper()
		if got := r.l.Reach(mac); got != want {
			t.Errorf("%s: %+v, want %+v", mac, got, want)
		}
	}
	want("m1", api.Reach{})
	take("a", []string{"m1"}, map[string]string{"m2": "refused", "m3": ""})
	take("b", nil, map[string]string{"m1": "no route", "m2": "timeout"})
	want("m1", api.Reach{Known: true, Gateways: 2, By: 1, Err: "no route"})
	want("m2", api.Reach{Known: true, Gateways: 2, Err: "timeout"})
	want("m3", api.Reach{Known: true, Gateways: 1, Err: "no connection"})
	want("m4", api.Reach{})
	r.now = r.now.Add(3 * time.Second)
	take("b", []string{"m2"}, nil)
	r.now = r.now.Add(3 * time.Second) // a's report has expired
	want("m1", api.Reach{})
	want("m2", api.Reach{Known: true, Gateways: 1, By: 1})
	if _, err := r.l.Take("10.0.0.1", &api.Report{Gateway: "c", Unreached: map[string]string{"m": strings.Repeat("x", 400)}}); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a long error: %v", err)
	}
}

// TestAttackADeploymentTooManyInAReport: the report is not refused.
func TestAttackADeploymentTooManyInAReport(t *testing.T) {
	r := newRoom(t)
	report := &api.Report{Gateway: "old", Models: []api.Model{{Namespace: "ns", Name: "chat", Waiting: 5, OldestMillis: 1500}}}
	for i := range 20_000 {
		report.Models = append(report.Models, api.Model{Namespace: "evil", Name: fmt.Sprint(i), Begun: 1})
	}
	urgent, err := r.l.Take("10.0.0.1", report)
	if err != nil || !slices.Contains(urgent, key) {
		t.Errorf("%v, %v", urgent, err)
	}
	r.sum(0, 5)
}

// TestInventedIdsReplaceNoOtherReports: a gateway that was taken over fills neither the operator's
// memory nor the places of others.
func TestInventedIdsReplaceNoOtherReports(t *testing.T) {
	r := newRoom(t)
	r.l.Exists = func(k types.NamespacedName) bool { return k == key }
	r.report("good", 3, 1, 9)
	large := map[string]int{}
	for i := range 40_000 {
		large[fmt.Sprintf("%036d", i)] = 0
	}
	for i := range 200 {
		r.now = r.now.Add(10 * time.Millisecond)
		if _, err := r.l.Take("10.6.6.6", &api.Report{Gateway: fmt.Sprint("small-", i), UpMillis: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.l.Gateways(); n != 64 {
		t.Errorf("%d gateways are kept, want 64", n)
	}
	r.sum(3, 1)
	for i := range 100 {
		evil := types.NamespacedName{Namespace: "evil", Name: fmt.Sprint("m", i)}
		if _, err := r.l.Take("10.6.6.6", &api.Report{Gateway: fmt.Sprint("large-", i), UpMillis: 3_600_000, Replicas: large, Models: []api.Model{{Namespace: evil.Namespace, Name: evil.Name, Waiting: 1}}}); err != nil {
			t.Fatal(err)
		}
		if f := r.l.Of(evil); !f.Asked.IsZero() {
			t.Fatalf("a deployment that does not exist is remembered: %+v", f)
		}
	}
	if n := r.l.Gateways(); n < 20 || n > 40 {
		t.Errorf("%d gateways are kept, want those of 128 MiB", n)
	}
	r.sum(3, 1)
	if f := r.l.Of(key); f.Asked.IsZero() {
		t.Error("the honest gateway's deployment was not asked for")
	}
}
