package health

import (
	"cmp"
	"slices"
	"time"
)

const (
	// inARow failures eject a replica, and so do failedShare of its last judged
	// requests.
	inARow      = 5
	judged      = 20
	failedShare = 0.5
	// ejectMin is how long the first time, and each further time that much
	// longer, up to ejectMax; a good stretch of forgetAfter forgets the times.
	ejectMin    = 10 * time.Second
	ejectMax    = 5 * time.Minute
	forgetAfter = 10 * time.Minute
)

// Outliers are the replicas of all models whose requests fail. The zero value is
// ready for use, by one goroutine at a time.
type Outliers struct{ replicas map[string]*record }

// record is how the last requests of one replica ended.
type record struct {
	row    int
	last   [judged]bool // true failed; a ring
	n      int          // requests so far
	times  int
	until  time.Time
	ended  time.Time // of the last request
	failed int       // of those in last
}

// Ended notes how a request ended there. Refusals that say that nothing was done
// are no failures, and mistakes of a client are none. It says whether the
// replica is ejected by it.
func (o *Outliers) Ended(replica string, failed bool, now time.Time) (ejected bool) {
	r := o.replicas[replica]
	if r == nil {
		if !failed {
			return false // most have nothing to be remembered
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
		r.row, r.n, r.failed, r.last = 0, 0, 0, [judged]bool{} // it is judged anew when it is back
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

// Any says whether anything is remembered against any replica.
func (o *Outliers) Any() bool { return len(o.replicas) > 0 }

// Ejected says, for each of a model's replicas, whether it is left alone now: at
// most half of them, those that come back last.
func (o *Outliers) Ejected(replicas []string, now time.Time) []bool {
	out := make([]bool, len(replicas))
	var bad []int
	for i, uid := range replicas {
		if r := o.replicas[uid]; r != nil && now.Before(r.until) {
			bad = append(bad, i)
		}
	}
	slices.SortStableFunc(bad, func(a, b int) int {
		return cmp.Compare(o.replicas[replicas[b]].until.UnixNano(), o.replicas[replicas[a]].until.UnixNano())
	})
	for _, i := range bad[:min(len(bad), len(replicas)/2)] {
		out[i] = true
	}
	return out
}

// Prune forgets replicas of which nothing was heard for long.
func (o *Outliers) Prune(now time.Time) {
	for uid, r := range o.replicas {
		if now.Sub(r.ended) > forgetAfter && now.Sub(r.until) > forgetAfter {
			delete(o.replicas, uid)
		}
	}
}
