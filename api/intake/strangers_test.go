package intake

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

// held is a connection that remembers that it was closed.
type held struct {
	net.Conn
	closed bool
}

func (h *held) Close() error { h.closed = true; return nil }

// crowd is a room and all that came into it.
type crowd struct {
	Strangers
	came []*held
	in   []*Stranger
}

func (c *crowd) comes(from string) {
	conn := &held{}
	c.came = append(c.came, conn)
	c.in = append(c.in, c.enter(conn, AddressOf(from)))
}

func (c *crowd) wantClosed(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	for i, conn := range c.came {
		if conn.closed {
			got = append(got, i)
		}
		if conn.closed && c.Leave(c.in[i]) {
			t.Errorf("stranger %d was closed and is inside", i)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("closed %v, want %v", got, want)
	}
}

// A customer has all addresses of an IPv6 network, which have one share together.
func TestAttackStrangersOfOneNetwork(t *testing.T) {
	c := &crowd{}
	c.comes("[2001:db8:0:2::1]:1")
	for i := range 66 {
		c.comes(fmt.Sprintf("[2001:db8:0:1::%x]:1", i))
	}
	c.wantClosed(t, 1, 2)
}

// TestAttackStrangersOfManyAddresses: the address with the most makes room.
func TestAttackStrangersOfManyAddresses(t *testing.T) {
	c := &crowd{}
	for i := range 256 {
		c.comes(fmt.Sprintf("192.0.2.%d:1", min(i, 200)))
	}
	c.comes("192.0.2.250:1")
	c.wantClosed(t, 200)
	for _, one := range c.in {
		c.Leave(one)
	}
	if c.n != 0 || len(c.from) != 0 {
		t.Errorf("%d connections of %d addresses are left", c.n, len(c.from))
	}
	for i := range 257 {
		c.comes(fmt.Sprintf("198.51.%d.%d:1", i/200, i%200))
	}
	c.wantClosed(t, 200, 257)
}

// Counted connections of many clients are limited in all; one that ended leaves its place.
func TestCountedConnectionsAreLimitedInAll(t *testing.T) {
	in := new(shared)
	var all []*held
	var counted []*countedConn
	open := func(client string) {
		h := &held{}
		all = append(all, h)
		counted = append(counted, &countedConn{Conn: h, place: in.enter(h, client, maxCounted, maxCountedEach)})
	}
	for i := range maxCounted {
		open(fmt.Sprint(i / 2)) // two of each
	}
	if slices.ContainsFunc(all, func(h *held) bool { return h.closed }) {
		t.Error("a connection within the limit was closed")
	}
	open("another")
	if !all[0].closed || all[1].closed || in.n != maxCounted {
		t.Errorf("at the limit the oldest connection is closed: %t, %d are open", all[0].closed, in.n)
	}
	for _, c := range counted {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if in.n != 0 || len(in.from) != 0 {
		t.Errorf("%d connections are counted after all were closed", in.n)
	}
}
