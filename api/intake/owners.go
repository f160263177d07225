package intake

import (
	"cmp"
	"container/list"
	"context"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Own counts the request of a context, and the memory of its head, against its owner, a
// tenant, until it ends. A tenant has as many addresses as it likes, and complete requests
// give way to no other: with several requests it gets at most as many connections as stay free for others, which is half of them
// if it is the only one. Beyond that it returns the error of too many requests, or of an
// overloaded server if its heads take too much memory.
func Own(ctx context.Context, owner string) error {
	c, ok := ctx.Value(connKey{}).(*Conn)
	if !ok {
		return nil
	}
	if err := c.room.own(owner); err != nil {
		return err
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.gone {
		return nil // its request fails anyway
	}
	c.disown()
	if mine := l.owned[owner] + 1; l.Total > 0 && mine > 1 && mine > l.Total-l.inAll-1 {
		e := openai.RateLimited(retry)
		e.Message = "Too many requests of the API key's tenant run at once: the gateway keeps as many connections free for others. Send fewer at once."
		return e
	}
	if l.owned == nil {
		l.owned = map[string]int{}
	}
	c.owner, c.payer = owner, owner
	l.owned[owner]++
	l.inAll++
	return nil
}

// disown ends what Own began; the lock is held.
func (c *Conn) disown() {
	if c.owner == "" {
		return
	}
	l := c.listener
	l.inAll--
	if l.owned[c.owner]--; l.owned[c.owner] == 0 {
		delete(l.owned, c.owner)
	}
	c.owner = ""
}

// strangerTime is how long a client may take to send the head of its first request, and strangerShare the
// part of Total in which clients without a key have that time while clients with a key need the rest.
// The connections of an address with more than crowdShare of Total among these give way first.
const strangerTime, strangerShare, crowdShare = time.Second, 8, 256

// Know marks the connection of a context: its client has a key.
func Know(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.room.know()
		if c.listener.Turns > 0 {
			c.listener.turns.shows(c.address.name)
		}
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.know()
	}
}

// know marks the connection, which gives way after those of its address without a key; the lock is held.
func (c *Conn) know() {
	c.known.Store(true)
	if c.in == &c.address.fresh || c.in == &c.address.used {
		c.move(&c.address.sending)
	} else {
		c.queue()
	}
}

// sends notes that a client sends the body of another request: its connection no longer idles.
func (c *Conn) sends() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	switch c.in {
	case &c.address.used:
		c.wait()
	case &c.address.known:
		c.entered = time.Now()
		c.move(&c.address.sending)
	}
}

// queue gives the connection its turn to give way: among those that idle, or as one without a key, where
// clients need one. The lock is held.
func (c *Conn) queue() {
	a, l := c.address, c.listener
	var to *list.List
	stranger := c.stranger()
	switch idle := c.in == &a.used || c.in == &a.known || c.in == &a.closing; {
	case stranger && idle:
		to = &l.idle
	case stranger && c.in == &a.fresh:
		to = &l.young
	case idle:
		to = &l.kept
	}
	if to != c.turn.in {
		c.giveTurn(to)
	}
	l.rank(a)
}

// stranger reports whether the connection has shown no key, where clients need one. The lock is held.
func (c *Conn) stranger() bool {
	b := c.listener.Bodies
	return b != nil && b.Keyed && !c.known.Load()
}

// giveTurn appends the connection to a list of turns, or to none; the lock is held.
func (c *Conn) giveTurn(to *list.List) {
	c.turn.move(c, to)
	if to == &c.listener.young {
		c.atAddress.move(c, &c.address.young)
	} else {
		c.atAddress.move(c, nil)
	}
}

// waiting returns the connection of an address to sacrifice first; nil if all serve requests of clients
// that read. A new one has strangerTime to send its request, and an idle one is cheap to open again: idle
// ones give way before new ones, of which strangerShare of an address have that time. If there are more new
// ones, they give way before idle ones of clients with a key, or that idle for less than strangerTime where
// clients need none. The lock is held.
func (l *Listener) waiting(a *address, now time.Time) *Conn {
	if c := a.stalled(now); c != nil {
		return c
	}
	idle, crowd := strangerTime, strangerTime
	if l.Bodies != nil && l.Bodies.Keyed {
		idle = 0 // used ones are of clients without a key
	}
	if a.fresh.Len() > cmp.Or(l.PerAddress, l.Total)/strangerShare {
		crowd = 0
	}
	for _, turn := range []struct {
		in    *list.List
		after time.Duration
	}{
		{&a.closing, 0}, {&a.fresh, strangerTime}, {&a.used, idle}, {&a.fresh, crowd},
		{&a.used, 0}, {&a.known, 0}, {&a.fresh, 0}, {&a.sending, 0},
	} {
		if first := turn.in.Front(); first != nil && now.Sub(first.Value.(*Conn).entered) >= turn.after {
			return first.Value.(*Conn)
		}
	}
	return nil
}

// stranger returns the connection to sacrifice first where clients need a key, nil if there is none: the
// one that idles without a key for longest, or else the first that has sent none in strangerTime, of the
// address with the most of these. If strangerShare of all have sent none yet, it is the first of them, or
// of those of the address with the most, if that has more than crowdShare. Strangers may have any number
// of addresses with few connections each, so that looking at all would take long. The lock is held.
func (l *Listener) stranger(now time.Time) *Conn {
	if first := l.idle.Front(); first != nil {
		return first.Value.(*Conn)
	}
	for first := l.young.Front(); first != nil; first = l.young.Front() {
		c := first.Value.(*Conn)
		if now.Sub(c.entered) < strangerTime {
			break
		}
		c.giveTurn(&c.address.silent)
		l.rank(c.address)
	}
	if a := l.silent.first(); a != nil {
		return a.silent.Front().Value.(*Conn)
	}
	if l.young.Len() <= l.Total/strangerShare {
		return nil
	}
	first := &l.young
	if a := l.crowds.first(); a.young.Len() > max(few, l.Total/crowdShare) {
		first = &a.young
	}
	return first.Front().Value.(*Conn)
}
