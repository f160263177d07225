//go:build !race

package engine_test

import (
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// countedTier counts what is asked of a tier.
type countedTier struct {
	*kvtest.Fake
	asked *atomic.Int64
}

func (c countedTier) Size(k kv.Key) (int64, bool) {
	c.asked.Add(1)
	return c.Fake.Size(k)
}

// A request for which the queue has no place is refused before its prompt is looked up on the disk.
func TestARequestWithoutAPlaceIsNotLookedUp(t *testing.T) {
	below := countedTier{kvtest.NewFake(), new(atomic.Int64)}
	e := ready(t, engine.Options{ModelPath: model(t, tinymodel.Default()), Sequences: 1, Queue: 1, CacheMemory: 1 << 20, ModelDigest: "sha256:aa",
		Below: func(kv.Origin) kv.Tier { return below }}, ref.Options{})
	e.SetLimits(guard.Limits{Sequence: 1, PausePrefill: true}) // all requests wait
	for seed := range uint64(2) {
		s, err := e.Generate(t.Context(), engine.Request{Tokens: tokensOf(seed, 300, 400), MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
	}
	asked := below.asked.Load()
	if _, err := e.Generate(t.Context(), engine.Request{Tokens: tokensOf(3, 300, 400), MaxTokens: 1}); !isKind(err, engine.QueueFull) {
		t.Errorf("a request too many: %v", err)
	}
	if n := below.asked.Load(); asked == 0 || n != asked {
		t.Errorf("the disk was asked %d times for a request that is refused, and %d times for two others", n-asked, asked)
	}
}
