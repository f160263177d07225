//go:build !race

package pick_test

import (
	"math/rand/v2"
	"testing"

	"metalfleet.dev/metalfleet/gateway/pick"
)

func TestBest(t *testing.T) {
	type c = pick.Candidate
	for name, tc := range map[string]struct {
		candidates []c
		seq        uint64
		want       int // -1 for none
	}{
		"no candidates":                          {want: -1},
		"all excluded":                           {candidates: []c{{Excluded: true}, {Excluded: true}}, want: -1},
		"fewest in flight":                       {candidates: []c{{InFlight: 2}, {InFlight: 1, Total: 9}, {InFlight: 3}}, want: 1},
		"then fewest in total":                   {candidates: []c{{InFlight: 1, Total: 5}, {InFlight: 1, Total: 4}}, want: 1},
		"ties rotate, first":                     {candidates: []c{{}, {InFlight: 1}, {}}, seq: 4, want: 0},
		"ties rotate, second":                    {candidates: []c{{}, {InFlight: 1}, {}}, seq: 5, want: 2},
		"not the excluded one":                   {candidates: []c{{Excluded: true}, {InFlight: 7}}, want: 1},
		"not the full one":                       {candidates: []c{{InFlight: 2, Max: 2}, {InFlight: 7, Max: 8}}, want: 1},
		"all full":                               {candidates: []c{{InFlight: 2, Max: 2}, {InFlight: 9, Max: 8}}, want: -1},
		"a loaded one before a cold one":         {candidates: []c{{Cold: true}, {InFlight: 3, Total: 9}}, want: 1},
		"a cold one once the loaded one is busy": {candidates: []c{{Cold: true}, {InFlight: 4, Total: 9}}, want: 0},
		"a cold one before a suspect":            {candidates: []c{{Cold: true}, {Suspect: true}}, want: 0},
		"a busy one before a retiring one":       {candidates: []c{{Retiring: true}, {InFlight: 7}}, want: 1},
		"a retiring one before a suspect":        {candidates: []c{{Suspect: true}, {Retiring: true, InFlight: 3}}, want: 1},
		"a retiring one if others are full":      {candidates: []c{{Retiring: true}, {InFlight: 8, Max: 8}}, want: 0},
		"a busy one before a suspect":            {candidates: []c{{Suspect: true}, {InFlight: 7}}, want: 1},
		"the only ones are suspects":             {candidates: []c{{Suspect: true, InFlight: 1}, {Suspect: true}}, want: 1},
		"a suspect before the excluded":          {candidates: []c{{Excluded: true}, {Suspect: true}}, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := pick.Best(tc.candidates, tc.seq)
			if ok != (tc.want >= 0) || ok && got != tc.want {
				t.Errorf("Best = %d, %v; want %d", got, ok, tc.want)
			}
		})
	}
}

func TestEqualsShareEqually(t *testing.T) {
	candidates := make([]pick.Candidate, 5)
	rng := rand.New(rand.NewPCG(1, 2))
	for seq := range uint64(1000) {
		i, _ := pick.Best(candidates, seq)
		candidates[i].InFlight++
		candidates[i].Total++
		j := rng.IntN(len(candidates)) // a request ends
		candidates[j].InFlight = max(0, candidates[j].InFlight-1)
	}
	for i, c := range candidates {
		if c.Total < 150 || c.Total > 250 {
			t.Errorf("candidate %d got %d of 1000", i, c.Total)
		}
	}
}

func TestRoundRobinCyclesThroughUsableCandidates(t *testing.T) {
	type c = pick.Candidate
	for name, tc := range map[string]struct {
		candidates []c
		seq        uint64
		want       int // -1 for none
	}{
		"no candidates":                 {seq: 3, want: -1},
		"next in order":                 {candidates: []c{{}, {InFlight: 9}, {}}, seq: 4, want: 1},
		"a excluded one is skipped":     {candidates: []c{{}, {Excluded: true}, {}}, seq: 4, want: 2},
		"a full one is skipped":         {candidates: []c{{}, {InFlight: 2, Max: 2}, {}}, seq: 4, want: 2},
		"a suspect is skipped":          {candidates: []c{{}, {Suspect: true}, {}}, seq: 4, want: 2},
		"a suspect if no other is left": {candidates: []c{{Excluded: true}, {Suspect: true}}, want: 1},
		"the first of two suspects":     {candidates: []c{{Suspect: true}, {Suspect: true}}, seq: 1, want: 1},
		"all excluded":                  {candidates: []c{{Excluded: true}, {Excluded: true}}, want: -1},
		"a prefix changes nothing":      {candidates: []c{{ID: 1}, {ID: 2}, {ID: 3}}, want: 0},
		"a large sequence number":       {candidates: []c{{}, {}, {}}, seq: 1<<63 + 1, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := pick.RoundRobin(tc.candidates, prefix(1, 1), tc.seq)
			if ok != (tc.want >= 0) || ok && got != tc.want {
				t.Errorf("RoundRobin = %d, %v; want %d", got, ok, tc.want)
			}
		})
	}
}

func TestPoliciesAreFoundByName(t *testing.T) {
	c := replicas(8, 8)
	p := prefix(1, 1)
	home, _ := pick.Choose(c, p, 0)
	elsewhere := uint64(home + 1)
	for name, want := range map[string]int{"prefix": home, "least-load": int(elsewhere % 8), "round-robin": int(elsewhere % 8)} {
		choose, err := pick.PolicyNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		if i, ok := choose(c, p, elsewhere); !ok || i != want {
			t.Errorf("%s chose %d, %v; want %d", name, i, ok, want)
		}
	}
	if _, err := pick.PolicyNamed("random"); err == nil {
		t.Error("an unknown policy was found")
	}
}
