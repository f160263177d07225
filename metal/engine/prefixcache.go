package engine

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/tensor"
)

const (
	// flushPatience is how long a stopping engine writes its prefix cache to the tier
	// under it.
	flushPatience = 5 * time.Second
	// attachPatience is how long the first requests wait until this engine may read the
	// tier under it: the blocks of an earlier engine there are worth more than that.
	attachPatience = time.Second
	// maxReads are the blocks that are read from the tier under this one at once.
	maxReads = 4
)

// prefixCache keeps blocks of KV of prompts that were computed. Any goroutine may look
// blocks up; the loop alone saves and restores them. A nil prefixCache keeps nothing.
type prefixCache struct {
	shape  kv.Shape
	origin kv.Origin
	ram    *kv.Memory
	// shared are prompts whose beginnings all tenants find, under keys from the root
	// common.
	shared [][]int32
	common kv.Key
	// blockTokens is how many tokens the back end takes at a time, of tokenBytes each.
	blockTokens int
	tokenBytes  int64
	// stateBytes is the size of the state after this many tokens.
	stateBytes func(tokens int) int64
	// extra is the part of the budget that does not depend on requests. Unless lending is
	// set, it is all of it: else the promised KV that no request holds is lent to the
	// prefix cache.
	extra   int64
	lending bool
	// separate is true if requests hold their KV in a device's memory and not in the
	// host's: then nothing of the prefix cache is given back to them.
	separate bool
	// attached is closed once the tier under this one can be read, or was waited for in
	// vain; nil if there is none.
	attached chan struct{}
	// reads are places to read a block of that tier; tenants take turns.
	reads *share.Turns
	// stop ends the writing to that tier, and waits for it.
	stop func()

	hits, misses, queried, restored atomic.Int64
}

// PrefixStatus is the state of the prefix cache; all 0 without one.
type PrefixStatus struct {
	// Bytes of Budget are held, in Blocks.
	Bytes, Budget int64
	Blocks        int
	// Hits began with restored tokens, Misses with none; both count preempted requests
	// again. Of the Queried tokens of all these, Restored ones did not have to be computed.
	Hits, Misses, Queried, Restored int64
	// Saved blocks were stored, Dropped ones had no room, Evicted ones were removed for
	// others.
	Saved, Dropped, Evicted int64
}

// keepsPrefixes reports whether there is a prefix cache.
func (o Options) keepsPrefixes() bool { return o.PrefixCache || o.CacheMemory > 0 }

// newPrefixCache makes the prefix cache of a loaded model. It comes after the first step,
// which shows how wide keys are.
func newPrefixCache(o Options, m *loadedModel, shared [][]int32) *prefixCache {
	origin := kv.Origin{
		Model: o.ModelDigest, Numerics: o.Numerics,
		Layout: fmt.Sprintf("%v, %d tokens at a time of %d bytes, state %d", m.shape, m.blockTokens, m.cache.SliceBytes(1), m.cache.StateBytes(m.input.context)),
	}
	var below kv.Tier
	if o.Below != nil {
		below = o.Below(origin)
	}
	p := &prefixCache{
		shape: m.shape, origin: origin, blockTokens: m.blockTokens, tokenBytes: m.cache.SliceBytes(1), stateBytes: m.cache.StateBytes,
		extra: o.CacheMemory, lending: o.PrefixCache, stop: func() {}, shared: shared, reads: share.NewTurns(maxReads),
		common: kv.Root(origin, kv.Salt{Tenant: "shared/" + o.SharedScope}),
	}
	p.ram = kv.NewMemory(p.budget(m.cacheTokens), below)
	if pinner, ok := o.Backend.(tensor.Pinner); ok && pinner.Apart() {
		p.ram.PageLockBy(pinner.Pin)
		p.separate = true
	}
	if below != nil {
		p.attach(below, cmp.Or(o.attachPatience, attachPatience))
	}
	return p
}

// attach writes to the tier under this one until stop.
func (p *prefixCache) attach(below kv.Tier, patience time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	p.attached = make(chan struct{})
	go func() {
		defer close(done)
		first, given := context.WithTimeout(ctx, patience)
		_ = below.Await(first) // without it nothing is found there
		given()
		close(p.attached)
		p.ram.WriteBack(ctx)
	}()
	p.stop = func() {
		cancel()
		<-done
	}
}

// close writes what is kept to the tier under this one, within flushPatience, and frees
// the memory. No request is left by then. lost is how many blocks could not be written.
func (p *prefixCache) close() (lost int64) {
	if p == nil {
		return 0
	}
	p.stop()
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	p.ram.Close(ctx)
	s := p.ram.Stats()
	return s.Lost + s.Refused
}

func (p *prefixCache) status() PrefixStatus {
	if p == nil {
		return PrefixStatus{}
	}
	s := p.ram.Stats()
	return PrefixStatus{
		Bytes: s.Bytes, Budget: s.Budget, Blocks: s.Blocks, Hits: p.hits.Load(), Misses: p.misses.Load(),
		Queried: p.queried.Load(), Restored: p.restored.Load(),
		Saved: s.Held, Dropped: s.Dropped, Evicted: s.Evicted,
	}
}

// bytes that are held.
func (p *prefixCache) bytes() int64 {
	if p == nil {
		return 0
	}
	return p.ram.Bytes()
}

// clear forgets everything, and returns how many bytes that were.
func (p *prefixCache) clear() int64 {
	if p == nil {
		return 0
	}
	return p.ram.Clear()
}

// budget is what may be held while requests leave this many tokens of the promised KV.
func (p *prefixCache) budget(free int) int64 {
	if !p.lending {
		return p.extra
	}
	return p.extra + int64(free)*p.tokenBytes
}

// resize gives back the promised KV that requests are about to take, before they do, and
// takes what they left: so every byte is promised once. What was just restored is held
// twice until then; there was room for that.
func (p *prefixCache) resize(free int) {
	if !p.separate {
		p.ram.Resize(p.budget(free))
	}
}

// chain returns the keys under which a request finds and saves blocks. Every key is
// salted with the request's tenant, except those of the beginning that the deployment
// shares. A request with a salt of its own, or with an adapter, shares nothing.
func (p *prefixCache) chain(s *sequence) *kv.Chain {
	c := kv.NewChain(p.shape, kv.Root(p.origin, s.prefix.salt))
	images := s.images.keys()
	c.See(images)
	if s.prefix.salt.Extra != "" || s.prefix.salt.Adapter != "" {
		return c
	}
	shared := s.tokens
	if len(images) > 0 { // images are always the tenant's own
		shared = shared[:images[0].From]
	}
	if n := p.sharedTokens(shared); n > 0 {
		c.Share(p.common, n)
	}
	return c
}

// sharedTokens is how many tokens a prompt has in common with one of the shared
// prompts. All of them are stated by the deployment, so that finding them in the
// cache reveals no other request.
func (p *prefixCache) sharedTokens(tokens []int32) int {
	longest := 0
	for _, s := range p.shared {
		n := 0
		for n < min(len(s), len(tokens)) && s[n] == tokens[n] {
			n++
		}
		longest = max(longest, n)
	}
	return longest
}

// lookup returns with how many restored tokens a prompt could begin now, after it read
// blocks of the tier under this one into memory. These blocks are pinned for the sequence
// until it is released.
func (p *prefixCache) lookup(ctx context.Context, s *sequence) (cached int) {
	if p == nil {
		return 0
	}
	if p.attached != nil {
		select {
		case <-p.attached:
		case <-ctx.Done():
		}
	}
	s.prefix.chain = p.chain(s)
	if s.wantsPromptLogprobs() {
		return 0
	}
	defer s.prefix.chain.Forget()
	point := s.prefix.chain.Find(s.tokens, len(s.tokens)-1, func(k kv.Key) bool {
		_, ok := p.ram.Size(k)
		return ok
	})
	for i, key := range s.prefix.chain.Under(s.tokens, point) {
		if err := p.fetch(ctx, s.owner, key, p.sizeUnder(point, i)); err != nil {
			break
		}
		p.pin(s, key)
	}
	return s.prefix.chain.Find(s.tokens, len(s.tokens)-1, p.ram.Has).Tokens
}

// sizeUnder is the size of a block under a point, by its index: full ones come before that of a state.
func (p *prefixCache) sizeUnder(point kv.Point, i int) int64 {
	if i < point.Blocks && !p.shape.Bare {
		return int64(p.shape.Block) * p.tokenBytes
	}
	return int64(point.Tokens%p.shape.Block)*p.tokenBytes + p.stateBytes(point.Tokens)
}

// fetch reads a block of the tier under this one into memory if it is not there.
func (p *prefixCache) fetch(ctx context.Context, tenant string, key kv.Key, bytes int64) error {
	if p.ram.Has(key) {
		return nil
	}
	if err := p.reads.Take(ctx, tenant); err != nil {
		return err
	}
	defer p.reads.Give(tenant)
	return p.ram.Fetch(ctx, key, bytes)
}

// pin keeps a block for a sequence.
func (p *prefixCache) pin(s *sequence, key kv.Key) {
	if h, ok := p.ram.Pin(key); ok {
		s.prefix.pins = append(s.prefix.pins, h)
	}
}

// unpin lets go of all blocks of a sequence.
func (p *prefixCache) unpin(s *sequence) {
	if p != nil {
		p.ram.Unpin(s.prefix.pins)
		s.prefix.pins = nil
	}
}

// release lets go of everything that a sequence has outside the loop; twice does nothing.
func (p *prefixCache) release(s *sequence) {
	s.constraint.Release()
	s.constraint = nil
	s.tools.release()
	s.held.release()
	s.images.release()
	p.unpin(s)
}

// views of the blocks under all keys; ok is false if one is missing.
func (p *prefixCache) views(keys []kv.Key) (views []*kv.View, ok bool) {
	for _, key := range keys {
		v, err := p.ram.View(key)
		if err != nil {
			return views, false
		}
		views = append(views, v)
	}
	return views, true
}

// blockShape returns how a model's prompts are divided into blocks, and in how many tokens
// its cache has to be kept so that blocks are whole ones of it.
func blockShape(spec tensor.CacheSpec, context int) (kv.Shape, int, error) {
	var kept []kv.Kept
	layers := map[tensor.LayerKind]kv.Layer{tensor.Growing: kv.Sliced, tensor.Rotating: kv.Rotating, tensor.Recurring: kv.Recurrent}
	for _, k := range spec.Kept(1) {
		kept = append(kept, kv.Kept{Layer: layers[k.Kind], Window: k.WindowTokens})
	}
	shape, err := kv.ShapeOf(kept, context)
	if err != nil {
		return shape, 0, fmt.Errorf("unsupported layers for the prefix cache: %w", err)
	}
	if shape.Block%spec.BlockTokens == 0 {
		return shape, spec.BlockTokens, nil
	}
	return shape, shape.Block, nil
}
