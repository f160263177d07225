package intake

import (
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
	c.owner = owner
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

// strangerTime is how long a client may take to send the head of its first request.
const strangerTime = time.Second

// Know marks the connection of a context: its client has a key.
func Know(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*Conn); ok {
		c.listener.mu.Lock()
		defer c.listener.mu.Unlock()
		c.known = true
	}
}

// stranger returns the connection to sacrifice first where clients need a key, nil if there is none: one
// that idles without a key, or else has sent none in strangerTime, of the address with the most of
// these. Strangers may have any number of addresses with few connections each. The lock is held.
func (l *Listener) stranger(now time.Time) (out *Conn) {
	if l.Bodies == nil || !l.Bodies.Keyed {
		return nil
	}
	if out = l.most(func(a *address) (*Conn, int) { return strangers(now, &a.closing, &a.used) }); out != nil {
		return out
	}
	before := now.Add(-strangerTime)
	return l.most(func(a *address) (*Conn, int) { return strangers(before, &a.fresh) })
}

// most returns the connection of the address for which of counts the most; nil if all count none.
func (l *Listener) most(of func(*address) (*Conn, int)) (out *Conn) {
	most := 0
	for _, a := range l.addresses {
		if c, n := of(a); n > most {
			out, most = c, n
		}
	}
	return out
}

// strangers counts the connections without a key that were there before a time, and returns the first.
func strangers(before time.Time, of ...*list.List) (first *Conn, n int) {
	for _, l := range of {
		for at := l.Front(); at != nil; at = at.Next() {
			if c := at.Value.(*Conn); !c.known && !c.entered.After(before) {
				if n++; first == nil {
					first = c
				}
			}
		}
	}
	return first, n
}
