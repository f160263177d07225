// Package pick chooses one of several replicas that could answer a request.
//
// It owns the choice and nothing else: it is pure, and knows no network, no
// clock and no other gateway. It refuses candidates that are excluded or full,
// and takes suspects only when there is no other, and before them those that
// retire.
//
// A request whose prompt begins as others' did goes where theirs went, as long
// as that replica is not much busier than the rest; the others go to the least
// busy, and so does a beginning that nobody had lately, unless its home is idle. Where a prompt belongs is computed from its hash and the names of the
// replicas alone (rendezvous hashing with bounded loads), so that gateways which
// never speak with one another agree, and a replica that comes or goes moves
// only what was or will be its own.
//
// Start reading at Choose; prefix.go has where a prompt belongs.
package pick

import (
	"cmp"
	"fmt"
	"slices"
)

// Candidate is one replica.
type Candidate struct {
	// ID tells replicas apart, for all gateways alike: Hash of the UID. It is
	// needed where prompts have a prefix.
	ID uint64
	// InFlight requests that this gateway sent there and that have not ended.
	InFlight int
	// Total requests that this gateway ever sent there.
	Total uint64
	// Excluded: it failed this very request.
	Excluded bool
	// Most requests that this gateway sends there at once; 0 is any number.
	Most int
	// Slots is how many requests run there at once; 0 where nobody said.
	Slots int
	// Suspect: its Mac failed a moment ago.
	Suspect bool
	// Retiring: it goes once it is idle, so others are preferred.
	Retiring bool
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

// full says that it holds as many as it may.
func (c Candidate) full() bool { return c.Most > 0 && c.InFlight >= c.Most }

// Policy is a way to choose: the index of a candidate for a request, or false
// when all are excluded or full. Choose is what a gateway uses; LeastLoad and
// RoundRobin are there to be compared with, and for who wants no affinity.
type Policy func(candidates []Candidate, p Prefix, turn uint64) (int, bool)

// PolicyNamed finds a policy by its name.
func PolicyNamed(name string) (Policy, error) {
	switch name {
	case "prefix":
		return Choose, nil
	case "least-load":
		return LeastLoad, nil
	case "round-robin":
		return RoundRobin, nil
	}
	return nil, fmt.Errorf("unknown policy %q: want prefix, least-load or round-robin", name)
}

// LeastLoad is Best, whatever the prompt begins with.
func LeastLoad(candidates []Candidate, _ Prefix, turn uint64) (int, bool) {
	return Best(candidates, turn)
}

// RoundRobin takes the candidates in turn. It passes over those that are
// excluded, full or suspects, and takes a suspect only when there is no other.
func RoundRobin(candidates []Candidate, _ Prefix, turn uint64) (int, bool) {
	suspect := -1
	for n := range candidates {
		i := int((turn + uint64(n)) % uint64(len(candidates)))
		switch c := candidates[i]; {
		case c.Excluded || c.full():
		case !c.Suspect:
			return i, true
		case suspect < 0:
			suspect = i
		}
	}
	return max(suspect, 0), suspect >= 0
}

// Choose is the index of the candidate for a request: the one where its prefix
// belongs, or the best one. It is false when all are excluded or full.
func Choose(candidates []Candidate, p Prefix, turn uint64) (int, bool) {
	if p.Shared != 0 && len(candidates) > 1 {
		if i, ok := home(candidates, p); ok {
			return i, true
		}
	}
	return Best(candidates, turn)
}

// Best is the index of the candidate with the fewest requests in flight (a
// model that would have to be loaded first counts as a few of them), then
// the fewest in total; among equals, turn decides. It is false when all are
// excluded or full.
func Best(candidates []Candidate, turn uint64) (int, bool) {
	var ties []int
	for i, c := range candidates {
		if c.Excluded || c.full() {
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
	if a.Retiring != b.Retiring {
		return b.Retiring
	}
	if a.busy() != b.busy() {
		return a.busy() < b.busy()
	}
	return a.Total < b.Total
}

const (
	// loadFactor is how much busier than the others a replica may be for the sake
	// of what it remembers.
	loadFactor = 1.5
	// alwaysFew is how many requests a replica that runs several at once may have
	// whatever the others have: at little load an average says nothing.
	alwaysFew = 2
	// spread is how many times the room that requests with one beginning take, their
	// homes have together: where homes are full, conversations find theirs taken.
	spread = 3
)

// bound is how many requests a candidate may have, this one among them, given
// how many there are in all and on how many replicas.
func (c Candidate) bound(total, replicas int) int {
	return max(min(alwaysFew, max(c.Slots, 1)), int(loadFactor*float64(total+1)/float64(replicas)))
}

// home is the candidate where a prefix belongs, of those that are not too busy.
func home(candidates []Candidate, p Prefix) (int, bool) {
	total, usable := 0, make([]int, 0, len(candidates))
	for i, c := range candidates {
		if c.Suspect || c.Retiring {
			continue
		}
		total += c.InFlight
		usable = append(usable, i)
	}
	replicas := len(usable)
	if replicas == 0 {
		return 0, false
	}
	slices.SortFunc(usable, func(a, b int) int { return closer(candidates[a].ID, candidates[b].ID, p.Shared) })
	// All that share a beginning have as many homes as they need, and within them
	// each conversation one of its own.
	homes := usable[:width(candidates, usable, p, total)]
	if !p.Known { // nobody is known to remember it: it may begin its home, and waits nowhere for it
		c := candidates[homes[0]]
		return homes[0], !c.Excluded && !c.full() && c.busy() == 0
	}
	slices.SortFunc(homes, func(a, b int) int { return closer(candidates[a].ID, candidates[b].ID, p.own()) })
	for _, i := range usable { // beyond its homes, in the order in which they would be added
		if c := candidates[i]; !c.Excluded && !c.full() && c.busy() < c.bound(total, replicas) {
			return i, true
		}
	}
	return 0, false
}

// width is how many replicas all requests with one beginning need.
func width(candidates []Candidate, usable []int, p Prefix, total int) int {
	room := 0
	for n, i := range usable {
		if room += candidates[i].bound(total, len(usable)); room > spread*p.InFlight {
			return n + 1
		}
	}
	return len(usable)
}

// closer orders two replicas by how near they are to a hash.
func closer(a, b, to uint64) int {
	return cmp.Or(cmp.Compare(mix(b^to), mix(a^to)), cmp.Compare(a, b))
}
