// Package pick chooses among the replicas that could serve a request.
//
// It is pure: it knows no network, no clock and no other gateway. It never picks candidates
// that are excluded or full. It picks retiring replicas only if there is no regular one,
// and suspects only if there is no other at all.
//
// Requests with a common prompt prefix are sent to the same replica, unless that replica is
// much busier than the average. Other requests are sent to the least busy replica, and so
// are those with a prefix that was not seen recently, unless the home of that prefix is
// idle. The home is computed from the prefix hash and the IDs of the replicas alone
// (rendezvous hashing with bounded loads): gateways agree without communicating, and adding
// or removing a replica moves only the prefixes that it will have or had.
//
// Start reading at Choose; prefix.go defines the prefix.
package pick

import (
	"cmp"
	"fmt"
	"slices"
)

// Candidate is one replica.
type Candidate struct {
	// ID distinguishes replicas and is the same at all gateways: Hash of the UID. It is
	// needed for prompts with a prefix.
	ID uint64
	// InFlight counts the running requests that this gateway sent there.
	InFlight int
	// Rejected counts requests that it rejected or failed a moment ago. They count as in flight: a replica
	// that does so at once would be the least busy, and attract more.
	Rejected int
	// Brief counts requests that ended a moment ago, at a replica whose requests are far shorter than
	// those of others. They count as in flight in a comparison, and take no slot; nor do they keep a
	// prefix from starting at its home, which no replica can choose.
	Brief int
	// Total counts all requests that this gateway ever sent there.
	Total uint64
	// Excluded: it has already failed this request, or fails most of them.
	Excluded bool
	// Max is how many requests this gateway may have in flight there; 0 means no limit.
	Max int
	// Slots is how many requests the replica runs concurrently; 0 if unknown.
	Slots int
	// Suspect: its Mac failed recently, or it fails requests.
	Suspect bool
	// Retiring: it is removed once it is idle, so others are preferred.
	Retiring bool
	// Cold: its model is not in memory, and the request would load it.
	Cold bool
}

// coldCost is how many requests in flight a load counts as: a cold replica is loaded once
// the loaded ones have that many more requests.
const coldCost = 4

// busy returns the load that candidates are compared by.
func (c Candidate) busy() int {
	busy := c.InFlight + c.Rejected + c.Brief
	if c.Cold {
		busy += coldCost
	}
	return busy
}

// full reports whether the candidate is at its limit.
func (c Candidate) full() bool { return c.Max > 0 && c.InFlight+c.Rejected >= c.Max }

// Policy chooses a replica: it returns the index of a candidate for a request, or false if
// all are excluded or full. The default is Choose; LeastLoad and RoundRobin are baselines,
// and for fleets that want no prefix affinity. Consecutive requests have consecutive seq,
// which breaks ties.
type Policy func(candidates []Candidate, p Prefix, seq uint64) (int, bool)

// PolicyNamed returns the policy with a name.
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

// LeastLoad is Best, regardless of the prefix.
func LeastLoad(candidates []Candidate, _ Prefix, seq uint64) (int, bool) {
	return Best(candidates, seq)
}

// RoundRobin cycles through the candidates. It skips those that are excluded, full or
// suspects, and takes a suspect only if there is no other.
func RoundRobin(candidates []Candidate, _ Prefix, seq uint64) (int, bool) {
	suspect := -1
	for n := range candidates {
		i := int((seq + uint64(n)) % uint64(len(candidates)))
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

// Choose returns the index of the candidate for a request: a home of its prefix, or else
// the best one. It is false if all are excluded or full.
func Choose(candidates []Candidate, p Prefix, seq uint64) (int, bool) {
	if p.Shared != 0 && len(candidates) > 1 {
		if i, ok := home(candidates, p); ok {
			return i, true
		}
	}
	return Best(candidates, seq)
}

// Best returns the index of the candidate with the fewest requests in flight (a cold model
// counts as coldCost more), then the fewest in total; seq decides between equals. It is
// false if all are excluded or full.
func Best(candidates []Candidate, seq uint64) (int, bool) {
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
	return ties[seq%uint64(len(ties))], true
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
	// loadFactor is how much busier than the average a replica may be for the sake of its
	// cached prefix.
	loadFactor = 1.5
	// minBound is the least bound of a replica that runs several requests concurrently: at
	// low load the average is not meaningful.
	minBound = 2
	// spread is how much capacity the homes of a prefix have, as a multiple of its requests
	// in flight: if homes were full, conversations would find their own taken.
	spread = 3
)

// bound returns how many requests a candidate may have, including this one, given the total
// over all replicas and their number.
func (c Candidate) bound(total, replicas int) int {
	return max(min(minBound, max(c.Slots, 1)), int(loadFactor*float64(total+1)/float64(replicas)))
}

// home returns the candidate that a prefix belongs to, among those that are not too busy.
func home(candidates []Candidate, p Prefix) (int, bool) {
	total, usable := 0, make([]int, 0, len(candidates))
	for i, c := range candidates {
		if c.Suspect || c.Retiring {
			continue
		}
		total += c.InFlight + c.Brief
		usable = append(usable, i)
	}
	replicas := len(usable)
	if replicas == 0 {
		return 0, false
	}
	slices.SortFunc(usable, func(a, b int) int { return closer(candidates[a].ID, candidates[b].ID, p.Shared) })
	// A shared prefix has as many homes as it needs, and each conversation has one of them
	// as its own.
	homes := usable[:width(candidates, usable, p, total)]
	if !p.Known { // no replica is known to have it cached: it may start at its home, but does not wait there
		c := candidates[homes[0]]
		return homes[0], !c.Excluded && !c.full() && c.busy() == c.Brief
	}
	slices.SortFunc(homes, func(a, b int) int { return closer(candidates[a].ID, candidates[b].ID, p.own()) })
	for _, i := range usable { // beyond its homes, in the order in which they would be added
		if c := candidates[i]; !c.Excluded && !c.full() && c.busy() < c.bound(total, replicas) {
			return i, true
		}
	}
	return 0, false
}

// width returns how many replicas the requests with one prefix need.
func width(candidates []Candidate, usable []int, p Prefix, total int) int {
	room := 0
	for n, i := range usable {
		if room += candidates[i].bound(total, len(usable)); room > spread*p.InFlight {
			return n + 1
		}
	}
	return len(usable)
}

// closer orders two replicas by rendezvous hash.
func closer(a, b, to uint64) int {
	return cmp.Or(cmp.Compare(mix(b^to), mix(a^to)), cmp.Compare(a, b))
}
