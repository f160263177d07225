//go:build !race

package engine_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/guard"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
)

// While the chunks of a long prompt are cut because memory is short, a shorter one of another tenant has
// every second step.
func TestACutPromptLetsAShorterOnePass(t *testing.T) {
	b := &believed{}
	b.cost.Store(1 << 20) // a chunk of 128 takes 128 MiB
	e := ready(t, engine.WithEstimator(engine.Options{ModelPath: deep(t, 2), ContextTokens: 4096, CacheTokens: 16384, Sequences: 4}, b), ref.Options{})
	publish := publisher(e)
	publish(guard.Limits{Memory: 256 << 20})
	tight := false
	b.called = func(p footprint.Prefill) {
		if !tight && p.Cached > 0 {
			tight = true
			m := e.Status().Memory
			publish(guard.Limits{Memory: 256 << 20, Footprint: m.Active() + m.Pooled + 190<<20})
		}
	}
	first, second := long(2000), long(60)
	first.Tenant, second.Tenant, second.MaxTokens = "a", "b", 1
	a, err := e.Generate(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first chunks", func() bool { return e.Status().Guard.Throttled > 0 })
	before := e.Status().Steps
	if got := ask(t, e, second); got.finished.Err != nil {
		t.Errorf("the shorter prompt ended with %v", got.finished.Err)
	}
	if steps := e.Status().Steps - before; steps > 20 {
		t.Errorf("a prompt of 60 tokens takes %d steps next to a longer one whose chunks are cut", steps)
	}
	if got := collect(t, a); got.finished.Err != nil {
		t.Errorf("the longer prompt ended with %v", got.finished.Err)
	}
}
