package intake

import (
	"container/list"
	"errors"
	"io"
	"sync"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	// DefaultBodyBytes is a quarter of the chart's memory limit for a gateway.
	DefaultBodyBytes = 256 << 20
	// probeBytes are read before a buffer is allocated.
	probeBytes = 512
	// firstBytes is the size of the first buffer, allocated when a body begins to arrive.
	firstBytes = 4 << 10
	// smallBytes is the size up to which a body counts as small. Larger ones may use at
	// most largeShare of the memory, so that small requests are served during uploads.
	smallBytes = 64 << 10
	largeShare = 0.75
	// slackBytes of a complete body's buffer may stay unused.
	slackBytes = 16 << 10
)

// errCrowded is the cause of refusing a body for which there is no memory.
var errCrowded = errors.New("the bodies of other requests use all available memory")

// Bodies bounds the memory of the request bodies of all clients, and of their heads on a
// Listener with Bodies. It counts the buffers, not the lengths that were announced or have
// arrived. An owner with several bodies, complete ones included, gets at most as much memory
// as stays free for others: half of it, if it is the only one.
type Bodies struct {
	// Max is the limit for all buffers, in bytes.
	Max int64
	// SendBuffer is the size of the buffer from which a body is sent on, or of the body if that is
	// shorter. It counts with the body; 0 for bodies that are not sent.
	SendBuffer int64
	// ReceiveBuffer is the memory of the kernel for a large body that arrives, see Arriving. It counts
	// with the body until that is complete, and for longer while the kernel keeps bytes after it.
	ReceiveBuffer int64
	// Keyed is true if clients need a key: heads of those that have shown none, which Own has not
	// counted, give way to all else. They may come from any number of addresses.
	Keyed bool

	mu     sync.Mutex // guards the fields after it, and the bytes of all bodies
	held   int64
	owners map[string]*owner
	// heavy ranks the owners of incomplete bodies by their memory, and strange those of which the
	// oldest is a stranger's head.
	heavy, strange ranks[*owner]
	crowded        int64 // bodies that were refused or interrupted for lack of memory
}

// owner is a tenant or an address that sends bodies.
type owner struct {
	name   string
	bytes  int64
	bodies int
	// arriving lists the bodies that were lent, and then the incomplete ones, oldest first.
	arriving        list.List
	weight, strange rank[*owner]
}

// body is one request body and its buffer, or a head.
type body struct {
	room  *Bodies
	owner *owner
	at    *list.Element // nil if no other may have its memory
	bytes int64
	// announced is its length, as far as that is known.
	announced int64
	// receiving is the part of it that the kernel has until the body is complete.
	receiving int64
	// interrupt stops reading this body.
	interrupt func()
	crowded   bool
	lent      bool // to bodies of other owners
	// stranger is true for the head of a client that has shown no key.
	stranger bool
}

// Kept is memory that counts against an owner until it is released.
type Kept struct{ body *body }

// Read reads a request body of at most limit bytes. Its memory counts against its owner
// until it is released. promised is its length, or negative if that is unknown. If there
// is no memory left, the oldest incomplete body of the owner with the most memory is
// dropped: its interrupt is called, which must end the read, and its Read returns the error
// of an overloaded server.
func (b *Bodies) Read(from io.Reader, owner string, promised, limit int64, interrupt func()) (data []byte, kept Kept, err error) {
	body := b.begin(owner, false, interrupt)
	data, err = body.read(from, promised, limit)
	if err != nil {
		if body.end() || errors.Is(err, errCrowded) {
			b.countCrowded()
			err = openai.Overloaded(retry)
		}
		return nil, Kept{}, err
	}
	return data, Kept{body}, nil
}

// Hold counts n bytes that a request makes the server hold besides its body, such as stored
// items, against its owner until they are released. If there is no memory left, it returns
// the error of an overloaded server.
func (b *Bodies) Hold(owner string, n int64) (Kept, error) {
	if n == 0 {
		return Kept{}, nil
	}
	held := b.begin(owner, false, func() {})
	held.arrived() // others do not interrupt it
	if !held.grow(n) {
		held.end()
		b.countCrowded()
		return Kept{}, openai.Overloaded(retry)
	}
	return Kept{held}, nil
}

// Release ends the count; twice does nothing.
func (k Kept) Release() {
	if k.body != nil {
		k.body.end()
	}
}

// Bytes is how much memory counts.
func (k Kept) Bytes() int64 {
	if k.body == nil {
		return 0
	}
	k.body.room.mu.Lock()
	defer k.body.room.mu.Unlock()
	return k.body.bytes
}

// Lend has the memory give way to a body of another owner, one with less, before what still arrives:
// drop is called, at most once, and must free it. It may not block, nor call a method of Bodies or Kept.
func (k Kept) Lend(drop func()) {
	if k.body == nil {
		return
	}
	r := k.body.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.body.owner == nil || k.body.crowded || k.body.at != nil {
		return
	}
	k.body.interrupt, k.body.lent = drop, true
	k.body.at = k.body.owner.arriving.PushFront(k.body)
	r.rank(k.body.owner)
}

// Recall ends Lend. It returns false if the memory gave way.
func (k Kept) Recall() bool {
	if k.body == nil {
		return true
	}
	r := k.body.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.body.crowded {
		return false
	}
	if k.body.owner != nil {
		k.body.stay()
		k.body.interrupt, k.body.lent = nil, false
	}
	return true
}

// Held returns the memory of all buffers in bytes.
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

func (b *Bodies) begin(name string, stranger bool, interrupt func()) *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &body{room: b, owner: b.join(name), stranger: stranger, interrupt: interrupt}
	out.arrive()
	return out
}

// arrive makes the body one that others may interrupt; the lock is held.
func (b *body) arrive() {
	b.at = b.owner.arriving.PushBack(b)
	b.room.rank(b.owner)
}

// rank notes what an owner has; the lock is held.
func (b *Bodies) rank(o *owner) {
	weight, strange := int64(0), int64(0)
	if first := o.arriving.Front(); first != nil {
		weight = o.bytes
		if first.Value.(*body).stranger {
			strange = weight
		}
	}
	b.heavy.set(&o.weight, weight)
	b.strange.set(&o.strange, strange)
}

// join adds a body to those of an owner; the lock is held.
func (b *Bodies) join(name string) *owner {
	if b.owners == nil {
		b.owners = map[string]*owner{}
	}
	o := b.owners[name]
	if o == nil {
		o = &owner{name: name}
		o.weight.of, o.strange.of = o, o
		b.owners[name] = o
	}
	o.bodies++
	return o
}

// leave removes the body from those of its owner, and its memory; the lock is held.
func (b *body) leave() {
	b.stay()
	b.count(-b.bytes)
	if b.owner.bodies--; b.owner.bodies == 0 {
		delete(b.room.owners, b.owner.name)
	}
	b.owner = nil
}

// stay makes others not interrupt the body any more; the lock is held.
func (b *body) stay() {
	if b.at != nil {
		b.owner.arriving.Remove(b.at)
		b.at = nil
		b.room.rank(b.owner)
	}
}

// arrived marks the body as complete.
func (b *body) arrived() {
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	b.stay()
}

// paused takes back arrived.
func (b *body) paused() {
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	if b.owner != nil && b.at == nil && !b.crowded {
		b.arrive()
	}
}

// know marks the body as that of a client with a key.
func (b *body) know() {
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	if b.stranger = false; b.owner != nil {
		b.room.rank(b.owner)
	}
}

// move counts the body against another owner. It returns false if that has no memory left.
func (b *body) move(to string) bool {
	r := b.room
	r.mu.Lock()
	b.stranger = false
	if b.owner.name == to {
		r.rank(b.owner)
		r.mu.Unlock()
		return true
	}
	bytes, arriving := b.bytes, b.at != nil
	b.leave()
	if b.owner = r.join(to); arriving {
		b.arrive()
	}
	r.mu.Unlock()
	return b.grow(bytes)
}

// read reads into a buffer that doubles when it is full.
func (b *body) read(from io.Reader, promised, limit int64) ([]byte, error) {
	b.announced = min(promised, limit)
	if large(promised) {
		b.receiving = b.room.ReceiveBuffer
	}
	data := make([]byte, probeBytes)
	n, err := from.Read(data) // a client that sends nothing uses no more memory than this
	data = data[:n]
	for size := int64(firstBytes); ; size *= 2 {
		if promised >= 0 && promised < size {
			size = promised + 1 // one byte more, to detect the end
		}
		size = max(min(size, limit+1), int64(len(data)))
		if !b.grow(b.room.sending(size)) {
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

// complete copies a finished body into a buffer of about its size.
func (b *body) complete(data []byte) ([]byte, error) {
	if cap(data)-len(data) > slackBytes {
		data = append(make([]byte, 0, len(data)), data...)
	}
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	if b.crowded {
		return nil, errCrowded
	}
	b.stay()
	b.interrupt = nil // which has the connection and its headers, and may not be there as long
	b.count(b.room.sending(int64(cap(data))) - b.bytes)
	return data, nil
}

// sending returns how much memory a body takes until it is sent.
func (b *Bodies) sending(size int64) int64 { return size + min(size, b.SendBuffer) }

// count adds to the memory of the body; the lock is held.
func (b *body) count(more int64) {
	b.bytes += more
	b.owner.bytes += more
	b.room.held += more
	b.room.rank(b.owner)
}

// grow reserves memory for a buffer of a size that replaces the current one.
func (b *body) grow(size int64) bool {
	r := b.room
	r.mu.Lock()
	defer r.mu.Unlock()
	most := r.Max
	if size > smallBytes {
		most = int64(largeShare * float64(most))
	}
	size += b.receiving
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

// has reports whether the body has at least that many bytes of memory, which it may have lost to another.
func (b *body) has(size int64) bool {
	b.room.mu.Lock()
	defer b.room.mu.Unlock()
	return size <= b.bytes
}

// fits reports whether there is memory for a buffer of a size that replaces the current
// one. The lock is held.
func (b *body) fits(size, most int64) bool {
	free := most - (b.room.held - b.bytes + size)
	if b.owner.bodies == 1 {
		return free >= 0 // the largest body must still fit
	}
	return b.owner.bytes-b.bytes+size <= free
}

// makeRoom drops a body of the owner with the most memory, one that was lent or else the oldest
// incomplete one: first of strangers, and for a stranger of no other. It does not drop the body that asks,
// which makes progress. It returns false if there is no other, or if all others hold less than the owner of
// the one that asks. The lock is held.
func (r *Bodies) makeRoom(asks *body, size int64) bool {
	mine := asks.owner.bytes - asks.bytes + max(size, asks.announced)
	most := r.strange.first()
	if most == nil && !asks.stranger {
		most = r.heavy.first()
	}
	if most == nil || most.bytes <= mine && (most.strange.n == 0 || asks.stranger) {
		most = asks.owner
	}
	at := most.arriving.Front()
	for most == asks.owner && at != nil && at.Value.(*body).lent {
		at = at.Next()
	}
	if at == nil || most == asks.owner && asks.stranger && !at.Value.(*body).stranger {
		return false
	}
	if at == asks.at {
		if at = at.Next(); at == nil {
			return false
		}
	}
	// Its reader frees the buffer as soon as it runs.
	victim := at.Value.(*body)
	victim.owner.arriving.Remove(victim.at)
	victim.at, victim.crowded = nil, true
	victim.count(-victim.bytes)
	victim.interrupt()
	return true
}

// end releases the memory. It reports whether the body was dropped to make room.
func (b *body) end() (crowded bool) {
	r := b.room
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.owner == nil {
		return b.crowded
	}
	b.leave()
	return b.crowded
}
