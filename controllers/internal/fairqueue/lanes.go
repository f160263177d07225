package fairqueue

import (
	"container/list"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// level of a request within its namespace; lower ones come first.
type level int

const (
	// changed: something changed since the watch began, or a retry is due.
	changed level = iota
	// listed: the first list of a watch, or a resync, contained it.
	listed
	levels
)

// lanes order the requests that are due: one lane per namespace, in turns. A request that
// several namespaces caused is in the lane of each and leaves all of them at once.
type lanes struct {
	mu sync.Mutex
	// notes are why requests will be pushed: client-go's queue passes on only the request.
	notes map[reconcile.Request]*note
	due   map[reconcile.Request]*entry
	of    map[string]*lane
	// turns has the lanes that are not empty, the next one first.
	turns *list.List
}

// note is on behalf of which namespaces a request is to be pushed, and its level.
type note struct {
	namespaces map[string]bool
	level      level
}

// entry is a request that is due.
type entry struct {
	request reconcile.Request
	level   level
	at      map[*lane]*list.Element
}

// lane has the entries of one namespace, by level, the oldest first.
type lane struct {
	namespace string
	entries   [levels]list.List
	turn      *list.Element
}

func newLanes() *lanes {
	return &lanes{notes: map[reconcile.Request]*note{}, due: map[reconcile.Request]*entry{}, of: map[string]*lane{}, turns: list.New()}
}

// note records on whose behalf a request is about to be added, now or after a delay.
func (l *lanes) note(r reconcile.Request, namespace string, at level) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.notes[r]
	if n == nil {
		n = &note{map[string]bool{}, at}
		l.notes[r] = n
	}
	n.namespaces[namespace], n.level = true, min(n.level, at)
}

// Push adds a request that is due now.
func (l *lanes) Push(r reconcile.Request) { l.put(r) }

// Touch is called if a request is added that is due already: it may be on behalf of another
// namespace, or more urgent.
func (l *lanes) Touch(r reconcile.Request) { l.put(r) }

// Len returns the number of requests, each counted once.
func (l *lanes) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due)
}

// Pop removes and returns the first request of the namespace whose turn it is. There is one:
// client-go's queue checks Len.
func (l *lanes) Pop() reconcile.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.turns.Front().Value.(*lane)
	l.turns.MoveToBack(next.turn)

	e := next.first()
	l.takeOut(e)
	delete(l.due, e.request)
	return e.request
}

func (l *lanes) put(r reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.notes[r]
	if n == nil { // an earlier push took it along
		n = &note{namespaces: map[string]bool{r.Namespace: true}}
	}
	delete(l.notes, r)
	e := l.due[r]
	if e == nil {
		e = &entry{request: r, level: n.level, at: map[*lane]*list.Element{}}
		l.due[r] = e
	}
	if n.level < e.level {
		for lane := range e.at {
			n.namespaces[lane.namespace] = true
		}
		l.takeOut(e)
		e.level = n.level
	}
	for namespace := range n.namespaces {
		lane := l.lane(namespace)
		if e.at[lane] == nil {
			e.at[lane] = lane.entries[e.level].PushBack(e)
		}
	}
}

// lane returns the lane of a namespace, which waits for its turn if it was empty.
func (l *lanes) lane(namespace string) *lane {
	out := l.of[namespace]
	if out == nil {
		out = &lane{namespace: namespace}
		out.turn = l.turns.PushBack(out)
		l.of[namespace] = out
	}
	return out
}

// takeOut removes an entry from its lanes, and the lanes that are empty then.
func (l *lanes) takeOut(e *entry) {
	for lane, place := range e.at {
		lane.entries[e.level].Remove(place)
		if lane.first() == nil {
			l.turns.Remove(lane.turn)
			delete(l.of, lane.namespace)
		}
	}
	clear(e.at)
}

// first returns the next entry of a lane; nil if it is empty.
func (l *lane) first() *entry {
	for i := range l.entries {
		if place := l.entries[i].Front(); place != nil {
			return place.Value.(*entry)
		}
	}
	return nil
}
