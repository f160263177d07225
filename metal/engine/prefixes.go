package engine

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// flushPatience is how long a stopping engine writes down what it remembers.
const flushPatience = 5 * time.Second

// attachPatience is how long the first requests wait for the tier below to be
// given to this engine: what an earlier engine left there is worth more than that.
const attachPatience = time.Second

// prefixes is what an engine remembers of the prompts that it computed. Any
// goroutine may look; the loop alone saves and restores.
type prefixes struct {
	shape  kv.Shape
	origin kv.Origin
	ram    *kv.Memory
	// shared are the prompts whose beginnings all tenants find, with keys from the
	// root common.
	shared [][]int32
	common kv.Key
	// blockTokens is how many tokens the back end takes at a time, of tokenBytes.
	blockTokens int
	tokenBytes  int64
	// extra is the part of the budget that does not depend on requests.
	extra int64
	// apart says that requests hold their KV in a device's memory, which is not the
	// host's: what they take of it is not taken from what is remembered.
	apart bool
	// attached is closed once the tier below can be asked, or was waited for in
	// vain; nil where there is none.
	attached chan struct{}
	// stop ends the writing to the tier below, and waits for it.
	stop func()

	hits, misses, queried, restored atomic.Int64
}

// PrefixStatus is what an engine remembers of prompts; all 0 where it does not.
type PrefixStatus struct {
	// Bytes of Budget are held, in Blocks.
	Bytes, Budget int64
	Blocks        int
	// Hits began with restored tokens, Misses with none; both count again what was
	// preempted. Of Queried tokens, those of these requests, Restored ones did not
	// have to be computed.
	Hits, Misses, Queried, Restored int64
	// Saved blocks were taken in, Dropped ones had no room, Evicted ones left for
	// others.
	Saved, Dropped, Evicted int64
}

func (p *prefixes) status() PrefixStatus {
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
func (p *prefixes) bytes() int64 {
	if p == nil {
		return 0
	}
	return p.ram.Bytes()
}

// remembers reports whether what was computed of prompts is to be kept.
func (o Options) remembers() bool { return o.PrefixCache || o.CacheMemory > 0 }

// budget is what may be held beside requests that leave so many tokens of the
// KV promised.
func (o Options) budget(p *prefixes, free int) int64 {
	if !o.PrefixCache {
		return p.extra
	}
	return p.extra + int64(free)*p.tokenBytes
}

// makeWay gives back what requests are about to take of the KV promised, before
// they do, and takes what they left: so every byte is promised once. What was
// just restored lies twice until here; there was room for that (roomToRestore).
func (l *looping) makeWay() {
	if p := l.prefixes; p != nil && !p.apart {
		p.ram.Resize(l.e.opts.budget(p, l.sched.FreeTokens()))
	}
}

// mostPrepared blocks are made room for ahead, and soon is how many tokens before
// an answer fills one.
const (
	mostPrepared = 8
	soon         = 32
)

// prepare has room made for the blocks that requests are about to fill, while a step
// is computed.
func (l *looping) prepare() {
	p := l.prefixes
	if p == nil || p.shape.Bare {
		return
	}
	count, block := 0, p.shape.Block
	for _, a := range l.active {
		if a.began && !a.mute {
			count += max(0, max(a.prompt, l.sched.InKV(a.id)+soon)/block-a.saved)
		}
	}
	p.ram.Prepare(l.model.cache.SliceBytes(block), min(count, mostPrepared))
}

// cutAt is where a model's prompts are cut, and in how many tokens its cache has
// to be kept so that blocks are whole ones of it.
func cutAt(spec tensor.CacheSpec, context int) (kv.Shape, int, error) {
	var kept []kv.Kept
	kinds := map[tensor.LayerKind]kv.Layer{tensor.Growing: kv.Sliced, tensor.Rotating: kv.Rotating, tensor.Recurring: kv.Recurrent}
	for _, k := range spec.Kept(1) {
		kept = append(kept, kv.Kept{Layer: kinds[k.Kind], Window: k.WindowTokens})
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

// remember makes a loaded model remember its prompts, if it is to. It comes
// after the first step, which says how wide keys are.
func (e *Engine) remember(m *loadedModel) {
	if !e.opts.remembers() || m.cache == nil {
		return
	}
	origin := kv.Origin{
		Model: e.opts.ModelDigest, Numerics: e.opts.Numerics,
		Layout: fmt.Sprintf("%v, %d tokens at a time of %d bytes, state %d", m.shape, m.blockTokens, m.cache.SliceBytes(1), m.cache.StateBytes(m.serving.context)),
	}
	var below kv.Tier
	if e.opts.Below != nil {
		below = e.opts.Below(origin)
	}
	p := &prefixes{
		shape: m.shape, origin: origin, blockTokens: m.blockTokens, tokenBytes: m.cache.SliceBytes(1),
		extra: e.opts.CacheMemory, stop: func() {},
	}
	p.common = kv.Root(origin, kv.Salt{Tenant: "shared/" + e.opts.SharedScope})
	p.shared = e.sharedPrompts(m.serving)
	p.ram = kv.NewMemory(e.opts.budget(p, m.cacheTokens), below)
	if pinner, ok := e.opts.Backend.(tensor.Pinner); ok && pinner.Apart() {
		p.ram.PinBy(pinner.Pin)
		p.apart = true
	}
	if below != nil {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		p.attached = make(chan struct{})
		go func() {
			defer close(done)
			first, given := context.WithTimeout(ctx, cmp.Or(e.opts.attachPatience, attachPatience))
			_ = below.Await(first) // without it nothing is found there
			given()
			close(p.attached)
			p.ram.Behind(ctx)
		}()
		p.stop = func() {
			cancel()
			<-done
		}
	}
	e.prefixes.Store(p)
	e.limits.again(e.applyLimits)
	e.log.Info("prefix cache enabled", "bytes", p.ram.Stats().Budget, "blockTokens", p.shape.Block)
}

// closePrefixes writes down what is remembered, within its bound, and gives its
// memory back. No request is left by then.
func (e *Engine) closePrefixes() {
	p := e.prefixes.Load()
	if p == nil {
		return
	}
	p.stop()
	ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
	defer cancel()
	p.ram.Close(ctx)
	if s := p.ram.Stats(); s.Lost+s.Refused > 0 {
		e.log.Warn("parts of the prefix cache could not be saved", "blocks", s.Lost+s.Refused)
	}
}

// recall says with how many tokens restored a prompt could begin now, after it
// brought what lies below into memory. Its request counts on these blocks from
// now on: whoever refuses it lets go of them.
func (e *Engine) recall(ctx context.Context, a *active) int {
	p := e.prefixes.Load()
	if p == nil {
		return 0
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.hard, cancel)()
	if p.attached != nil {
		select {
		case <-p.attached:
		case <-ctx.Done():
		}
	}
	a.chain = p.chain(a)
	if a.ranking() {
		return 0
	}
	point := a.chain.Find(a.tokens, len(a.tokens)-1, func(k kv.Key) bool {
		_, ok := p.ram.Size(k)
		return ok
	})
	for _, key := range a.chain.Under(a.tokens, point) {
		if err := p.ram.Fetch(ctx, key); err != nil {
			break
		}
		if h, ok := p.ram.Hold(key); ok {
			a.holds = append(a.holds, h)
		}
	}
	return a.chain.Find(a.tokens, len(a.tokens)-1, p.ram.Has).Tokens
}

// letGo ends what a request counts on.
func (e *Engine) letGo(a *active) {
	a.constraint.finish()
	a.constraint = nil
	if p := e.prefixes.Load(); p != nil {
		p.ram.Unhold(a.holds)
		a.holds = nil
	}
}

// Forget returns what is remembered of prompts to the system, and what the back
// end keeps pooled, between two steps, and says how many bytes that were:
// measured, never negative.
func (e *Engine) Forget(ctx context.Context) (int64, error) {
	var n int64
	var failed error
	_, err := e.between(ctx, func(serves) {
		if p := e.prefixes.Load(); p != nil {
			n = p.ram.Clear()
		}
		var pooled int64
		pooled, failed = e.reclaim()
		n += pooled
	})
	if err != nil {
		return 0, err
	}
	return n, failed
}
