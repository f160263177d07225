// Package pick chooses one of several replicas that could answer a request.
//
// It owns the choice and nothing else: it is pure, and knows no network and no
// clock. It refuses excluded candidates, and takes suspects only when there is
// no other.
//
// Start reading at Best.
package pick

// Candidate is one replica.
type Candidate struct {
	// InFlight requests that this gateway sent there and that have not ended.
	InFlight int
	// Total requests that this gateway ever sent there.
	Total uint64
	// Excluded: it failed this very request.
	Excluded bool
	// Suspect: its Mac failed a moment ago.
	Suspect bool
	// Cold: its model is not in memory, and the request would load it.
	Cold bool
}

// coldCost is how many requests in flight a load is worth: so many wait at a
// loaded replica before another one is loaded beside it.
const coldCost = 4

// busy is what a candidate is judged by.
func (c Candidate) busy() int {
	if c.Cold {
		return c.InFlight + coldCost
	}
	return c.InFlight
}

// Best is the index of the candidate with the fewest requests in flight (a
// model that would have to be loaded first counts as a few of them), then
// the fewest in total; among equals, turn decides. It is false when all are
// excluded.
func Best(candidates []Candidate, turn uint64) (int, bool) {
	var ties []int
	for i, c := range candidates {
		if c.Excluded {
			continue
		}
		if len(ties) > 0 {
			best := candidates[ties[0]]
			if less(best, c) {
				continue
			}
			if less(c, best) {
				ties = ties[:0]
			}
		}
		ties = append(ties, i)
	}
	if len(ties) == 0 {
		return 0, false
	}
	return ties[turn%uint64(len(ties))], true
}

func less(a, b Candidate) bool {
	if a.Suspect != b.Suspect {
		return b.Suspect
	}
	if a.busy() != b.busy() {
		return a.busy() < b.busy()
	}
	return a.Total < b.Total
}
