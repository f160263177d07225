package pick

import "github.com/cespare/xxhash/v2"

// Prefix is where a prompt begins. The zero value is none.
type Prefix struct {
	// Shared is the hash of what many prompts begin with: the system prompt and
	// the tools.
	Shared uint64
	// Own is the hash of what all turns of one conversation begin with; 0 where
	// nobody can say.
	Own uint64
	// Known: another request with that Shared came to this gateway lately.
	Known bool
	// InFlight requests with that Shared, of this gateway.
	InFlight int
}

func (p Prefix) own() uint64 {
	if p.Own == 0 {
		return p.Shared
	}
	return p.Own
}

// Hash is the same at every gateway and in every version of it, and never 0.
func Hash(parts ...[]byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	var length [8]byte
	for _, p := range parts { // each with its length: what moves from one to the next is another text
		for i := range length {
			length[i] = byte(len(p) >> (8 * i))
		}
		_, _ = d.Write(length[:])
		_, _ = d.Write(p)
	}
	return max(d.Sum64(), 1)
}

// mix spreads a hash over all bits (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
