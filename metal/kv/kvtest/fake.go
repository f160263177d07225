package kvtest

import (
	"context"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/metal/kv"
)

// Fake is a tier that keeps everything unless a test makes it fail. It is for
// tests of the users of a tier and of the tiers above it.
type Fake struct {
	mu sync.Mutex
	// mu guards all fields that follow.
	held    map[kv.Key][]byte
	puts    []kv.Key
	full    bool
	corrupt map[kv.Key]bool
	gate    chan struct{}
	away    chan struct{}
}

// NewFake returns an empty Fake.
func NewFake() *Fake { return &Fake{held: map[kv.Key][]byte{}, corrupt: map[kv.Key]bool{}} }

// Fill makes Put drop blocks while full is set.
func (f *Fake) Fill(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

// Damage makes the next Read of a key return ErrCorrupt.
func (f *Fake) Damage(key kv.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.corrupt[key] = true
}

// Block makes Put wait until open is called.
func (f *Fake) Block() (open func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		f.gate = nil
		f.mu.Unlock()
		close(gate)
	})
}

// Puts lists the keys that were put, in order.
func (f *Fake) Puts() []kv.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.puts)
}

// Forget drops a key.
func (f *Fake) Forget(key kv.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.held, key)
}

// Put implements kv.Tier.
func (f *Fake) Put(key kv.Key, payload []byte) kv.Saved {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.take(key, slices.Clone(payload))
}

// take stores a block. The caller holds mu.
func (f *Fake) take(key kv.Key, payload []byte) kv.Saved {
	f.puts = append(f.puts, key)
	if f.full {
		return kv.Dropped
	}
	f.held[key] = payload
	return kv.Held
}

// Offer implements kv.Tier.
func (f *Fake) Offer(key kv.Key, n int64, fill func([]byte) error) (kv.Saved, error) {
	payload := make([]byte, n)
	if err := fill(payload); err != nil {
		return kv.Dropped, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.take(key, payload), nil
}

// Leave makes Await wait, as if the owner were away, until back is called.
func (f *Fake) Leave() (back func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = make(chan struct{})
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(f.away)
		f.away = nil
	})
}

// Await implements kv.Tier.
func (f *Fake) Await(ctx context.Context) error {
	f.mu.Lock()
	away := f.away
	f.mu.Unlock()
	if away == nil {
		return ctx.Err()
	}
	select {
	case <-away:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Distrust implements kv.Tier: it forgets everything.
func (f *Fake) Distrust() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.held)
}

// Size implements kv.Tier.
func (f *Fake) Size(key kv.Key) (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.held[key]
	return int64(len(p)), ok
}

// Read implements kv.Tier.
func (f *Fake) Read(ctx context.Context, key kv.Key, dst []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.held[key]
	if !ok {
		return kv.ErrAbsent
	}
	if f.corrupt[key] {
		delete(f.held, key)
		delete(f.corrupt, key)
		return kv.ErrCorrupt
	}
	copy(dst, p)
	return nil
}
