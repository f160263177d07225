package arch_test

import (
	"context"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// For one long text as for several short ones: at most the estimate, at least
// half of it.
func TestEncoderPassTakesItsEstimatedFootprint(t *testing.T) {
	for _, r := range tinymodel.Readers() {
		if r.Family == "qwen3" || r.Type != quant.Float32 {
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			if err := r.Write(dir); err != nil {
				t.Fatal(err)
			}
			f, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			facts, err := f.Facts()
			if err != nil {
				t.Fatal(err)
			}
			b := ref.New(ref.Options{Threads: 2})
			m, err := arch.LoadEncoder(context.Background(), b, f, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Release()
			const length = 64
			want, err := footprint.PrefillPeak(facts, footprint.KernelsOf(footprint.Ref), footprint.Prefill{New: length, Chunk: 8})
			if err != nil || want.KV != 0 || want.Growth != 0 || want.Logits != 0 {
				t.Fatalf("estimate %+v, %v", want, err)
			}
			before := b.Memory().Active()
			for _, n := range []int{1, 4} {
				in := nn.Texts{IDs: tokens(length, f.Dim.Vocabulary), Types: make([]int32, length)}
				for i := range n {
					in.Segments = append(in.Segments, tensor.Segment{Request: tensor.RequestID(i), Length: length / n})
				}
				s := b.NewScope(context.Background())
				m.Hidden(s, in)
				if err := s.Err(); err != nil {
					t.Fatal(err)
				}
				s.Close()
				if got := b.Peak() - before; got > want.Total() || got < want.Total()/2 {
					t.Errorf("%d texts take %d bytes, the estimate says %d", n, got, want.Total())
				}
			}
		})
	}
}

// all measures a step whose tokens all have logits.
func all(t *testing.T, path string, facts model.Facts, length int) {
	t.Helper()
	want, err := footprint.PrefillPeak(facts, footprint.KernelsOf(footprint.Ref), footprint.Prefill{New: int64(length), AllLogits: true})
	if err != nil {
		t.Fatal(err)
	}
	b := ref.New(ref.Options{Threads: 2})
	n := loadOn(t, path, b)
	rows := make([]int, length)
	for i := range rows {
		rows[i] = i
	}
	before := b.Memory().Active()
	if _, err := n.step(tokens(length, n.vocab), []tensor.Segment{{Request: 1, Length: length}}, rows); err != nil {
		t.Fatal(err)
	}
	n.cache.Drop(1)
	// A copy on the host is no memory of the back end.
	host := int64(4*length) * facts.VocabularySize
	if got := b.Peak() - before + host; got > want.Total() || got < want.Total()/2 {
		t.Errorf("a step with all logits takes %d bytes, the estimate says %d", got, want.Total())
	}
}

// For every model family on ref: at most the estimate, at least half of it.
func TestStepTakesItsEstimatedFootprint(t *testing.T) {
	const length = 128
	for _, family := range families() {
		t.Run(string(family), func(t *testing.T) {
			c := ofFamily(family)
			c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 256, 512, 8, 4, 32
			switch family {
			case tinymodel.Qwen3MoE:
				c.Experts.FeedForward = 256
			case tinymodel.Qwen3Next:
				c.Experts.FeedForward, c.Experts.Shared = 256, 256
				c.Hybrid.KeyHeads, c.Hybrid.KeySize, c.Hybrid.ValueHeads, c.Hybrid.ValueSize = 4, 32, 8, 64
			case tinymodel.Qwen35:
				c.Hybrid.KeyHeads, c.Hybrid.KeySize, c.Hybrid.ValueHeads, c.Hybrid.ValueSize = 4, 64, 8, 64
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
			all(t, path, facts, length)
		})
	}
}
