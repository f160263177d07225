package intake

import (
	"errors"
	"sync"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// freeHead is the memory of a head that is not counted: that of nearly every client's.
	freeHead = 8 << 10
	// headFactor is how much memory a byte of a head takes while its line grows, and
	// headLine what each line takes besides.
	headFactor, headLine = 2, 100
)

// errNoHeadRoom is the error of a connection for whose head there is no memory.
var errNoHeadRoom = errors.New("the requests of others use all available memory")

// headRoom counts the memory of a connection's head from its first bytes until its request
// has ended. All fields but bodies are guarded by mu.
type headRoom struct {
	bodies *Bodies // nil counts nothing

	mu     sync.Mutex
	held   *body // nil if the head is small
	closed bool
}

// grow counts a head that takes a number of bytes. Until arrived is called, others may interrupt
// it. It returns false if there is no memory.
func (h *headRoom) grow(owner string, bytes int64, interrupt func()) bool {
	if h.bodies == nil {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if h.held == nil {
		h.held = h.bodies.begin(owner, h.bodies.Keyed, interrupt)
	}
	return h.held.has(bytes) || h.held.grow(bytes)
}

// arrived marks the request of the head as complete.
func (h *headRoom) arrived() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		h.held.arrived()
	}
}

// paused takes back arrived.
func (h *headRoom) paused() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		h.held.paused()
	}
}

// know marks the head as that of a client with a key.
func (h *headRoom) know() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held != nil {
		h.held.know()
	}
}

// own counts the head against another owner, its tenant.
func (h *headRoom) own(owner string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil || h.held.move(owner) {
		return nil
	}
	h.bodies.countCrowded()
	return openai.Overloaded(retry)
}

// release stops counting: the request has ended, and with closed the connection too.
func (h *headRoom) release(closed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = h.closed || closed
	if h.held != nil && h.held.end() { // it gave way to others
		h.bodies.countCrowded()
	}
	h.held = nil
}
