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
	// maxLinger bounds how many rejected ones count at a replica.
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

// lingerFor returns how long a rejected or refused request counts where an answer usually takes
// that long.
func lingerFor(how Outcome, usual time.Duration) time.Duration {
	longest := lingerMax
	if how == OutcomeRefused {
		longest = lingerRefused
	}
	if usual == 0 {
		return longest
	}
	return min(max(usual, lingerMin), longest)
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
	if how == OutcomeAnswered || how == OutcomeFailed {
		eject = q.slots.outliers.Ended(l.Replica, how == OutcomeFailed, now)
	}
	if r.OnlyMac != "" || model == nil { // the client chose the Mac
		return eject
	}
	if rejected || how == OutcomeAnswered && q.slots.rejected.Any(r.Owner) {
		eject = q.slots.rejected.Ended(r.Owner, l.Replica, rejected, uidsOf(l.Model.Endpoints()), now) || eject
	}
	at := q.slots.replicas[l.Replica]
	if at == nil {
		return eject
	}
	if rejected {
		q.linger(l.Model, at, lingerFor(how, q.slots.usualAnswer(l.Model.Endpoints())))
		return eject
	}
	took := now.Sub(l.began)
	at.ended(took, how)
	if least := q.slots.usualAnswer(l.Model.Endpoints()) / fastest; least >= noise && at.took < least && took < least {
		q.lingerBrief(at, r, model.tenants[r.Owner], least-took)
	}
	return eject
}

// lingerBrief counts a request for a while in the choice of a replica, however it ended: a Mac chooses
// how its responses end. Of one tenant count as many as it has in flight, and one: a tenant that asks for
// short answers makes no replica busier than long ones would. The lock is held.
func (q *queue) lingerBrief(at *replicaLoad, r *Request, inFlight int, forTime time.Duration) {
	tenant, weight := r.Owner, max(1, r.Sequences)
	if at.brief >= maxBrief || at.briefOf[tenant] > inFlight {
		return
	}
	if at.briefOf == nil {
		at.briefOf = map[string]int{}
	}
	at.brief += weight
	at.briefOf[tenant] += weight
	time.AfterFunc(forTime, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		at.brief -= weight
		if at.briefOf[tenant] -= weight; at.briefOf[tenant] == 0 {
			delete(at.briefOf, tenant)
		}
	})
}

// linger counts a rejected request for a while. The lock is held.
func (q *queue) linger(m *route.Model, at *replicaLoad, forTime time.Duration) {
	if at.rejected >= maxLinger {
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
