package dispatch

import (
	"slices"
	"time"

	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/route"
)

// judge marks the replicas whose requests fail, and those that reject far more requests of a client than
// others do. While another one can serve the request, even if that is full, they get none: one that fails
// at once always has a free slot, and would get all that others have no slot for. Afterwards a replica is
// proving: it gets one request at a time until it answers, or until each has taken as long as an answer
// usually does. Of all replicas at most half get none. It returns which ones are proving; nil is none.
func (s *slots) judge(r *Request, endpoints []route.Endpoint, loads []*replicaLoad, candidates []pick.Candidate, now time.Time) (proving []bool) {
	if !s.outliers.Any() && !s.rejected.Any(r.Owner) {
		return nil
	}
	proving = make([]bool, len(endpoints))
	until := make([]time.Time, len(endpoints)) // the end of its ejection for this client
	others := false
	for i, of := range s.outliers.Standings(uidsOf(endpoints), now) {
		own, c := s.rejected.Standing(r.Owner, endpoints[i].Replica, now), &candidates[i]
		c.Suspect = c.Suspect || of.Ejected() || own.Ejected()
		if until[i] = own.Until; of.For(r.Owner) && of.Until.After(until[i]) {
			until[i] = of.Until
		}
		proving[i] = of.Proving && of.For(r.Owner) || own.Proving
		others = others || !c.Suspect && !proving[i] && s.canReach(endpoints[i]) && r.mayServe(endpoints[i])
	}
	if !others || s.perSequence == 0 { // without a limit none is full
		return proving
	}
	without := closed(until)
	for _, i := range without {
		candidates[i].Excluded = true
	}
	left := len(endpoints)/2 - len(without)
	for i, l := range loads {
		if left > 0 && proving[i] && (now.Before(l.probed) || l.rejected.of[r.Owner] > 0) {
			candidates[i].Excluded = true
			left--
		}
	}
	return proving
}

// closed returns the ejected replicas that get no request: at most half of all, those whose ejection ends last.
func closed(until []time.Time) (out []int) {
	for i, t := range until {
		if !t.IsZero() {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return until[b].Compare(until[a]) })
	return out[:min(len(out), len(until)/2)]
}

// lingering counts requests that have ended as if they were in flight, by tenant.
type lingering struct {
	n  int
	of map[string]int
}

// add counts a request, unless its tenant has more of them than requests in flight, or all are at most.
func (l *lingering) add(tenant string, weight, inFlight, most int) bool {
	if l.n >= most || l.of[tenant] > inFlight {
		return false
	}
	if l.of == nil {
		l.of = map[string]int{}
	}
	l.n += weight
	count(l.of, tenant, weight)
	return true
}

// end ends the count of a request.
func (l *lingering) end(tenant string, weight int) {
	l.n -= weight
	count(l.of, tenant, -weight)
}
