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
	var d xxhash.Digest
	d.Reset()
	var length [8]byte
	for _, p := range parts { // length-prefixed, so that moving a boundary changes the hash
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
