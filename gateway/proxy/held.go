package proxy

import (
	"errors"
	"fmt"
	"sync"
)

const (
	// blockBytes is the buffer of each running response.
	blockBytes = 8 << 10
	// heldBytes bounds what is buffered of all responses, beyond one block of each: an
	// eighth of the chart's memory limit for a gateway.
	heldBytes = 128 << 20
)

var (
	errTooLong = errors.New("it is too long to be held back")
	errNoRoom  = errors.New("other responses use all available memory")
	// errMacsRoom means that a Mac's own responses use much of what it may have.
	errMacsRoom = fmt.Errorf("%w, of which responses of the same Mac use much", errNoRoom)
)

// buffers are reused between responses.
var buffers = sync.Pool{New: func() any { b := make([]byte, blockBytes); return &b }}

// source is the origin of a response: the Mac, and the owner of the memory of the request that
// it answers, see scope.
type source struct{ mac, share string }

// room bounds the memory for buffered parts of responses. Any number of responses may run,
// because requests for stored ones need no slot of a replica. A Mac gets no more of it than
// stays free for the others, and a tenant, or an address without one, no more of all and of a Mac's part
// than stays free for others: its clients may read slowly.
type room struct {
	most int64

	mu      sync.Mutex // guards the fields after it
	all     int64
	macs    map[string]int64
	shares  map[string]int64 // at all Macs; without those that have none
	sources map[source]int64
}

func newRoom(most int64) *room {
	return &room{most: most, macs: map[string]int64{}, shares: map[string]int64{}, sources: map[source]int64{}}
}

func (r *room) take(of source, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	mac, own := r.macs[of.mac], r.sources[of]
	part := (r.most - (r.all - mac)) / 2
	everywhere := r.shares[of.share]
	if mac+n > part || of.share != "" && (own+n > (part-(mac-own))/2 || everywhere+n > (r.most-(r.all-everywhere))/2) {
		return false
	}
	r.count(of, n)
	return true
}

// refusal returns why there is no memory for a response of a Mac.
func (r *room) refusal(mac string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if used := r.macs[mac]; used >= (r.most-(r.all-used))/2/4 {
		return errMacsRoom
	}
	return errNoRoom
}

func (r *room) give(of source, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count(of, -n)
}

// count adds n bytes to what is used. The lock is held.
func (r *room) count(of source, n int64) {
	r.all += n
	add(r.macs, of.mac, n)
	add(r.sources, of, n)
	if of.share != "" {
		add(r.shares, of.share, n)
	}
}

func add[K comparable](used map[K]int64, of K, n int64) {
	if used[of] += n; used[of] == 0 {
		delete(used, of)
	}
}

// held is a buffered part of a Mac's response. Its first block is not counted, and its
// memory is that of bytes.
type held struct {
	room    *room
	of      source
	bytes   []byte
	block   *[]byte // of buffers; nil if bytes is larger
	counted int64
}

func (r *room) hold(of source) *held {
	block := buffers.Get().(*[]byte)
	return &held{room: r, of: of, bytes: *block, block: block}
}

// grow doubles the memory, up to a size. Both buffers count during the copy.
func (h *held) grow(most int) error {
	size := 2 * len(h.bytes)
	if size > most {
		return errTooLong
	}
	if !h.room.take(h.of, int64(size)) {
		return h.room.refusal(h.of.mac)
	}
	bigger := make([]byte, size)
	copy(bigger, h.bytes)
	h.free()
	h.bytes, h.counted = bigger, int64(size)
	return nil
}

// shrink goes back to one block if the rest of the bytes fits in it: a stream may be idle for long.
func (h *held) shrink(rest []byte) {
	if h.block != nil || len(rest) >= blockBytes {
		return
	}
	block := buffers.Get().(*[]byte)
	copy(*block, rest)
	h.free()
	h.bytes, h.block = *block, block
}

// free returns the memory, which must not be used after it. Further calls are no-ops.
func (h *held) free() {
	if h.block != nil {
		buffers.Put(h.block)
	}
	if h.counted > 0 {
		h.room.give(h.of, h.counted)
	}
	h.bytes, h.block, h.counted = nil, nil, 0
}
