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

// Outliers tracks the replicas of all models whose requests fail. After an ejection a replica is
// proving until it answers a request; a failure ejects it again. A client can cause failures: if all are
// of one client, they keep only that one from the replica. The zero value is ready
// for use. It is not safe for concurrent use.
type Outliers struct{ replicas map[string]*record }

// record is the recent history of one replica.
type record struct {
	row     int
	last    [judged]bool // ring; true is a failure
	n       int          // requests so far
	failed  int          // failures in last
	clients clients      // of these failures
	ended   time.Time    // time of the last request

	times   int // ejections
	until   time.Time
	proving bool    // since the last one it answered none
	of      clients // of the failures that led to it
}

// clients are one client, or several.
type clients struct {
	one     string
	several bool
}

func (c *clients) add(client string) { c.several = c.several || c.one != client }

func (c *clients) has(client string) bool { return c.several || c.one == client }

// Standing is how a replica stands.
type Standing struct {
	// Until is the end of its ejection; zero if it is not ejected.
	Until time.Time
	// Proving: its last ejection has ended, and it answered no request since.
	Proving bool

	of clients
}

// Ejected reports whether other replicas are preferred.
func (s Standing) Ejected() bool { return !s.Until.IsZero() }

// For reports whether the requests of a client led to the ejection, or those of several clients.
func (s Standing) For(client string) bool { return s.of.has(client) }

// ForSome reports whether those of only one client did.
func (s Standing) ForSome() bool { return (s.Ejected() || s.Proving) && !s.of.several }

// Ended records the outcome of a client's request. Refusals without effect and client errors are not
// failures. It returns true if this outcome ejects the replica.
func (o *Outliers) Ended(replica, client string, failed bool, now time.Time) (ejected bool) {
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
	r.note(client, failed)
	r.proving = r.proving && (failed || now.Before(r.until) || !r.of.has(client))
	if good := now.Sub(r.until) > forgetAfter && r.failed == 0; good {
		delete(o.replicas, replica)
		return false
	}
	r.ended = now
	if now.Before(r.until) {
		if failed {
			r.of.add(client)
		}
		return false
	}
	again := failed && r.proving && r.of.has(client)
	if again || r.row >= inARow || r.n >= judged && float64(r.failed) >= failedShare*judged {
		if !again {
			r.of = r.clients
		}
		r.times++
		r.until, r.proving = now.Add(min(time.Duration(r.times)*ejectMin, ejectMax)), true
		r.row, r.n, r.failed, r.last = 0, 0, 0, [judged]bool{} // after the ejection it starts with a clean history
		return true
	}
	return false
}

func (r *record) note(client string, failed bool) {
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
	if r.failed++; r.failed == 1 {
		r.clients = clients{one: client}
	}
	r.clients.add(client)
}

// Any reports whether any replica has a history.
func (o *Outliers) Any() bool { return len(o.replicas) > 0 }

// Standings returns how each of a model's replicas stands: at most half of them are ejected, those whose
// ejection ends last.
func (o *Outliers) Standings(replicas []string, now time.Time) []Standing {
	out := make([]Standing, len(replicas))
	var bad []int
	for i, uid := range replicas {
		switch r := o.replicas[uid]; {
		case r == nil:
		case now.Before(r.until):
			bad = append(bad, i)
			out[i] = Standing{Until: r.until, of: r.of}
		case r.proving:
			out[i] = Standing{Proving: true, of: r.of}
		}
	}
	slices.SortStableFunc(bad, func(a, b int) int { return out[b].Until.Compare(out[a].Until) })
	for _, i := range bad[min(len(bad), len(replicas)/2):] {
		out[i] = Standing{}
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
