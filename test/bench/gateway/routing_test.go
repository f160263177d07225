package gateway

import (
	"reflect"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
	"metalfleet.dev/metalfleet/test/bench/traffic"
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
	messages := func(salt uint64, x turn) []traffic.Message {
		s.salt = salt
		return s.request(x).Messages
	}
	a, b := messages(1, turn{group: 1, conversation: 2}), messages(1, turn{group: 1, conversation: 2, number: 1})
	if len(a) != 2 || len(b) != 4 || !slices.Equal(a, b[:2]) {
		t.Error("the second turn does not continue the first")
	}
	if messages(2, turn{group: 1, conversation: 2})[0] == a[0] || messages(1, turn{group: 1, conversation: 3})[1] == a[1] {
		t.Error("another run or conversation has the same text")
	}
}

func TestBoundsOfRouting(t *testing.T) {
	good := boundtest.Values{}
	for _, p := range policies {
		good[p.name+"/hits"], good[p.name+"/p50"], good[p.name+"/p99"] = []float64{0.4}, []float64{1}, []float64{15}
	}
	good["prefix affinity/hits"] = []float64{0.48}
	boundtest.Check(t, good, boundtest.Figures(routingFigures()...), map[string]boundtest.Values{
		"hit rate, ours / least load":          {"least load/hits": {0.41}},
		"first token, p99, ours / round robin": {"round robin/p99": {14}},
	})
}
