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
	// OutcomeUnknown says nothing about the replica but how long the request took.
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
	// as an answer usually takes. That of a refused one counts for at most lingerRefused: its
	// replica may serve again soon.
	lingerMin     = 500 * time.Millisecond
	lingerMax     = 10 * time.Second
	lingerRefused = backoffMax
	// maxLinger bounds how many rejected and failed ones count at a replica.
	maxLinger = 64
	// answerWeight is the weight of earlier answers in the average of a replica.
	answerWeight = 8
	// fastest is how many times faster than others a replica may be: one whose requests take less
	// than that on average may send no answers at all, and attract the more requests.
	fastest = 4
	// noise is by how much the times of honest answers differ on a busy machine, however short they are.
	noise = 10 * time.Millisecond
	// maxBrief bounds how many of those count at a replica.
	maxBrief = 1024
)

// ended counts the time of a request that was not rejected.
func (l *replicaLoad) ended(took time.Duration, how Outcome) {
	if l.took = averageOf(l.took, took); how == OutcomeAnswered {
		l.answer = averageOf(l.answer, took)
	}
}

// averageOf returns the average after one more; 0 is none yet.
func averageOf(average, took time.Duration) time.Duration {
	if average == 0 {
		return took
	}
	return average + (took-average)/answerWeight
}

// usualAnswer returns how long an answer takes at half of the replicas of a model; 0 if unknown.
// It is no average over all: one replica could change that at will.
func (s *slots) usualAnswer(endpoints []route.Endpoint) time.Duration {
	var all []time.Duration
	for _, e := range endpoints {
		if l := s.replicas[e.Replica]; l != nil && l.answer > 0 {
			all = append(all, l.answer)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// lingerFor returns how long a request counts that was rejected or refused, or failed after some time,
// where an answer usually takes that long.
func lingerFor(how Outcome, usual, took time.Duration) time.Duration {
	longest := lingerMax
	if how == OutcomeRefused {
		longest = lingerRefused
	}
	count := longest
	if usual > 0 {
		count = min(max(usual, lingerMin), longest)
	}
	if how == OutcomeFailed {
		count -= took
	}
	return count
}

// usualRejections returns how many rejected requests count at half of the replicas that get
// requests: a client whose requests are wrong causes as many at all of them, and these make none
// busier than another.
func (s *slots) usualRejections(endpoints []route.Endpoint, loads []*replicaLoad) int {
	if !slices.ContainsFunc(loads, func(l *replicaLoad) bool { return l.rejected.n > 0 }) {
		return 0
	}
	var counts []int
	for i, e := range endpoints {
		if !e.Retiring && s.canReach(e) {
			counts = append(counts, loads[i].rejected.n)
		}
	}
	if len(counts) == 0 {
		return 0
	}
	slices.Sort(counts)
	return counts[(len(counts)-1)/2]
}

// more returns how many more rejected requests count than usual.
func (l *replicaLoad) more(usual int) int { return max(0, l.rejected.n-usual) }

// ended frees the slot of a request, and records its outcome at a replica before another one gets the
// slot. eject is true if others are preferred from now on: by all clients, or by this one.
func (q *queue) ended(l *Lease, r *Request, how Outcome) (eject bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.free()
	now := q.now()
	defer q.serve(l.Model, now)
	if how == OutcomeAnswered || how == OutcomeFailed {
		eject = q.slots.outliers.Ended(l.Replica, r.Owner, how == OutcomeFailed, now)
	}
	if r.OnlyMac == "" { // else the client chose the Mac
		eject = q.compare(l, r, how, now) || eject
	}
	return eject
}

// compare records the outcome of a request that any replica could have got. The lock is held.
func (q *queue) compare(l *Lease, r *Request, how Outcome, now time.Time) (eject bool) {
	model, at := q.slots.models[l.Model.Key], q.slots.replicas[l.Replica]
	if model == nil || at == nil {
		return false
	}
	endpoints := l.Model.Endpoints()
	bad := how == OutcomeRejected || how == OutcomeRefused || how == OutcomeFailed
	if bad || how == OutcomeAnswered && q.slots.rejected.Any(r.Owner) {
		eject = q.slots.rejected.Ended(r.Owner, l.Replica, bad, uidsOf(endpoints), now)
	}
	took, usual, inFlight := now.Sub(l.began), q.slots.usualAnswer(endpoints), model.tenants[r.Owner]
	if bad {
		q.linger(&at.rejected, maxLinger, l.Model, r, inFlight, lingerFor(how, usual, took))
		return eject
	}
	at.ended(took, how)
	usual = q.slots.usualAnswer(endpoints)
	if least := usual / fastest; least >= noise && at.took < least && took < least {
		q.linger(&at.brief, maxBrief, l.Model, r, inFlight, least-took)
	}
	return eject
}

// linger counts a request as in flight for a while, however it ended: a Mac chooses how its responses
// end. Of one tenant count as many as it has in flight, and one: a tenant whose requests are wrong, or that
// asks for short answers, makes no replica busier than long ones would. The lock is held.
func (q *queue) linger(at *lingering, most int, m *route.Model, r *Request, inFlight int, forTime time.Duration) {
	weight := max(1, r.Sequences)
	if forTime <= 0 || !at.add(r.Owner, weight, inFlight, most) {
		return
	}
	time.AfterFunc(forTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		at.end(r.Owner, weight)
		q.serve(m, q.now())
	})
}
