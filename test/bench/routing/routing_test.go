package main

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/test/bench/report"
)

func small() scenario {
	s := scenarios()[0]
	s.shape.requests = 600
	return s
}

func TestATraceIsTheSameForASeedAndGrowsTurnByTurn(t *testing.T) {
	s := small().shape
	a := s.trace(3)
	if !reflect.DeepEqual(a, s.trace(3)) || reflect.DeepEqual(a, s.trace(4)) {
		t.Fatal("a seed is not what makes a trace")
	}
	if !slices.IsSortedFunc(a, func(x, y turn) int { return int(x.at - y.at) }) || len(a) < s.requests {
		t.Fatalf("%d requests, want %d in the order of their times", len(a), s.requests)
	}
	last, groups := map[int]turn{}, map[int]int{}
	for _, x := range a {
		before, known := last[x.conversation]
		if known && (x.group != before.group || x.number != before.number+1 || x.prompt != before.prompt+s.question+s.reply) || !known && x.number != 0 {
			t.Fatalf("%+v after %+v", x, before)
		}
		last[x.conversation] = x
		groups[x.group]++
	}
	if groups[0] < 2*groups[s.groups-1] {
		t.Errorf("the first application is asked %d times, the last %d", groups[0], groups[s.groups-1])
	}
}

// TestASimulatedRunIsTheSameForASeed, and every request of it is answered once.
func TestASimulatedRunIsTheSameForASeed(t *testing.T) {
	s := small()
	for _, p := range policies() {
		a, err := s.run(p.pick, 1)
		b, again := s.run(p.pick, 1)
		if err != nil || again != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %v, %v; the same: %v", p.name, err, again, reflect.DeepEqual(a, b))
		}
		sum := 0
		for _, n := range a.answers {
			sum += n
		}
		if want := len(s.shape.trace(1)); len(a.first) != want || sum != want || a.cached <= 0 || a.cached >= a.prompt {
			t.Errorf("%s: %d first tokens of %d requests, %d of %d tokens remembered", p.name, len(a.first), want, a.cached, a.prompt)
		}
	}
	if _, err := s.run(func([]pick.Candidate, pick.Prefix, uint64) (int, bool) { return 0, false }, 1); err == nil {
		t.Error("requests that nobody answered are not missed")
	}
}

// TestAPromptAloneTakesWhatItsModelSays: the figures of virtual time are sums.
func TestAPromptAloneTakesWhatItsModelSays(t *testing.T) {
	s := small()
	s.shape.requests, s.shape.turns, s.shape.rate = 1, 2, 1
	s.shape.think = time.Hour
	o, err := s.run(pick.Choose, 1)
	if err != nil || len(o.first) != 2 {
		t.Fatal(o, err)
	}
	seconds := func(tokens int) time.Duration {
		return time.Duration(float64(tokens) / s.engine.prefill * float64(time.Second)).Round(time.Millisecond)
	}
	first := s.shape.system + s.shape.question
	second := first + s.shape.question + s.shape.reply
	known := first / s.engine.block * s.engine.block
	if got := o.first[0].Round(time.Millisecond); got != seconds(first) {
		t.Errorf("first turn %s, want %s", got, seconds(first))
	}
	if got := o.first[1].Round(time.Millisecond); got != seconds(second-known) || o.cached != known {
		t.Errorf("second turn %s with %d remembered, want %s with %d", got, o.cached, seconds(second-known), known)
	}
}

func TestMemoryForgetsTheEndOfWhatWasUsedLongestAgo(t *testing.T) {
	of := func(n int) []key { return []key{{of: n}, {of: n, at: 1}, {of: n, at: 2}} }
	m := memory{most: 3}
	m.add(of(1))
	m.add([]key{{of: 2}})
	if a, b := m.match(of(1)), m.match(of(2)); a != 2 || b != 1 {
		t.Errorf("known %d and %d blocks of what was added; want 2, 1", a, b)
	}
	m = memory{most: 6}
	m.add(of(1))
	m.add(of(2))
	if m.match(of(1)) != 3 || m.match(of(2)) != 3 || m.match(of(3)) != 0 {
		t.Fatal("what was added is not known")
	}
	m.match(of(1)) // used last
	m.add([]key{{of: 3}, {of: 3, at: 1}})
	if a, b, c := m.match(of(1)), m.match(of(2)), m.match(of(3)); a != 3 || b != 1 || c != 2 {
		t.Errorf("known %d, %d and %d blocks; want 3, 1, 2", a, b, c)
	}
}

func TestNoTwoRunsAskTheSame(t *testing.T) {
	s := script{words: func(n int) int { return n }, shape: chats(1)}
	body := func(salt uint64, x turn) string {
		s.salt = salt
		b, err := s.body(x)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first, second := turn{group: 1, conversation: 2}, turn{group: 1, conversation: 2, number: 1}
	a, b := body(1, first), body(1, second)
	const end = `}],"model"`
	i := slices.Index([]byte(a), ']') - 1
	if a[:i] != b[:i] || len(b) <= len(a) {
		t.Errorf("the second turn does not go on where the first ended %s", end)
	}
	if body(2, first) == a || body(1, turn{group: 1, conversation: 3}) == a {
		t.Error("another run or conversation says the same")
	}
}

func TestARunWithAnAnswerThatFailedIsNone(t *testing.T) {
	good := answer{first: time.Second, prompt: 10, cached: 5, replica: 1}
	if o, err := sum([]answer{good, good}, nil); err != nil || o.hits() != 0.5 || o.imbalance() != replicas {
		t.Errorf("%+v, %v", o, err)
	}
	for what, answers := range map[string][]answer{"one failed": {good, {err: errors.New("cut")}}, "none": nil} {
		if _, err := sum(answers, nil); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := replicaOf("mac-8"); err == nil {
		t.Error("a Mac that is not there answered")
	}
}

func TestBoundsAreBesideTheirPolicy(t *testing.T) {
	run := func(cached int, first time.Duration) outcome {
		return outcome{prompt: 100, cached: cached, first: []time.Duration{first}, answers: []int{1}}
	}
	c := comparison{name: "x", bounds: bounds{1.2, 1, 2}, outcomes: [][]outcome{{run(50, 15)}, {run(40, 15)}, {run(40, 10)}}}
	r := report.New("x", "x", "x")
	c.fill(r)
	if err := r.Judge(); err != nil {
		t.Error(err)
	}
	c.bounds.first, c.bounds.inTurn = 0.9, 1.4
	r = report.New("x", "x", "x")
	c.fill(r)
	failed := 0
	for _, l := range r.Lines {
		if !l.Passed {
			failed++
		}
	}
	if failed != 2 {
		t.Errorf("%d lines failed, want both of the first token", failed)
	}
}
