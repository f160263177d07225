package intake

import (
	"container/list"
	"errors"
	"io"
	"sync"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// DefaultBodyBytes is a quarter of the memory that the chart gives a gateway.
	DefaultBodyBytes = 256 << 20
	// probeBytes are read before there is a buffer.
	probeBytes = 512
	// firstBytes of a buffer are allocated when the first bytes of a body are there.
	firstBytes = 4 << 10
	// smallBytes and less is a small body. largeShare of the room is for larger ones, so
	// that small requests are served while others upload.
	smallBytes = 64 << 10
	largeShare = 0.75
	// slackBytes of a buffer may stay unused when its body is complete.
	slackBytes = 16 << 10
)

// errCrowded is the cause with which a body is refused that found no room.
var errCrowded = errors.New("the bodies of other requests use all available memory")

// Bodies is the room for the request bodies of all clients. What counts is the memory of
// the buffers, not what was promised or has arrived. An owner with several bodies, complete
// ones too, gets no more room than stays free for others: at most half, if it is alone.
type Bodies struct {
	// Most bytes of buffers at once.
	Most int64

	mu      sync.Mutex // guards what follows, and the bytes of all bodies
	held    int64
	owners  map[string]*owner
	crowded int64 // bodies that found no room or were interrupted
}

// owner is whose bodies they are: a tenant, or an address.
type owner struct {
	name   string
	bytes  int64
	bodies int
	// arriving are the bodies that are not complete, the oldest in front.
	arriving list.List
}

// body is one body, and the buffer that it has.
type body struct {
	room  *Bodies
	owner *owner
	at    *list.Element // nil once it is complete, or interrupted
	bytes int64
	// interrupt ends the reading of this body.
	interrupt func()
	crowded   bool
}

// Read reads a request body of at most limit bytes. Its memory counts against its owner
// until release is called. promised is its length, or negative if that is unknown. Where
// there is no room, the oldest incomplete body of the owner that holds the most makes
// room: interrupt is called, which must end its reading, and its Read returns the error
// of an overloaded server.
func (b *Bodies) Read(from io.Reader, owner string, promised, limit int64, interrupt func()) (data []byte, release func(), err error) {
	body := b.begin(owner, interrupt)
	data, err = body.read(from, promised, limit)
	if err != nil {
		if body.end() || errors.Is(err, errCrowded) {
			b.countCrowded()
			err = openai.Overloaded(retry)
		}
		return nil, nil, err
	}
	return data, func() { body.end() }, nil
}

// Held is the memory of all buffers.
func (b *Bodies) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

func (b *Bodies) countCrowded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.crowded++
}

func (b *Bodies) begin(name string, interrupt func()) *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owners == nil {
		b.owners = map[string]*owner{}
	}
	o := b.owners[name]
	if o == nil {
		o = &owner{name: name}
		b.owners[name] = o
	}
	o.bodies++
	out := &body{room: b, owner: o, interrupt: interrupt}
	out.at = o.arriving.PushBack(out)
	return out
}

// read reads into a buffer that doubles.
func (b *body) read(from io.Reader, promised, limit int64) ([]byte, error) {
	data := make([]byte, probeBytes)
	n, err := from.Read(data) // a client that sends nothing holds no more
	data = data[:n]
	for size := int64(firstBytes); ; size *= 2 {
		if promised >= 0 && promised < size {
			size = promised + 1 // with room to find the end
		}
		size = max(min(size, limit+1), int64(len(data)))
		if !b.grow(size) {
			return nil, errCrowded
		}
		data = append(make([]byte, 0, size), data...)
		for err == nil && len(data) < cap(data) {
			n, err = from.Read(data[len(data):cap(data)])
			data = data[:len(data)+n]
		}
		switch {
		case int64(len(data)) > limit:
			return nil, openai.BodyTooLarge(limit)
		case errors.Is(err, io.EOF):
			return b.complete(data)
		case err != nil:
			return nil, openai.BodyBroken(err)
		}
	}
}

// complete keeps a body, in a buffer of about its size.
func (b *body) complete(data []byte) ([]byte, error) {
	if cap(data)-len(data) > slackBytes {
		data = append(make([]byte, 0, len(data)), data...)
	}
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	if b.crowded {
		return nil, errCrowded
	}
	b.owner.arriving.Remove(b.at)
	b.at = nil
	b.count(int64(cap(data)) - b.bytes)
	return data, nil
}

// count changes how much the body holds; the lock is held.
func (b *body) count(more int64) {
	b.bytes += more
	b.owner.bytes += more
	b.room.held += more
}

// grow takes room for a buffer of a size, in place of the one before.
func (b *body) grow(size int64) bool {
	r := b.room
	r.mu.Lock()
	defer r.mu.Unlock()
	most := r.Most
	if size > smallBytes {
		most = int64(largeShare * float64(most))
	}
	for !b.crowded && !b.fits(size, most) {
		if !r.makeRoom(b, size) {
			return false
		}
	}
	if b.crowded {
		return false
	}
	b.count(size - b.bytes)
	return true
}

// fits reports whether there is room for a buffer of a size, in place of the one before.
// The lock is held.
func (b *body) fits(size, most int64) bool {
	free := most - (b.room.held - b.bytes + size)
	if b.owner.bodies == 1 {
		return free >= 0 // the largest body has to find room
	}
	return b.owner.bytes-b.bytes+size <= free
}

// makeRoom has a body go: the oldest incomplete one, of the owner that holds the most.
// The body that asks stays if it can, because it does make progress. It returns false if
// there is no other, or if others hold less than the owner of the one that asks. The lock
// is held.
func (r *Bodies) makeRoom(asks *body, size int64) bool {
	mine := asks.owner.bytes - asks.bytes + size
	var most *owner
	for _, o := range r.owners {
		if o.arriving.Len() > 0 && (o == asks.owner || o.bytes > mine) && (most == nil || o.bytes > most.bytes) {
			most = o
		}
	}
	if most == nil {
		return false
	}
	victim := most.arriving.Front().Value.(*body)
	if victim == asks && most.arriving.Len() > 1 {
		victim = asks.at.Next().Value.(*body)
	}
	if victim == asks {
		return false
	}
	// Its reader drops the buffer as soon as it runs.
	victim.owner.arriving.Remove(victim.at)
	victim.at, victim.crowded = nil, true
	victim.count(-victim.bytes)
	victim.interrupt()
	return true
}

// end gives the room back. It reports whether the body had to go for another one.
func (b *body) end() (crowded bool) {
	r := b.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.owner == nil {
		return b.crowded
	}
	if b.at != nil {
		b.owner.arriving.Remove(b.at)
		b.at = nil
	}
	b.count(-b.bytes)
	if b.owner.bodies--; b.owner.bodies == 0 {
		delete(r.owners, b.owner.name)
	}
	b.owner = nil
	return b.crowded
}
