//go:build !race

package batch

import "testing"

// BenchmarkStep is a whole turn of the scheduler with 64 answers under way and
// as many requests waiting: what "bench serving" measures, too.
func BenchmarkStep(b *testing.B) {
	const rows = 64
	s, err := New(Limits{ContextTokens: 1 << 20, CacheTokens: rows << 20, BlockTokens: 256, Sequences: rows, Queue: rows})
	if err != nil {
		b.Fatal(err)
	}
	for id := range ID(2 * rows) {
		if err := s.Submit(Request{ID: id, Prompt: 16, Priority: int(id % 3)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Admit()
		step := s.Plan(s.ProposeChunks(64)...)
		s.CanPipeline(step)
		for _, r := range step.Rows {
			if err := s.Computed(r); err != nil {
				b.Fatal(err)
			}
			if r.Sample {
				if err := s.Grow(r.ID); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}
