package dispatch

import (
	"slices"
	"time"

	"metalfleet.dev/metalfleet/gateway/route"
)

// Outcome is how a request ended at a replica.
type Outcome int

// Outcomes of requests.
const (
	// OutcomeUnknown says nothing about the replica.
	OutcomeUnknown Outcome = iota
	// OutcomeAnswered is a response without an error.
	OutcomeAnswered
	// OutcomeRejected is an error that the replica blames on the request.
	OutcomeRejected
	// OutcomeRefused is a refusal for now, without side effects.
	OutcomeRefused
	// OutcomeFailed is a failure of the replica.
	OutcomeFailed
)

const (
	// lingerMin and lingerMax bound how long a rejected request counts as in flight: as long
	// as an answer takes on average. That of a refused one counts for at most lingerRefused: its
	// replica may serve again soon.
	lingerMin     = 500 * time.Millisecond
	lingerMax     = 10 * time.Second
	lingerRefused = backoffMax
	// maxLinger bounds how many of them count at a replica.
	maxLinger = 64
	// answerWeight is the weight of earlier answers in that average.
	answerWeight = 8
)

// answered counts the time of an answer.
func (l *modelLoad) answered(took time.Duration) {
	if l.answer == 0 {
		l.answer = took
	}
	l.answer += (took - l.answer) / answerWeight
}

// linger returns how long a rejected or refused request counts.
func (l *modelLoad) linger(how Outcome) time.Duration {
	longest := lingerMax
	if how == OutcomeRefused {
		longest = lingerRefused
	}
	if l.answer == 0 {
		return longest
	}
	return min(max(l.answer, lingerMin), longest)
}

// usualRejections returns how many rejected requests count at half of the replicas that get
// requests: a client whose requests are wrong causes as many at all of them, and these make none
// busier than another.
func (s *slots) usualRejections(endpoints []route.Endpoint, loads []*replicaLoad) int {
	if !slices.ContainsFunc(loads, func(l *replicaLoad) bool { return l.rejected > 0 }) {
		return 0
	}
	var counts []int
	for i, e := range endpoints {
		if !e.Retiring && s.canReach(e) {
			counts = append(counts, loads[i].rejected)
		}
	}
	if len(counts) == 0 {
		return 0
	}
	slices.Sort(counts)
	return counts[(len(counts)-1)/2]
}

// more returns how many more rejected requests count than usual.
func (l *replicaLoad) more(usual int) int { return max(0, l.rejected-usual) }

// ended records the outcome of a request at a replica. eject is true if others are preferred
// from now on: by all clients, or by this one.
func (q *queue) ended(l *Lease, r *Request, how Outcome) (eject bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now, model := q.now(), q.slots.models[l.Model.Key]
	rejected := how == OutcomeRejected || how == OutcomeRefused
	if !rejected {
		eject = q.slots.outliers.Ended(l.Replica, how == OutcomeFailed, now)
	}
	if how == OutcomeFailed || r.OnlyMac != "" || model == nil { // the client chose the Mac
		return eject
	}
	if rejected || q.slots.rejected.Any(r.Owner) {
		eject = q.slots.rejected.Ended(r.Owner, l.Replica, rejected, uidsOf(l.Model.Endpoints()), now) || eject
	}
	if rejected {
		q.linger(l.Model, q.slots.replicas[l.Replica], model.linger(how))
	} else {
		model.answered(now.Sub(l.began))
	}
	return eject
}

// linger counts a rejected request for a while. The lock is held.
func (q *queue) linger(m *route.Model, at *replicaLoad, forTime time.Duration) {
	if at == nil || at.rejected >= maxLinger {
		return
	}
	at.rejected++
	time.AfterFunc(forTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		at.rejected--
		q.serve(m, q.now())
	})
}
