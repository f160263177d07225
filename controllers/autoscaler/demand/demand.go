// Package demand sums up the reports of gateways: how many requests run and wait for each
// deployment, and which Macs they reach.
//
// It owns the sum and whether it is complete. Silence is never treated as zero: a gateway
// that has stopped reporting, one that has just started, and an operator that has just
// started make the sum incomplete, and nothing may be removed because of it. The clock is
// passed in.
//
// Start reading at Ledger.Take and Ledger.Of.
package demand

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/demand"
)

const (
	// fresh is how long a report is valid: a gateway reports every second.
	fresh = 4 * time.Second
	// warm is how long a gateway, or the operator, must have run before a sum can be
	// complete: clients of a gateway that stopped reconnect to another one, and gateways
	// have to find a restarted operator.
	warm = 15 * time.Second
	// forget is how long a silent gateway makes sums incomplete. One that stops reports
	// that.
	forget = 2 * time.Minute
	// pruneEvery is how often deployments that were not asked for are dropped.
	pruneEvery = time.Minute
)

// Figures are the sum for one deployment.
type Figures struct {
	// Running and Waiting requests, and the longest current wait.
	Running, Waiting int
	Oldest           time.Duration
	// Asked is when a request last ran or arrived.
	Asked time.Time
}

// Bounds of what is kept: a gateway that was taken over reports under as many ids as it likes.
const (
	maxGateways = 64
	maxBytes    = 128 << 20 // in memory, estimated: a report has up to about 15 MiB
)

// gateway is the last report of one gateway.
type gateway struct {
	from     string // its address
	bytes    int
	at, born time.Time
	models   map[types.NamespacedName]demand.Model
	replicas map[string]int
	// reached is "" for a Mac that the gateway reached, and the error for one that it did
	// not, by the UID of the MacNode.
	reached map[types.UID]string
}

// Ledger collects the reports of gateways. It is safe for concurrent use.
type Ledger struct {
	// Exists reports whether there is a deployment, so that only those are remembered; nil: all are.
	Exists func(types.NamespacedName) bool

	now func() time.Time

	mu       sync.Mutex // guards the fields after it
	started  time.Time
	gateways map[string]*gateway
	bytes    int // of all gateways
	asked    map[types.NamespacedName]time.Time
	pruned   time.Time // when asked was
}

// NewLedger returns an empty ledger that does not listen yet.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, gateways: map[string]*gateway{}, asked: map[types.NamespacedName]time.Time{}}
}

// Listen records that reports are accepted from now on.
func (l *Ledger) Listen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = l.now()
}

// Take stores a report from an address. It returns the deployments with waiting requests that had
// none before at any gateway: they are to be evaluated now.
func (l *Ledger) Take(from string, r *demand.Report) (urgent []types.NamespacedName, err error) {
	r.Cut() // a gateway does, if it is not an old one
	if err := r.Check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.prune(now)
	if r.Last {
		l.drop(r.Gateway)
		return nil, nil
	}
	before, met := l.gateways[r.Gateway]
	if !met {
		before = &gateway{born: now.Add(-time.Duration(r.UpMillis) * time.Millisecond)}
	}
	// The total count of a gateway that this operator has not met before is no new demand.
	counts := met || now.Sub(before.born) < warm
	g := &gateway{from: from, bytes: bytesOf(r), at: now, born: before.born, replicas: r.Replicas, models: make(map[types.NamespacedName]demand.Model, len(r.Models))}
	g.reached = reachedOf(r)
	for _, m := range r.Models {
		key := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
		g.models[key] = m
		was := before.models[key]
		if m.Running+m.Waiting > 0 || counts && m.Begun != was.Begun && m.Begun > 0 {
			l.ask(key, now)
		}
		if m.Waiting > 0 && was.Waiting == 0 {
			urgent = append(urgent, key)
		}
	}
	l.drop(r.Gateway)
	l.gateways[r.Gateway] = g
	l.bytes += g.bytes
	l.makeRoom()
	return urgent, nil
}

// ask notes that a deployment was asked for.
func (l *Ledger) ask(key types.NamespacedName, now time.Time) {
	if _, known := l.asked[key]; known || l.Exists == nil || l.Exists(key) {
		l.asked[key] = now
	}
}

// drop removes a gateway, if there is one.
func (l *Ledger) drop(id string) {
	if g := l.gateways[id]; g != nil {
		l.bytes -= g.bytes
		delete(l.gateways, id)
	}
}

// makeRoom drops gateways beyond the bounds: of the address that has the most of what is used up,
// those that reported longest ago. Gateways have addresses of their own, so that invented ones
// replace no other.
func (l *Ledger) makeRoom() {
	for len(l.gateways) > maxGateways || l.bytes > maxBytes && len(l.gateways) > 1 {
		of, heaviest := map[string]int{}, ""
		for _, g := range l.gateways {
			if l.bytes > maxBytes {
				of[g.from] += g.bytes
			} else {
				of[g.from]++
			}
		}
		for from, n := range of {
			if n > of[heaviest] || n == of[heaviest] && from < heaviest {
				heaviest = from
			}
		}
		oldest := ""
		for id, g := range l.gateways {
			if old := l.gateways[oldest]; g.from == heaviest && (old == nil || g.at.Before(old.at)) {
				oldest = id
			}
		}
		l.drop(oldest)
	}
}

// bytesOf estimates what a report takes in memory.
func bytesOf(r *demand.Report) int {
	n := 60 * (len(r.Replicas) + len(r.Reached) + len(r.Unreached))
	for _, m := range r.Models {
		n += 150 + len(m.Namespace) + len(m.Name)
	}
	for uid := range r.Replicas {
		n += len(uid)
	}
	for _, uid := range r.Reached {
		n += len(uid)
	}
	for uid, text := range r.Unreached {
		n += len(uid) + len(text)
	}
	return n
}

// prune drops gateways that have been silent for long, and from time to time deployments that were
// not asked for. There may be thousands of these, and a sum is made for each of them each second.
func (l *Ledger) prune(now time.Time) {
	for id, g := range l.gateways {
		if now.Sub(g.at) > forget {
			l.drop(id)
		}
	}
	if now.Sub(l.pruned).Abs() < pruneEvery {
		return
	}
	l.pruned = now
	for key, at := range l.asked {
		if now.Sub(at) > time.Hour {
			delete(l.asked, key)
		}
	}
}

// Of sums up the latest reports on a deployment.
func (l *Ledger) Of(key types.NamespacedName) Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, now := Figures{Asked: l.asked[key]}, l.now()
	for _, g := range l.gateways {
		if now.Sub(g.at) > fresh {
			continue
		}
		m := g.models[key]
		f.Running += m.Running
		f.Waiting += m.Waiting
		f.Oldest = max(f.Oldest, time.Duration(m.OldestMillis)*time.Millisecond)
	}
	return f
}

// Reach returns what the gateways that report now found of a Mac.
func (l *Ledger) Reach(mac types.UID) (out demand.Reach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, g := range l.gateways {
		text, known := g.reached[mac]
		if !known || now.Sub(g.at) > fresh {
			continue
		}
		out.Known = true
		out.Gateways++
		if text == "" {
			out.By++
			continue
		}
		out.Err = max(out.Err, text) // the same one for any order of the gateways
	}
	return out
}

func reachedOf(r *demand.Report) map[types.UID]string {
	out := make(map[types.UID]string, len(r.Reached)+len(r.Unreached))
	for uid, text := range r.Unreached {
		out[types.UID(uid)] = cmp.Or(text, "no connection")
	}
	for _, uid := range r.Reached {
		out[types.UID(uid)] = ""
	}
	return out
}

// Whole reports whether the sums include every gateway, and if not, why. serve is the
// number of gateways in the Service, 0 if unknown: it reveals gateways that have never
// reported.
func (l *Ledger) Whole(serve int) (whole bool, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.prune(now)
	silent, young, reporting := 0, 0, 0
	for _, g := range l.gateways {
		switch {
		case now.Sub(g.at) > fresh:
			silent++
			continue
		case now.Sub(g.born) < warm:
			young++
		}
		reporting++
	}
	switch {
	case l.started.IsZero():
		return false, "this operator receives no reports from gateways; start it with --demand-bind-address"
	case len(l.gateways) == 0:
		return false, "no gateway reports its demand; check that gateways run with --operator and can reach that address"
	case silent > 0:
		return false, fmt.Sprintf("%d of %d gateways have stopped reporting", silent, len(l.gateways))
	case reporting < serve:
		return false, fmt.Sprintf("%d gateways accept requests, but reports come from only %d of them; check that all of them can reach the operator", serve, reporting)
	case now.Sub(l.started) < warm:
		return false, "the operator has just started and does not know all gateways yet"
	case young > 0:
		return false, fmt.Sprintf("%d of %d gateways have just started", young, len(l.gateways))
	}
	return true, ""
}

// Busy reports whether a gateway has requests at a replica; the last report of a silent
// gateway counts too.
func (l *Ledger) Busy(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.gateways {
		if g.replicas[uid] > 0 {
			return true
		}
	}
	return false
}

// Gateways returns the number of gateways that reported recently.
func (l *Ledger) Gateways() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.gateways)
}
