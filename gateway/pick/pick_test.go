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
