package arch_test

import (
	"testing"

	"metalfleet.dev/metalfleet/hack/tinymodel"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// TestP12AStepTakesWhatItsFootprintSays holds the arithmetic of every family
// against what ref counts while it computes a prompt: no more than the
// estimate, and no less than half of it.
func TestP12AStepTakesWhatItsFootprintSays(t *testing.T) {
	const length = 128
	for _, family := range []tinymodel.Family{tinymodel.Llama, tinymodel.Qwen2, tinymodel.Qwen3, tinymodel.Qwen3MoE, tinymodel.Gemma3, tinymodel.GPTOSS} {
		t.Run(string(family), func(t *testing.T) {
			c := ofFamily(family)
			c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 256, 512, 8, 4, 32
			if family == tinymodel.Qwen3MoE {
				c.Experts.FeedForward = 256
			}
			if family == tinymodel.GPTOSS {
				c.FeedForward, c.Experts.FeedForward = 256, 256
			}
			path := write(t, c)
			f, err := weights.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			facts, err := f.Facts()
			if err != nil {
				t.Fatal(err)
			}
			want, err := footprint.PrefillPeak(facts, footprint.KernelsOf(footprint.Ref), footprint.Prefill{New: length})
			if err != nil {
				t.Fatal(err)
			}
			b := ref.New(ref.Options{Threads: 2})
			n := loadOn(t, path, b)
			before := b.Memory().Active()
			if _, err := n.step(tokens(length, n.vocab), []tensor.Segment{{Request: 1, Length: length}}, []int{length - 1}); err != nil {
				t.Fatal(err)
			}
			kv := b.Memory().KV
			n.cache.Drop(1)
			if kv != want.KV {
				t.Errorf("keys and values take %d bytes, the estimate says %d", kv, want.KV)
			}
			got, step := b.Peak()-before-kv, want.Total()-want.KV
			if got > step || got < step/2 {
				t.Errorf("a step takes %d bytes, the estimate says %d", got, step)
			}
			t.Logf("a step takes %d bytes, %.2f of the estimate", got, float64(got)/float64(step))
		})
	}
}
