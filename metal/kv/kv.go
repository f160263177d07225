// Package kv is what an engine remembers of prompts that it computed.
//
// It owns the words that the tiers of the cache share: Key, which says what a
// block is the KV of and of nothing else, and Tier, which keeps bytes under
// keys; where prompts are cut (Shape) and from which points they can go on
// (Chain); and the tier in RAM (Memory), whose room is taken and given back in
// room.go, and made before it is wanted in ahead.go. It refuses to guess: a key
// is made of everything that the bytes depend on, so that a change of weights,
// numerics, layout or an earlier token never finds them, and a point is one only
// if every layer can be restored there. It sees no tensor, no file and no clock.
//
// Start reading at Root and Key.Next, then Chain.Find, then Memory.
package kv

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// Sentinels that callers branch on.
var (
	// ErrAbsent says that a tier does not hold a key, or no longer.
	ErrAbsent = errors.New("not in the cache")
	// ErrCorrupt says that what a tier held is not what was put there; the tier
	// has forgotten it.
	ErrCorrupt = errors.New("cached data is damaged")
)

// Key names the bytes of one block: SHA-256 over all that they depend on.
type Key [sha256.Size]byte

// String is the key in hexadecimal, 64 digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads what String wrote.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 2*len(k) {
		return Key{}, fmt.Errorf("key %q has %d digits, want %d", s, len(s), 2*len(k))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return Key{}, fmt.Errorf("key %q: %w", s, err)
	}
	return k, nil
}

// Origin is what all blocks of one engine depend on.
type Origin struct {
	// Model is the digest of the weights and of what describes them.
	Model string
	// Numerics names back end, version and precision: whatever changes bits.
	Numerics string
	// Layout says how the bytes of a block lie, its tokens included.
	Layout string
}

// Root is the key before the first block. extra is what else the prompt
// depends on, such as an adapter; nil for nothing.
func Root(o Origin, extra []byte) Key {
	h := sha256.New()
	for _, part := range [][]byte{[]byte("metalfleet kv 1"), []byte(o.Model), []byte(o.Numerics), []byte(o.Layout), extra} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return Key(h.Sum(nil))
}

// Next is the key of the block that follows k and holds these tokens.
func (k Key) Next(tokens []int32) Key { return k.over(0, tokens) }

// State is the key of what cannot be cut into blocks (recurrent states, rotating
// windows) as it stands after block k and these further tokens, fewer than a
// block and perhaps none.
func (k Key) State(tokens []int32) Key { return k.over(1, tokens) }

func (k Key) over(kind byte, tokens []int32) Key {
	buf := make([]byte, 0, len(k)+1+4*len(tokens))
	buf = append(append(buf, k[:]...), kind)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	return sha256.Sum256(buf)
}

// Saved is what became of a Put.
type Saved int

// What can become of a Put. A tier that answers Queued says later, through its
// counters, whether the bytes were persisted, dropped or failed.
const (
	Dropped Saved = iota
	Queued
	Held
)

// Tier keeps bytes under keys, and may forget any of them at any time. Its
// methods may be called from several goroutines.
type Tier interface {
	// Put offers bytes, which it copies or has written before it answers; it
	// waits no longer than its stated bound.
	Put(key Key, payload []byte) Saved
	// Offer is Put for who must not wait: it waits for nobody and asks no disk. fill
	// writes the n bytes where they will lie; after an error of it nothing is there.
	Offer(key Key, n int64, fill func([]byte) error) (Saved, error)
	// Await returns nil once the tier takes blocks: one whose owner is away takes
	// none.
	Await(ctx context.Context) error
	// Size is how many bytes lie under a key, and ok whether any do.
	Size(key Key) (bytes int64, ok bool)
	// Read fills dst, which has the size of what was put. ErrAbsent, ErrCorrupt.
	Read(ctx context.Context, key Key, dst []byte) error
	// Distrust forgets what was put since the tier was opened: whoever computed it
	// has failed since.
	Distrust()
}
