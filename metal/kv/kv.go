// Package kv is the prefix cache: it keeps the keys and values of prompts that were
// computed, for reuse by later prompts with the same beginning.
//
// It defines what the tiers of the cache share: Key identifies a block, Tier stores
// bytes under keys, Shape divides prompts into blocks, and Chain finds the point
// from which a prompt can continue. Memory is the tier in RAM: view.go has reads and
// pins, writeback.go the lower tier, mapping.go its memory, and ahead.go mappings
// made in advance.
//
// A key depends on everything that the bytes depend on, and on the tenant of the
// request: after a change of weights, numerics, layout, an earlier token or the
// tenant a block is never found. A sequence only continues from a point at which
// every layer can be restored. The package sees no tensors, files or clocks.
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

// Errors that callers test for.
var (
	// ErrAbsent means that a tier does not hold a key, or no longer does.
	ErrAbsent = errors.New("not in the cache")
	// ErrCorrupt means that stored bytes differ from what was put; the tier has
	// forgotten the block.
	ErrCorrupt = errors.New("cached data is damaged")
)

// Key identifies the bytes of one block: a SHA-256 digest of everything they
// depend on, whose last four bytes are replaced by the tenant.
type Key [sha256.Size]byte

// String is the key in hexadecimal, 64 digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey parses the output of String.
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

// Origin identifies everything that all blocks of one engine depend on.
type Origin struct {
	// Model identifies the weights, the model's configuration and the engines that share blocks. All
	// that have the text before its last slash in common share the disk as one model.
	Model string
	// Numerics identifies backend, version and precision: everything that
	// affects the bits of a result.
	Numerics string
	// Layout identifies the format of a block's bytes, including its number of
	// tokens.
	Layout string
}

// Salt separates blocks of the same tokens. The zero value is the salt of requests
// without a tenant.
type Salt struct {
	// Tenant whose request computed the blocks. No other tenant finds them.
	Tenant string
	// Extra separates blocks within a tenant.
	Extra string
	// Adapter identifies what changes the weights; empty means nothing.
	Adapter string
}

// Root is the key before the first block of all prompts with this salt.
func Root(o Origin, s Salt) Key {
	texts := []string{"metalfleet kv 2", o.Model, o.Numerics, o.Layout, s.Tenant, s.Extra}
	if s.Adapter != "" {
		texts = append(texts, s.Adapter)
	}
	k := Key(digest(texts...))
	k.mark(TenantOf(s.Tenant))
	return k
}

// digest is the SHA-256 of length-prefixed texts.
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

// TenantOf returns the identifier of a tenant. Tenants with equal identifiers
// share one memory share, but never each other's blocks.
func TenantOf(name string) Tenant {
	if name == "" {
		return 0
	}
	sum := digest("metalfleet tenant", name)
	return Tenant(max(1, binary.LittleEndian.Uint32(sum[:])))
}

// tenantAt is the offset of the tenant in a key; the bytes before it are a
// digest.
const tenantAt = sha256.Size - 4

// Tenant returns the tenant of a block.
func (k Key) Tenant() Tenant { return Tenant(binary.LittleEndian.Uint32(k[tenantAt:])) }

func (k *Key) mark(t Tenant) { binary.LittleEndian.PutUint32(k[tenantAt:], uint32(t)) }

// Next is the key of the block with these tokens that follows k.
func (k Key) Next(tokens []int32) Key { return k.over(0, tokens) }

// State is the key of undividable state (of recurrent layers and rotating
// windows) after block k and these further tokens, which are less than a block.
func (k Key) State(tokens []int32) Key { return k.over(1, tokens) }

// after is the key before the first unshared block, which follows shared blocks
// that end with the key parent.
func (k Key) after(parent Key) Key {
	next := Key(sha256.Sum256(append(append(append([]byte(nil), k[:]...), 2), parent[:]...)))
	next.mark(k.Tenant())
	return next
}

// image is the key before a block with tokens of an image.
func (k Key) image(m Image) Key {
	b := append(append(append([]byte(nil), k[:]...), 3), m.Digest[:]...)
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, uint64(m.From)), uint64(m.To))
	next := Key(sha256.Sum256(b))
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

// Saved is the result of a Put.
type Saved int

// Results of a Put. A tier that returns Queued later reports in its counters
// whether the block was persisted, dropped or failed.
const (
	Dropped Saved = iota
	Queued
	Held
)

// Tier stores bytes under keys, and may forget any of them at any time. Its
// methods are safe for concurrent use.
type Tier interface {
	// Put stores a copy of payload. It waits no longer than a documented bound.
	Put(key Key, payload []byte) Saved
	// Offer is Put for callers that must not wait for other goroutines or the
	// disk. fill writes the n bytes in place; if it fails, nothing is stored.
	Offer(key Key, n int64, fill func([]byte) error) (Saved, error)
	// Await returns nil once the tier accepts blocks. A disk tier without an
	// owner accepts none.
	Await(ctx context.Context) error
	// Size returns the size of a block; ok is false if it is absent.
	Size(key Key) (bytes int64, ok bool)
	// Read fills dst, which must have the size of the block. It returns
	// ErrAbsent or ErrCorrupt.
	Read(ctx context.Context, key Key, dst []byte) error
	// Distrust forgets everything that was put since the tier was opened,
	// because the device that computed it has failed.
	Distrust()
}
