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
		turn       uint64
		want       int // -1 for none
	}{
		"nobody":                              {nil, 0, -1},
		"all excluded":                        {[]c{{Excluded: true}, {Excluded: true}}, 0, -1},
		"fewest in flight":                    {[]c{{InFlight: 2}, {InFlight: 1, Total: 9}, {InFlight: 3}}, 0, 1},
		"then fewest in total":                {[]c{{InFlight: 1, Total: 5}, {InFlight: 1, Total: 4}}, 0, 1},
		"then in turn, first":                 {[]c{{}, {InFlight: 1}, {}}, 4, 0},
		"then in turn, second":                {[]c{{}, {InFlight: 1}, {}}, 5, 2},
		"the excluded does not count":         {[]c{{Excluded: true}, {InFlight: 7}}, 0, 1},
		"the full does not count":             {[]c{{InFlight: 2, Most: 2}, {InFlight: 7, Most: 8}}, 0, 1},
		"all full":                            {[]c{{InFlight: 2, Most: 2}, {InFlight: 9, Most: 8}}, 0, -1},
		"a loaded one before one on demand":   {[]c{{Cold: true}, {InFlight: 3, Total: 9}}, 0, 1},
		"until too many wait there":           {[]c{{Cold: true}, {InFlight: 4, Total: 9}}, 0, 0},
		"one on demand before a suspect":      {[]c{{Cold: true}, {Suspect: true}}, 0, 0},
		"a retiring one waits behind a busy":  {[]c{{Retiring: true}, {InFlight: 7}}, 0, 1},
		"a retiring one before a suspect":     {[]c{{Suspect: true}, {Retiring: true, InFlight: 3}}, 0, 1},
		"a retiring one behind a full one":    {[]c{{Retiring: true}, {InFlight: 8, Most: 8}}, 0, 0},
		"a suspect waits behind a busy one":   {[]c{{Suspect: true}, {InFlight: 7}}, 0, 1},
		"a suspect is better than nobody":     {[]c{{Suspect: true, InFlight: 1}, {Suspect: true}}, 0, 1},
		"a suspect is better than the failed": {[]c{{Excluded: true}, {Suspect: true}}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := pick.Best(tc.candidates, tc.turn)
			if ok != (tc.want >= 0) || ok && got != tc.want {
				t.Errorf("Best = %d, %v; want %d", got, ok, tc.want)
			}
		})
	}
}

func TestEqualsShareEqually(t *testing.T) {
	candidates := make([]pick.Candidate, 5)
	rng := rand.New(rand.NewPCG(1, 2))
	for turn := range uint64(1000) {
		i, _ := pick.Best(candidates, turn)
		candidates[i].InFlight++
		candidates[i].Total++
		j := rng.IntN(len(candidates)) // somebody ends
		candidates[j].InFlight = max(0, candidates[j].InFlight-1)
	}
	for i, c := range candidates {
		if c.Total < 150 || c.Total > 250 {
			t.Errorf("candidate %d got %d of 1000", i, c.Total)
		}
	}
}

func TestRoundRobinTakesTurnsAmongThoseThatMay(t *testing.T) {
	type c = pick.Candidate
	for name, tc := range map[string]struct {
		candidates []c
		turn       uint64
		want       int // -1 for none
	}{
		"nobody":                     {nil, 3, -1},
		"whose turn it is":           {[]c{{}, {InFlight: 9}, {}}, 4, 1},
		"the excluded is passed":     {[]c{{}, {Excluded: true}, {}}, 4, 2},
		"the full is passed":         {[]c{{}, {InFlight: 2, Most: 2}, {}}, 4, 2},
		"a suspect is passed":        {[]c{{}, {Suspect: true}, {}}, 4, 2},
		"a suspect before nobody":    {[]c{{Excluded: true}, {Suspect: true}}, 0, 1},
		"the first of two suspects":  {[]c{{Suspect: true}, {Suspect: true}}, 1, 1},
		"all excluded":               {[]c{{Excluded: true}, {Excluded: true}}, 0, -1},
		"a prefix changes nothing":   {[]c{{ID: 1}, {ID: 2}, {ID: 3}}, 0, 0},
		"a turn beyond the last one": {[]c{{}, {}, {}}, 1<<63 + 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := pick.RoundRobin(tc.candidates, prefix(1, 1), tc.turn)
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
