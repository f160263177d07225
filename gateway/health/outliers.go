package health

import (
	"slices"
	"time"
)

const (
	// inARow consecutive failures eject a replica, and so does a share of failedShare among
	// its last judged requests.
	inARow      = 5
	judged      = 20
	failedShare = 0.5
	// ejectMin is the length of the first ejection; each further one is that much longer,
	// up to ejectMax. After forgetAfter without an ejection the count starts again.
	ejectMin    = 10 * time.Second
	ejectMax    = 5 * time.Minute
	forgetAfter = 10 * time.Minute
)

// Outliers tracks the replicas of all models whose requests fail. The zero value is ready
// for use. It is not safe for concurrent use.
type Outliers struct{ replicas map[string]*record }

// record is the recent history of one replica.
type record struct {
	row    int
	last   [judged]bool // ring; true is a failure
	n      int          // requests so far
	times  int
	until  time.Time
	ended  time.Time // time of the last request
	failed int       // failures in last
}

// Ended records the outcome of a request. Refusals without effect and client errors are not
// failures. It returns true if this outcome ejects the replica.
func (o *Outliers) Ended(replica string, failed bool, now time.Time) (ejected bool) {
	r := o.replicas[replica]
	if r == nil {
		if !failed {
			return false // most replicas have no history
		}
		if o.replicas == nil {
			o.replicas = map[string]*record{}
		}
		r = &record{}
		o.replicas[replica] = r
	}
	r.note(failed)
	if good := now.Sub(r.until) > forgetAfter && r.failed == 0; good {
		delete(o.replicas, replica)
		return false
	}
	r.ended = now
	if !now.Before(r.until) && (r.row >= inARow || r.n >= judged && float64(r.failed) >= failedShare*judged) {
		r.times++
		r.until = now.Add(min(time.Duration(r.times)*ejectMin, ejectMax))
		r.row, r.n, r.failed, r.last = 0, 0, 0, [judged]bool{} // after the ejection it starts with a clean history
		return true
	}
	return false
}

func (r *record) note(failed bool) {
	slot := r.n % judged
	if r.last[slot] {
		r.failed--
	}
	r.last[slot] = failed
	r.n++
	if r.row++; !failed {
		r.row = 0
		return
	}
	r.failed++
}

// Any reports whether any replica has a history.
func (o *Outliers) Any() bool { return len(o.replicas) > 0 }

// Ejected reports for each of a model's replicas whether it is ejected now: at most half of
// them, those whose ejection ends last.
func (o *Outliers) Ejected(replicas []string, now time.Time) []bool {
	out := make([]bool, len(replicas))
	var bad []int
	for i, uid := range replicas {
		if r := o.replicas[uid]; r != nil && now.Before(r.until) {
			bad = append(bad, i)
		}
	}
	slices.SortStableFunc(bad, func(a, b int) int {
		return o.replicas[replicas[b]].until.Compare(o.replicas[replicas[a]].until)
	})
	for _, i := range bad[:min(len(bad), len(replicas)/2)] {
		out[i] = true
	}
	return out
}

// Prune drops the history of replicas that had no request for long.
func (o *Outliers) Prune(now time.Time) {
	for uid, r := range o.replicas {
		if now.Sub(r.ended) > forgetAfter && now.Sub(r.until) > forgetAfter {
			delete(o.replicas, uid)
		}
	}
}
