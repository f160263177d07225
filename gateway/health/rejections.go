package health

import "time"

const (
	// comparedFirst is how many requests of a client a replica ends before it is compared with
	// the others, and comparedAgain after it was avoided before; the others have ended at
	// least comparedOthers.
	comparedFirst  = 16
	comparedAgain  = 4
	comparedOthers = 8
	// rejectedShare is the least share of rejected requests of a replica that is avoided;
	// rejectedMore is how many times that of the others it is.
	rejectedShare = 0.5
	rejectedMore  = 3
	// comparedMost halves the counts of a replica, so that they follow what it does.
	comparedMost = 64
	// maxCounts bounds the memory for all clients.
	maxCounts = 1 << 16
)

// Rejections tracks the replicas that reject or refuse far more requests of a client than the
// others of their model do. A client can cause rejections, and choose the replica by its
// prompt: its requests are held against a replica only for itself. The zero value is ready
// for use. It is not safe for concurrent use.
type Rejections struct {
	clients map[string]map[string]*counts // by client and replica
	size    int
}

// counts are the outcomes of the requests of one client at one replica.
type counts struct {
	ended, rejected int
	used            time.Time
	times           int
	until           time.Time
}

// Ended records that a replica answered or rejected a request of a client. others are the
// replicas of the model. It returns true if the client avoids this one from now on.
func (r *Rejections) Ended(client, replica string, rejected bool, others []string, now time.Time) (avoided bool) {
	of := r.clients[client]
	if of == nil && !rejected {
		return false // most clients have no history
	}
	c := of[replica]
	if c == nil {
		if r.size >= maxCounts {
			return false
		}
		c = &counts{}
		r.add(client, replica, c)
	}
	c.used = now
	if c.ended++; rejected {
		c.rejected++
	}
	if c.ended >= comparedMost {
		c.ended, c.rejected = c.ended/2, c.rejected/2
	}
	if !rejected || now.Before(c.until) || !c.stands(r.sum(client, replica, others)) {
		return false
	}
	c.times++
	c.until = now.Add(min(time.Duration(c.times)*ejectMin, ejectMax))
	c.ended, c.rejected = 0, 0 // it starts again with a clean history
	return true
}

func (r *Rejections) add(client, replica string, c *counts) {
	if r.clients == nil {
		r.clients = map[string]map[string]*counts{}
	}
	if r.clients[client] == nil {
		r.clients[client] = map[string]*counts{}
	}
	r.clients[client][replica] = c
	r.size++
}

// sum returns the outcomes of a client's requests at all replicas but one.
func (r *Rejections) sum(client, but string, replicas []string) (sum counts) {
	of := r.clients[client]
	for _, uid := range replicas {
		if c := of[uid]; c != nil && uid != but {
			sum.ended += c.ended
			sum.rejected += c.rejected
		}
	}
	return sum
}

// stands reports whether a replica rejects far more than the others.
func (c *counts) stands(others counts) bool {
	least := comparedFirst
	if c.times > 0 {
		least = comparedAgain
	}
	if c.ended < least || others.ended < comparedOthers {
		return false
	}
	share := float64(c.rejected) / float64(c.ended)
	return share >= rejectedShare && share > rejectedMore*float64(others.rejected)/float64(others.ended)
}

// Standing returns how a replica stands for a client.
func (r *Rejections) Standing(client, replica string, now time.Time) Standing {
	switch c := r.clients[client][replica]; {
	case c == nil || c.times == 0:
	case now.Before(c.until):
		return Standing{Until: c.until, of: clients{one: client}}
	case c.ended == c.rejected && c.ended < comparedAgain:
		return Standing{Proving: true, of: clients{one: client}}
	}
	return Standing{}
}

// Any reports whether a client has a history.
func (r *Rejections) Any(client string) bool { return r.clients[client] != nil }

// Prune drops the history of clients that had no request at a replica for long.
func (r *Rejections) Prune(now time.Time) {
	for client, of := range r.clients {
		for uid, c := range of {
			if now.Sub(c.used) > forgetAfter && now.Sub(c.until) > forgetAfter {
				delete(of, uid)
				r.size--
			}
		}
		if len(of) == 0 {
			delete(r.clients, client)
		}
	}
}
