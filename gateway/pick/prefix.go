package pick

import "github.com/cespare/xxhash/v2"

// Prefix describes how a prompt begins. The zero value means no prefix.
type Prefix struct {
	// Shared is the hash of the part that many prompts share: the system prompt and the
	// tools.
	Shared uint64
	// Own is the hash of the part that all turns of one conversation share; 0 if unknown.
	Own uint64
	// Known: this gateway had another request with the same Shared recently.
	Known bool
	// InFlight counts this gateway's running requests with the same Shared.
	InFlight int
}

func (p Prefix) own() uint64 {
	if p.Own == 0 {
		return p.Shared
	}
	return p.Own
}

// Hash is the same at every gateway and in every version, and never 0.
func Hash(parts ...[]byte) uint64 {
	h := NewHasher()
	for _, p := range parts {
		h.Add(p)
	}
	return h.Sum()
}

// Hasher computes the Hash of parts that are known one after another. A copy continues from
// the parts so far.
type Hasher struct{ digest xxhash.Digest }

// NewHasher returns a Hasher without parts.
func NewHasher() Hasher {
	var h Hasher
	h.digest.Reset()
	return h
}

// Add adds a part, which is stored in pieces.
func (h *Hasher) Add(pieces ...[]byte) {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	var length [8]byte // before the part, so that moving a boundary changes the hash
	for i := range length {
		length[i] = byte(n >> (8 * i))
	}
	_, _ = h.digest.Write(length[:])
	for _, p := range pieces {
		_, _ = h.digest.Write(p)
	}
}

// Sum returns the Hash of the parts so far.
func (h *Hasher) Sum() uint64 { return max(h.digest.Sum64(), 1) }

// mix spreads a hash over all bits (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
