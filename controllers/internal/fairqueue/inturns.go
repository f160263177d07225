package fairqueue

import (
	"cmp"
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// InTurns returns a handler that handles events in another goroutine, one at a time. It is for
// handlers that read many objects. An informer keeps the events of a handler that is slow in a list
// without bound, each with two versions of its object, and all wait for those before them. Here,
// namespaces take turns, and objects without one each have their own; the events of an object that
// wait are merged, as an informer may do as well.
func InTurns(h handler.EventHandler) handler.EventHandler {
	return &inTurns{of: h, waiting: map[client.ObjectKey]*merged{}, lanes: map[string][]client.ObjectKey{}}
}

type inTurns struct {
	of handler.EventHandler

	mu      sync.Mutex // guards the fields after it
	waiting map[client.ObjectKey]*merged
	// lanes have the objects that wait, the first one first, and turns the lanes, each once.
	lanes   map[string][]client.ObjectKey
	turns   []string
	running bool
}

// merged is what happened to an object since its last event was handled.
type merged struct {
	ctx context.Context
	q   requests
	// before is the state that was handled; nil if there was none.
	before client.Object
	// now is the last state; nil if the object was deleted and nothing came before that.
	now client.Object
	// listed: the first list of the watch contained it.
	listed bool
	// deleted is the deletion; nil if the object exists.
	deleted *event.DeleteEvent
}

func (h *inTurns) Create(ctx context.Context, e event.CreateEvent, q requests) {
	h.add(ctx, e.Object, q, func(c *merged, fresh bool) {
		if c.listed = fresh && e.IsInInitialList; c.before == nil && c.deleted != nil {
			c.before = c.deleted.Object // it is another object with the same name
		}
		c.now, c.deleted = e.Object, nil
	})
}

func (h *inTurns) Update(ctx context.Context, e event.UpdateEvent, q requests) {
	h.add(ctx, e.ObjectNew, q, func(c *merged, fresh bool) {
		if c.now = e.ObjectNew; fresh {
			c.before = e.ObjectOld
		}
	})
}

func (h *inTurns) Delete(ctx context.Context, e event.DeleteEvent, q requests) {
	h.add(ctx, e.Object, q, func(c *merged, _ bool) { c.deleted = &e })
}

// Generic events have no state to merge.
func (h *inTurns) Generic(ctx context.Context, e event.GenericEvent, q requests) {
	h.of.Generic(ctx, e, q)
}

// add merges an event into the change of its object; fresh is true if none waits.
func (h *inTurns) add(ctx context.Context, o client.Object, q requests, merge func(c *merged, fresh bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := client.ObjectKeyFromObject(o)
	c := h.waiting[key]
	fresh := c == nil
	if fresh {
		c = &merged{ctx: context.WithoutCancel(ctx), q: q} // the context of an event ends with the call
		h.waiting[key] = c
		lane := cmp.Or(key.Namespace, "/"+key.Name)
		if len(h.lanes[lane]) == 0 {
			h.turns = append(h.turns, lane)
		}
		h.lanes[lane] = append(h.lanes[lane], key)
	}
	merge(c, fresh)
	if !h.running {
		h.running = true
		go h.run()
	}
}

// run handles changes until none waits.
func (h *inTurns) run() {
	for c := h.next(); c != nil; c = h.next() {
		if !c.q.ShuttingDown() {
			c.handle(h.of)
		}
	}
}

// next returns the change whose turn it is; nil if none waits, and then run ends.
func (h *inTurns) next() *merged {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.turns) == 0 {
		h.turns, h.running = nil, false
		return nil
	}
	lane := h.turns[0]
	h.turns = h.turns[1:]
	key := h.lanes[lane][0]
	if h.lanes[lane] = h.lanes[lane][1:]; len(h.lanes[lane]) > 0 {
		h.turns = append(h.turns, lane)
	} else {
		delete(h.lanes, lane)
	}
	c := h.waiting[key]
	delete(h.waiting, key)
	return c
}

// handle gives a change to a handler.
func (c *merged) handle(h handler.EventHandler) {
	switch {
	case c.now == nil:
	case c.before == nil && c.deleted == nil:
		h.Create(c.ctx, event.CreateEvent{Object: c.now, IsInInitialList: c.listed}, c.q)
	case c.before != nil:
		h.Update(c.ctx, event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.now}, c.q)
	}
	if c.deleted != nil {
		h.Delete(c.ctx, *c.deleted, c.q)
	}
}
