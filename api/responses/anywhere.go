package responses

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxMacs is how many Macs may be sent the request of one Anywhere. Those after it share a
// proof.
const maxMacs = 64

// link is an element of a chain: each is the hash of the one before.
type link [randomText / 2]byte

func (l link) next() (out link) {
	sum := sha256.Sum256(append([]byte("metalfleet stored response\x00"), l[:]...))
	copy(out[:], sum[:])
	return out
}

// Anywhere is a response whose client has to be given its id before it is known which Mac will
// store it. The id is the end of a chain of hashes. Each Mac to which the request is sent gets
// the link before the last one's, so that it can prove that it was sent the request after
// others, and no other Mac can.
type Anywhere struct {
	links [maxMacs + 1]link // the last one is the id
	macs  int               // how many got a proof
}

// NewAnywhere makes an id.
func NewAnywhere() *Anywhere {
	a := &Anywhere{}
	rand.Read(a.links[0][:]) // never fails since Go 1.24
	for i := range maxMacs {
		a.links[i+1] = a.links[i].next()
	}
	return a
}

// ID returns the id.
func (a *Anywhere) ID() string { return idPrefix + hex.EncodeToString(a.links[maxMacs][:]) }

// Proof returns the proof for the next Mac to which the request is sent.
func (a *Anywhere) Proof() string {
	a.macs = min(a.macs+1, maxMacs)
	return hex.EncodeToString(a.links[maxMacs-a.macs][:])
}

// IsProof reports whether a text has the form of a proof.
func IsProof(text string) bool {
	_, err := hex.DecodeString(text)
	return len(text) == randomText && err == nil
}

// Proven returns which of the Macs that were sent the request for a response has a proof,
// counted from 1; 0 if it proves nothing. The last one stores it.
func Proven(id, proof string) int {
	if !IsProof(proof) {
		return 0
	}
	var at link
	_, _ = hex.Decode(at[:], []byte(proof))
	for i := range maxMacs {
		if at = at.next(); idPrefix+hex.EncodeToString(at[:]) == id {
			return i + 1
		}
	}
	return 0
}

// IsAnywhere reports whether an id is that of an Anywhere: any Mac may store the response.
func IsAnywhere(id string) bool {
	random, ok := strings.CutPrefix(id, idPrefix)
	_, err := hex.DecodeString(random)
	return ok && len(random) == randomText && err == nil
}
