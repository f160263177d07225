package gateway

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
)

func TestATraceFollowsItsSeed(t *testing.T) {
	s := chats(600)
	s.rate = 3
	a := s.trace(3)
	if !reflect.DeepEqual(a, s.trace(3)) || reflect.DeepEqual(a, s.trace(4)) {
		t.Fatal("traces do not follow the seed")
	}
	if !slices.IsSortedFunc(a, func(x, y turn) int { return int(x.at - y.at) }) || len(a) < s.requests {
		t.Fatalf("%d requests, want %d in the order of their times", len(a), s.requests)
	}
	last, groups := map[int]turn{}, map[int]int{}
	for _, x := range a {
		before, known := last[x.conversation]
		if known && (x.group != before.group || x.number != before.number+1) || !known && x.number != 0 {
			t.Fatalf("%+v after %+v", x, before)
		}
		last[x.conversation] = x
		groups[x.group]++
	}
	if groups[0] < 2*groups[s.groups-1] {
		t.Errorf("the first application is asked %d times, the last %d", groups[0], groups[s.groups-1])
	}
}

func TestNoTwoRunsSendTheSameText(t *testing.T) {
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
	i := slices.Index([]byte(a), ']') - 1
	if a[:i] != b[:i] || len(b) <= len(a) {
		t.Error("the second turn does not continue the first")
	}
	if body(2, first) == a || body(1, turn{group: 1, conversation: 3}) == a {
		t.Error("another run or conversation has the same text")
	}
}

func TestARunWithAFailedAnswerIsNotMeasured(t *testing.T) {
	good := answer{first: time.Second, prompt: 10, cached: 5, replica: 1}
	if v, err := sum([]answer{good, good}); err != nil || v["hits"] != 0.5 || v["imbalance"] != replicas || v["p99"] != 1000 {
		t.Errorf("%+v, %v", v, err)
	}
	for name, answers := range map[string][]answer{"one failed": {good, {err: errors.New("cut")}}, "none": nil} {
		if _, err := sum(answers); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if n, err := replicaOf(macOf(7)); n != 7 || err != nil {
		t.Error(n, err)
	}
	if _, err := replicaOf("mac-8"); err == nil {
		t.Error("an unknown Mac was accepted")
	}
}

func TestBoundsOfRouting(t *testing.T) {
	good := boundtest.Values{}
	for _, p := range policies {
		good[p.name+"/hits"], good[p.name+"/p50"], good[p.name+"/p99"], good[p.name+"/imbalance"] = []float64{0.4}, []float64{1}, []float64{15}, []float64{1}
	}
	good["prefix affinity/hits"] = []float64{0.48}
	boundtest.Check(t, good, boundtest.Figures(routingFigures()...), map[string]boundtest.Values{
		"hit rate, ours / least load":          {"least load/hits": {0.41}},
		"first token, p99, ours / round robin": {"round robin/p99": {14}},
	})
}
