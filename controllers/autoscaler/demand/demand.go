// Package demand keeps what the gateways report: how many requests run and wait
// for each deployment, at all gateways together.
//
// It owns the sum and whether it is whole. It refuses to take silence for an
// answer: a gateway that was heard and is silent, one that has just started, and
// an operator that has just started make the sum a part, from which nothing may
// be taken away. Its clock is the one that it is given.
//
// Start reading at Ledger.Take and Ledger.Of.
package demand

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/demand"
)

const (
	// fresh is how long a report is good for: a gateway reports every second.
	fresh = 4 * time.Second
	// warm is how long a gateway, or the operator, must have run before a sum can be
	// whole: clients of a gateway that ended come back to another one, and gateways
	// find an operator that starts anew.
	warm = 15 * time.Second
	// forget is how long a silent gateway keeps sums from being whole. One that ends
	// says so.
	forget = 2 * time.Minute
)

// Figures are the sum for one deployment.
type Figures struct {
	// Running and Waiting requests, and the longest time that one waits.
	Running, Waiting int
	Oldest           time.Duration
	// Asked is when a request was last seen, or had come.
	Asked time.Time
}

// gateway is what one reported.
type gateway struct {
	at, born time.Time
	models   map[types.NamespacedName]demand.Model
	replicas map[string]int
}

// Ledger is safe for use by many goroutines.
type Ledger struct {
	now func() time.Time

	mu       sync.Mutex // guards what follows
	started  time.Time
	gateways map[string]*gateway
	asked    map[types.NamespacedName]time.Time
}

// NewLedger makes an empty one, of an operator that does not listen yet.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, gateways: map[string]*gateway{}, asked: map[types.NamespacedName]time.Time{}}
}

// Listen says that gateways are heard from now on.
func (l *Ledger) Listen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.started = l.now()
}

// Take takes in a report. It names the deployments for which requests wait and
// waited nowhere before: they are to be looked at now.
func (l *Ledger) Take(r *demand.Report) (urgent []types.NamespacedName, err error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.prune(now)
	if r.Last {
		delete(l.gateways, r.Gateway)
		return nil, nil
	}
	before, met := l.gateways[r.Gateway]
	if !met {
		before = &gateway{born: now.Add(-time.Duration(r.UpMillis) * time.Millisecond)}
	}
	// What an old gateway ever counted says nothing to an operator that meets it.
	counts := met || now.Sub(before.born) < warm
	g := &gateway{at: now, born: before.born, replicas: r.Replicas, models: make(map[types.NamespacedName]demand.Model, len(r.Models))}
	for _, m := range r.Models {
		key := types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
		g.models[key] = m
		was := before.models[key]
		if m.Running+m.Waiting > 0 || counts && m.Begun != was.Begun && m.Begun > 0 {
			l.asked[key] = now
		}
		if m.Waiting > 0 && was.Waiting == 0 {
			urgent = append(urgent, key)
		}
	}
	l.gateways[r.Gateway] = g
	return urgent, nil
}

// prune forgets gateways that are long silent.
func (l *Ledger) prune(now time.Time) {
	for id, g := range l.gateways {
		if now.Sub(g.at) > forget {
			delete(l.gateways, id)
		}
	}
	for key, at := range l.asked {
		if now.Sub(at) > time.Hour {
			delete(l.asked, key)
		}
	}
}

// Of sums up what the gateways that were heard just now say of a deployment.
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

// Whole says whether the sums are those of every gateway, and if not, why. serve
// is how many gateways take requests by what the cluster says, 0 where it does
// not say: one that was never heard is known by that alone.
func (l *Ledger) Whole(serve int) (whole bool, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.prune(now)
	silent, young, heard := 0, 0, 0
	for _, g := range l.gateways {
		switch {
		case now.Sub(g.at) > fresh:
			silent++
			continue
		case now.Sub(g.born) < warm:
			young++
		}
		heard++
	}
	switch {
	case l.started.IsZero():
		return false, "this operator receives no reports from gateways; start it with --demand-bind-address"
	case len(l.gateways) == 0:
		return false, "no gateway reports its demand; check that gateways run with --operator and can reach that address"
	case silent > 0:
		return false, fmt.Sprintf("%d of %d gateways have stopped reporting", silent, len(l.gateways))
	case heard < serve:
		return false, fmt.Sprintf("%d gateways accept requests, but reports come from only %d of them; check that all of them can reach the operator", serve, heard)
	case now.Sub(l.started) < warm:
		return false, "the operator has just started and does not know all gateways yet"
	case young > 0:
		return false, fmt.Sprintf("%d of %d gateways have just started", young, len(l.gateways))
	}
	return true, ""
}

// Busy says whether a gateway has requests at a replica, as far as any was heard:
// what a silent one said last counts.
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

// Gateways is how many were heard of lately.
func (l *Ledger) Gateways() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.gateways)
}
