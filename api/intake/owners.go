package intake

import (
	"context"

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
