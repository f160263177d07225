// Package kv is what an engine remembers of prompts that it computed.
//
// It owns the words that the tiers of the cache share: Key, which says what a
// block is the KV of and of nothing else, and Tier, which keeps bytes under
// keys; where prompts are cut (Shape) and from which points they can go on
// (Chain); and the tier in RAM (Memory), whose room is taken and given back in
// room.go, and made before it is wanted in ahead.go. It refuses to guess: a key
// is made of everything that the bytes depend on, and of the tenant that asked, so
// that a change of weights, numerics, layout, an earlier token or the tenant never
// finds them, and a point is one only
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

// Key names the bytes of one block: SHA-256 over all that they depend on, whose last
// four bytes give way to the tenant.
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

// Salt separates blocks of the same tokens. The zero value is the salt of requests
// without a tenant.
type Salt struct {
	// Tenant whose request computed the blocks. No other tenant finds them.
	Tenant string
	// Extra separates blocks within a tenant.
	Extra string
}

// Root is the key before the first block of prompts with that salt.
func Root(o Origin, s Salt) Key {
	k := Key(digest("metalfleet kv 2", o.Model, o.Numerics, o.Layout, s.Tenant, s.Extra))
	k.mark(TenantOf(s.Tenant))
	return k
}

// digest is the SHA-256 of texts, each after its length.
func digest(texts ...string) [sha256.Size]byte {
	var b []byte
	for _, t := range texts {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(t)))
		b = append(b, t...)
	}
	return sha256.Sum256(b)
}

// Tenant identifies the tenant of a block in its key, so that tiers can give each
// its share without further records. It is 0 for requests without a tenant.
type Tenant uint32

// TenantOf returns the identifier of a tenant. Two tenants with the same one share a
// share and nothing else.
func TenantOf(name string) Tenant {
	if name == "" {
		return 0
	}
	sum := digest("metalfleet tenant", name)
	return Tenant(max(1, binary.LittleEndian.Uint32(sum[:])))
}

// tenantAt is where a key has its tenant; what is before it is a digest.
const tenantAt = sha256.Size - 4

// Tenant returns the tenant of a block.
func (k Key) Tenant() Tenant { return Tenant(binary.LittleEndian.Uint32(k[tenantAt:])) }

func (k *Key) mark(t Tenant) { binary.LittleEndian.PutUint32(k[tenantAt:], uint32(t)) }

// Next is the key of the block that follows k and holds these tokens.
func (k Key) Next(tokens []int32) Key { return k.over(0, tokens) }

// State is the key of what cannot be cut into blocks (recurrent states, rotating
// windows) as it stands after block k and these further tokens, fewer than a
// block and perhaps none.
func (k Key) State(tokens []int32) Key { return k.over(1, tokens) }

// after is the key before the first block of k's own that follows blocks which are
// shared, the last of them with the key parent.
func (k Key) after(parent Key) Key {
	next := Key(sha256.Sum256(append(append(append([]byte(nil), k[:]...), 2), parent[:]...)))
	next.mark(k.Tenant())
	return next
}

func (k Key) over(kind byte, tokens []int32) Key {
	buf := make([]byte, 0, len(k)+1+4*len(tokens))
	buf = append(append(buf, k[:]...), kind)
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(t))
	}
	next := Key(sha256.Sum256(buf))
	next.mark(k.Tenant())
	return next
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
