//go:build stories

package system

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// outage is what was done to a Mac or a gateway, by its name, and how long requests
// may notice it.
type outage struct {
	kind     kind
	who      string
	from, to time.Time // to is zero while it lasts
}

func (o outage) overlaps(from, to time.Time) bool {
	return o.from.Before(to) && (o.to.IsZero() || o.to.After(from))
}

// verdict of a request under faults.
type verdict string

const (
	whole verdict = "whole"
	// cutTyped is a stream that ended with an error event after its first token,
	// because its Mac or engine was taken away.
	cutTyped verdict = "cut with an error"
	// cutGateway is a stream whose gateway was killed: its connection broke, which no
	// client takes for an end.
	cutGateway verdict = "cut with its gateway"
	// failed requests could have been saved, or ended without an error.
	failed verdict = "failed"
)

// judge is the verdict on a request, given the outages.
func judge(r fleet.Request, outages []outage) (verdict, error) {
	met := func(who string) bool {
		return slices.ContainsFunc(outages, func(o outage) bool {
			return o.kind.breaks() && (who == "" || o.who == who) && o.overlaps(r.Began, r.Ended)
		})
	}
	var typed *openai.Error
	switch err := r.Whole(); {
	case err == nil:
		return whole, nil
	case r.Err == nil:
		return failed, err
	case !r.Stream || !r.Begun:
		return failed, fmt.Errorf("nothing had been sent, a retry would have saved it: %w", err)
	case errors.As(err, &typed):
		if typed.Code != agentapi.CodeEngineLost {
			return failed, fmt.Errorf("a stream ended with another error than %s: %w", agentapi.CodeEngineLost, err)
		}
		if !met(r.Mac) {
			return failed, fmt.Errorf("a stream of %s was cut though nothing was done there: %w", r.Mac, err)
		}
		return cutTyped, nil
	case met(r.Gateway):
		return cutGateway, nil
	default:
		return failed, fmt.Errorf("a stream broke off without an error, and its gateway lived: %w", err)
	}
}

// tally counts requests by verdict, with an error if one failed or none was whole.
func tally(requests []fleet.Request, outages []outage) (count map[verdict]int, err error) {
	count = map[verdict]int{}
	var errs []error
	for _, r := range requests {
		v, err := judge(r, outages)
		if count[v]++; err != nil && len(errs) < 10 {
			errs = append(errs, fmt.Errorf("%s: %w", r, err))
		}
	}
	if count[whole] == 0 {
		errs = append(errs, errors.New("no request was answered"))
	}
	return count, errors.Join(errs...)
}

// suspected is what a gateway logs when a Mac leaves its picks.
const suspected = "Connection to a Mac failed; preferring others for a while"

// leftPicks finds in a gateway's log when a Mac left its picks, the first time after
// a moment.
func leftPicks(log, mac string, after time.Time) (time.Time, bool) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, suspected) || !strings.Contains(line, "MacNode="+mac+" ") {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err == nil && !at.Before(after.Truncate(time.Millisecond)) {
			return at, true
		}
	}
	return time.Time{}, false
}

// loadCount counts the engines that each replica was given, as Macs report them,
// and how many of them were killed.
type loadCount struct {
	engines map[string]map[string]bool
	killed  map[string]int
}

func (l *loadCount) see(mac *v1alpha1.MacNode) {
	for _, a := range mac.Status.Assignments {
		if a.PID == 0 {
			continue
		}
		if l.engines[a.ReplicaUID] == nil {
			l.engines[a.ReplicaUID] = map[string]bool{}
		}
		l.engines[a.ReplicaUID][fmt.Sprintf("%s/%d", mac.Name, a.PID)] = true
	}
}

// check wants each replica to have been loaded once, and once more for each of its
// engines that was killed.
func (l *loadCount) check() error {
	for _, uid := range slices.Sorted(maps.Keys(l.engines)) {
		if n := len(l.engines[uid]); n > 1+l.killed[uid] {
			return fmt.Errorf("replica %s was loaded %d times, though %d of its engines were killed: %v", uid, n, l.killed[uid], slices.Sorted(maps.Keys(l.engines[uid])))
		}
	}
	return nil
}

func TestRequestsAreJudgedByWhatWasDone(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	lost := fmt.Errorf("read stream: %w", &openai.Error{Code: agentapi.CodeEngineLost})
	broke := errors.New("unexpected EOF")
	done := []outage{
		{kind: agentKilled, who: "mac-1", from: at(10), to: at(20)}, {kind: gatewayKilled, who: "gateway", from: at(10), to: at(20)},
		{kind: diskFull, who: "mac-2", from: at(10), to: at(20)}, {kind: macLost, who: "mac-3", from: at(10), to: time.Time{}},
	}
	base := fleet.Request{Question: fleet.Question{Stream: true, MaxTokens: 5}, Answer: fleet.Answer{Begun: true, Mac: "mac-1"}, Gateway: "second", Began: at(12), Ended: at(15), Err: lost}
	for name, c := range map[string]struct {
		change func(*fleet.Request)
		want   verdict
	}{
		"a whole answer":                             {change: func(r *fleet.Request) { r.Err, r.Finish, r.Usage.CompletionTokens = nil, "length", 5 }, want: whole},
		"fewer tokens than asked for":                {change: func(r *fleet.Request) { r.Err, r.Finish, r.Usage.CompletionTokens = nil, "length", 4 }, want: failed},
		"an end without a reason":                    {change: func(r *fleet.Request) { r.Err, r.Usage.CompletionTokens = nil, 5 }, want: failed},
		"a stream of a killed agent, with an error":  {change: func(*fleet.Request) {}, want: cutTyped},
		"a stream of a lost Mac, with an error":      {change: func(r *fleet.Request) { r.Mac, r.Began, r.Ended = "mac-3", at(100), at(101) }, want: cutTyped},
		"the same after it was over":                 {change: func(r *fleet.Request) { r.Began, r.Ended = at(21), at(22) }, want: failed},
		"the same before it began":                   {change: func(r *fleet.Request) { r.Began, r.Ended = at(8), at(9) }, want: failed},
		"a stream of another Mac":                    {change: func(r *fleet.Request) { r.Mac = "mac-4" }, want: failed},
		"a full disk ends no stream":                 {change: func(r *fleet.Request) { r.Mac = "mac-2" }, want: failed},
		"another error inside a stream":              {change: func(r *fleet.Request) { r.Err = &openai.Error{Code: "x"} }, want: failed},
		"an error before the first byte":             {change: func(r *fleet.Request) { r.Begun = false }, want: failed},
		"an error of an answer that is not streamed": {change: func(r *fleet.Request) { r.Stream = false }, want: failed},
		"a connection that broke with its gateway":   {change: func(r *fleet.Request) { r.Err, r.Gateway = broke, "gateway" }, want: cutGateway},
		"a connection that broke without a fault":    {change: func(r *fleet.Request) { r.Err = broke }, want: failed},
	} {
		r := base
		c.change(&r)
		got, err := judge(r, done)
		if got != c.want || (err != nil) != (got == failed) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if count, err := tally([]fleet.Request{base}, nil); err == nil || count[failed] != 1 {
		t.Error(count, err)
	}
	if _, err := tally(nil, nil); err == nil {
		t.Error("a run without a request passed")
	}
}

func TestAMacLeavesThePicksWhenTheGatewayLogsIt(t *testing.T) {
	log := `time=2026-11-23T07:00:01.500Z level=INFO msg="` + suspected + `" requestID=a MacNode=mac-1 reason=x
time=2026-11-23T07:00:03.250Z level=INFO msg="` + suspected + `" requestID=b MacNode=mac-12 reason=x
time=2026-11-23T07:00:04.750Z level=INFO msg="` + suspected + `" requestID=c MacNode=mac-1 reason=x
`
	cut := time.Date(2026, 11, 23, 7, 0, 3, 0, time.UTC)
	at, ok := leftPicks(log, "mac-1", cut)
	if took := at.Sub(cut); !ok || took != 1750*time.Millisecond {
		t.Error(took, ok)
	}
	if _, ok := leftPicks(log, "mac-2", cut); ok {
		t.Error("mac-2 is in no line")
	}
}

func TestAReplicaIsLoadedOnceAndOnceMoreForEachEngineKilled(t *testing.T) {
	l := &loadCount{engines: map[string]map[string]bool{}, killed: map[string]int{}}
	see := func(pid int64) {
		n := &v1alpha1.MacNode{}
		n.Name = "mac-1"
		n.Status.Assignments = []v1alpha1.AssignmentStatus{{ReplicaUID: "a", PID: pid}, {ReplicaUID: "b"}}
		l.see(n)
	}
	see(10)
	see(10)
	if err := l.check(); err != nil {
		t.Error(err)
	}
	see(11)
	if err := l.check(); err == nil {
		t.Error("a second load without a reason passed")
	}
	l.killed["a"]++
	if err := l.check(); err != nil {
		t.Error(err)
	}
}
