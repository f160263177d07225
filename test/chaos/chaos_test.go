package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestARoundHasEveryKindOnceAndLeavesControlAloneWhileAMacIsLost, for many seeds.
func TestARoundHasEveryKindOnceAndLeavesControlAloneWhileAMacIsLost(t *testing.T) {
	firsts := map[kind]bool{}
	for seed := range uint64(200) {
		s := newSchedule(seed)
		for round := range 4 {
			var kinds []kind
			lost, doubles := false, 0
			for i, one := range s.next() {
				kinds = append(kinds, one[0].kind)
				lost = lost || one[0].kind == macLost
				if i == 0 && round == 0 {
					firsts[one[0].kind] = true
				}
				if len(one) > 1 {
					doubles++
				}
				for _, f := range one {
					if lost && f.kind.ofControl() {
						t.Errorf("seed %d: %s while a Mac is lost", seed, f.kind)
					}
					if h := holds()[f.kind]; f.hold < h[0] || f.hold > h[1] {
						t.Errorf("seed %d: %s", seed, f)
					}
				}
				if len(one) == 2 && one[0].kind == one[1].kind {
					t.Errorf("seed %d: %v", seed, one)
				}
			}
			if round == 0 && doubles > 0 {
				t.Errorf("seed %d: the first round does two things at once", seed)
			}
			want := allKinds()
			slices.Sort(want)
			if slices.Sort(kinds); !slices.Equal(kinds, want) {
				t.Errorf("seed %d: %v", seed, kinds)
			}
		}
	}
	if len(firsts) != len(allKinds())-1 { // what blinds the operator comes before a Mac is lost
		t.Errorf("rounds begin with %v alone", firsts)
	}
}

func TestTheOrderIsTheSeedsAlone(t *testing.T) {
	order := func(seed uint64) string {
		s := newSchedule(seed)
		return fmt.Sprint(s.next(), s.next())
	}
	once, again, other := order(7), order(7), order(8)
	if once != again || once == other {
		t.Error(once, again, other)
	}
}

func TestRequestsAreJudgedByWhatWasDone(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	lost := fmt.Errorf("read stream: %w", &openai.Error{Code: agentapi.CodeEngineLost})
	broke := errors.New("unexpected EOF")
	done := []outage{
		{agentKilled, "mac-1", at(10), at(20)}, {gatewayKilled, "gateway-1", at(10), at(20)},
		{diskFull, "mac-2", at(10), at(20)}, {macLost, "mac-3", at(10), time.Time{}},
	}
	base := request{stream: true, first: true, gateway: "gateway-2", mac: "mac-1", begun: at(12), ended: at(15), err: lost}
	for name, c := range map[string]struct {
		change func(*request)
		want   verdict
	}{
		"a whole answer":                             {func(r *request) { r.err, r.finish, r.tokens = nil, "length", 5 }, whole},
		"fewer tokens than asked for":                {func(r *request) { r.err, r.finish, r.tokens = nil, "length", 4 }, failed},
		"an end without a reason":                    {func(r *request) { r.err, r.tokens = nil, 5 }, failed},
		"a stream of a killed agent, told so":        {func(*request) {}, cutTyped},
		"a stream of a lost Mac, told so":            {func(r *request) { r.mac, r.begun, r.ended = "mac-3", at(100), at(101) }, cutTyped},
		"the same after it was over":                 {func(r *request) { r.begun, r.ended = at(21), at(22) }, failed},
		"the same before it began":                   {func(r *request) { r.begun, r.ended = at(8), at(9) }, failed},
		"a stream of another Mac":                    {func(r *request) { r.mac = "mac-4" }, failed},
		"a disk that is full ends nothing":           {func(r *request) { r.mac = "mac-2" }, failed},
		"another error inside a stream":              {func(r *request) { r.err = &openai.Error{Code: "x"} }, failed},
		"an error before the first byte":             {func(r *request) { r.first = false }, failed},
		"an error where nothing streams":             {func(r *request) { r.stream = false }, failed},
		"a connection that broke with its gateway":   {func(r *request) { r.err, r.gateway = broke, "gateway-1" }, cutGateway},
		"a connection that broke though nobody died": {func(r *request) { r.err = broke }, failed},
	} {
		r := base
		c.change(&r)
		got, err := judge(r, 5, done)
		if got != c.want || (err != nil) != (got == failed) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	t1 := judgeAll([]request{base, {stream: true, err: broke}}, func(request) int { return 5 }, done)
	if err := t1.err(); err == nil || t1.count[failed] != 1 || t1.streams != 2 {
		t.Error(t1, err)
	}
	if err := judgeAll(nil, nil, nil).err(); err == nil {
		t.Error("a run without a request passed")
	}
}

func TestAGatewayLeavesAMacOutWhenItSaysSo(t *testing.T) {
	log := `time=2026-11-23T07:00:01.500Z level=INFO msg="Connection to a Mac failed; preferring others for a while" requestID=a MacNode=mac-1 reason=x
time=2026-11-23T07:00:03.250Z level=INFO msg="Connection to a Mac failed; preferring others for a while" requestID=b MacNode=mac-12 reason=x
time=2026-11-23T07:00:04.750Z level=INFO msg="Connection to a Mac failed; preferring others for a while" requestID=c MacNode=mac-1 reason=x
`
	cut := time.Date(2026, 11, 23, 7, 0, 3, 0, time.UTC)
	at, ok := distrusted(log, "mac-1", cut)
	if took := at.Sub(cut); !ok || took != 1750*time.Millisecond {
		t.Error(took, ok)
	}
	if _, ok := distrusted(log, "mac-2", cut); ok {
		t.Error("nobody spoke of mac-2")
	}
}

func TestAReplicaIsLoadedOnceAndOnceMoreForEachEngineKilled(t *testing.T) {
	l := newLoads()
	look := func(mac string, pid int64) {
		n := &v1alpha1.MacNode{}
		n.Name = mac
		n.Status.Assignments = []v1alpha1.AssignmentStatus{{ReplicaUID: "a", PID: pid}, {ReplicaUID: "b"}}
		l.look(n)
	}
	look("mac-1", 10)
	look("mac-1", 10)
	if n, err := l.judge(); n != 1 || err != nil {
		t.Error(n, err)
	}
	look("mac-1", 11)
	if _, err := l.judge(); err == nil {
		t.Error("a second load without a reason passed")
	}
	l.kill("a")
	if n, err := l.judge(); n != 2 || err != nil {
		t.Error(n, err)
	}
}

// TestTheClockOfThisGoCanBeSetOff: the source of time.Now is as it is known.
func TestTheClockOfThisGoCanBeSetOff(t *testing.T) {
	_, source, err := timeSource(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out, err := skewedSource(source)
	if err != nil || !strings.Contains(out, "sec += skewed()") {
		t.Error(err)
	}
	if _, err := skewedSource("package time"); err == nil {
		t.Error("another Go's time.Now was taken for the known one")
	}
}

// TestAnOperatorLeadsThatSaysSoNow: a Lease that is over still names its holder.
func TestAnOperatorLeadsThatSaysSoNow(t *testing.T) {
	since := time.Now()
	lease := func(holder string, at time.Time) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: at}}}
	}
	for name, c := range map[string]struct {
		lease *coordinationv1.Lease
		leads bool
	}{
		"renewed since":     {lease("one", since.Add(time.Millisecond)), true},
		"renewed before":    {lease("one", since.Add(-time.Second)), false},
		"given back":        {lease("", since.Add(time.Second)), false},
		"nobody ever led":   {&coordinationv1.Lease{}, false},
		"renewed just then": {lease("one", since), false},
	} {
		if err := leads(c.lease, since); (err == nil) != c.leads {
			t.Errorf("%s: %v", name, err)
		}
	}
}
