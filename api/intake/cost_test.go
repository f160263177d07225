package intake

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// processorTime is what this process has used, which does not depend on how busy the machine is.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// sameCost checks that what costs returns for a crowd of 4,096 is not much more than for 64.
func sameCost(t *testing.T, costs func(crowd int) time.Duration) {
	t.Helper()
	few, many := time.Hour, time.Hour
	for range 3 { // what else the process does counts in some
		few, many = min(few, costs(64)), min(many, costs(4096))
	}
	t.Logf("%v with 64, %v with 4,096", few, many)
	if many > 16*few {
		t.Errorf("it takes %v with 4,096, and %v with 64", many, few)
	}
}

// TestAConnectionCostsTheSameNextToMany: a client may open thousands per second, from as many
// addresses, and all others wait for the choice of the one to close.
func TestAConnectionCostsTheSameNextToMany(t *testing.T) {
	const n = 4000
	for name, tc := range map[string]struct {
		keyed     bool
		addresses int // for each connection that there may be
		then      func(*Conn)
	}{
		"new":                   {addresses: 16, then: func(*Conn) {}},
		"new, with keys":        {keyed: true, addresses: 16, then: func(*Conn) {}},
		"silent, with keys":     {keyed: true, addresses: 16, then: func(c *Conn) { c.entered = c.entered.Add(-strangerTime) }},
		"idle, with keys":       {keyed: true, addresses: 16, then: func(c *Conn) { c.move(&c.address.used) }},
		"known, with keys":      {keyed: true, addresses: 16, then: func(c *Conn) { c.known.Store(true); c.move(&c.address.known) }},
		"serving":               {addresses: 16, then: func(c *Conn) { c.move(&c.address.serving) }},
		"serving, of an office": {then: func(c *Conn) { c.move(&c.address.serving) }},
		"closing":               {addresses: 16, then: func(c *Conn) { c.move(&c.address.closing) }},
	} {
		t.Run(name, func(t *testing.T) {
			sameCost(t, func(crowd int) time.Duration {
				l := &Listener{Total: crowd, PerAddress: crowd - 1, Bodies: &Bodies{Keyed: tc.keyed}}
				addresses := make([]string, max(1, tc.addresses*crowd))
				for i := range addresses {
					addresses[i] = fmt.Sprint("10.0.0.", i)
				}
				opened := 0
				open := func() {
					c := newConn(nil, l)
					if _, why := l.enter(c, addresses[opened%len(addresses)]); why == "" || why == replaced {
						tc.then(c)
					}
					opened++
				}
				for range 2 * crowd {
					open()
				}
				before := processorTime(t)
				for range n {
					open()
				}
				return (processorTime(t) - before) / n
			})
		})
	}
}
