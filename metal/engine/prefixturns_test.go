package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/metal/share"
)

// gatedTier reads a block each time that its gate lets one pass.
type gatedTier struct {
	*kvtest.Fake
	gate  chan struct{}
	reads atomic.Int64
}

func (g *gatedTier) Read(ctx context.Context, k kv.Key, dst []byte) error {
	select {
	case <-g.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	g.reads.Add(1)
	return g.Fake.Read(ctx, k, dst)
}

// However many long prefixes a tenant has on disk, it reads a few blocks of them for each one of
// another tenant.
func TestPrefixesOnDiskAreReadInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const block, blocks, requests = 16, 4, 32
		tier := &gatedTier{Fake: kvtest.NewFake(), gate: make(chan struct{})}
		p := &prefixCache{shape: kv.Shape{Block: block}, tokenBytes: 4, ram: kv.NewMemory(1<<30, tier), reads: share.NewTurns(maxReads)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := map[string]*atomic.Int64{"hog": {}, "victim": {}}
		look := func(tenant string, seed int32) {
			s := &sequence{owner: tenant, tokens: make([]int32, blocks*block+1), prefix: prefixState{salt: kv.Salt{Tenant: tenant}}}
			s.tokens[0] = seed
			chain := p.chain(s)
			chain.Grow(s.tokens)
			for _, key := range chain.Keys() {
				tier.Put(key, make([]byte, 64))
			}
			go func() {
				if n := p.lookup(ctx, s); n != blocks*block && ctx.Err() == nil {
					t.Errorf("%s: %d tokens are cached", tenant, n)
				}
				p.unpin(s)
				ended[tenant].Add(1)
			}()
			synctest.Wait()
		}
		for i := range int32(requests) {
			look("hog", i)
		}
		look("victim", 0)
		for ended["victim"].Load() == 0 {
			tier.gate <- struct{}{}
			synctest.Wait()
		}
		if n := tier.reads.Load() - blocks; n > 2*maxReads*blocks {
			t.Errorf("%d blocks of one tenant were read before the %d of another", n, blocks)
		}
		cancel()
		synctest.Wait()
		if n := ended["hog"].Load(); n != requests || p.reads.Free() != maxReads {
			t.Errorf("%d of %d requests ended, and %d of %d places are free", n, requests, p.reads.Free(), maxReads)
		}
		p.ram.Close(t.Context())
	})
}
