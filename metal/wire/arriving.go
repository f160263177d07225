package wire

import (
	"errors"
	"net"
	"sync"
)

const (
	// maxArriving bounds the bytes of messages from one engine that have not arrived as a whole: those of
	// all vectors that it may send at once (package engine), 104 MiB for 4,096 dimensions, or the longest
	// message and as much as all answers have that their clients do not read.
	maxArriving = 128 << 20
	// allArriving is the same for all engines together.
	allArriving = 192 << 20
)

var errArriving = errors.New("the engine did not end messages that it began")

// Arriving counts the messages from engines that have not arrived as a whole: gRPC keeps them, and no other
// limit counts them before their end. An engine that was taken over may begin one in each call, and end none.
type Arriving struct {
	mu  sync.Mutex
	of  map[net.Conn]int64 // guarded by mu
	all int64              // guarded by mu
}

// NewArriving returns those of an agent that received nothing yet.
func NewArriving() *Arriving { return &Arriving{of: map[net.Conn]int64{}} }

// add begins to count a connection.
func (a *Arriving) add(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.of[c] = 0
}

// update counts what a connection has now, or returns why it ends. If all have too much together, the one
// with the most is closed.
func (a *Arriving) update(c net.Conn, has *answers) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	old, open := a.of[c]
	n := has.held()
	if !open {
		return errArriving
	}
	a.of[c] = n
	a.all += n - old
	if n > maxArriving {
		return errArriving
	}
	if n <= old || a.all <= allArriving {
		return nil
	}
	most := c
	for other, held := range a.of {
		if held > a.of[most] {
			most = other
		}
	}
	if most == c {
		return errArriving
	}
	a.drop(most)
	_ = most.Close()
	return nil
}

// remove counts a connection no more.
func (a *Arriving) remove(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(c)
}

// drop is called with mu held.
func (a *Arriving) drop(c net.Conn) {
	a.all -= a.of[c]
	delete(a.of, c)
}
