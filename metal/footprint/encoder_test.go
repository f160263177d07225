//go:build !race

package footprint

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
)

// encoder is all-MiniLM-L6-v2.
var encoder = model.Facts{
	Architecture: "bert", Task: model.Embed, Layers: 6, EncoderLayers: 6, HiddenSize: 384, FeedForwardSize: 1536, QueryHeads: 12, KeyValueHeads: 12,
	HeadSize: 32, VocabularySize: 30522, ContextTokens: 512, KeyValueElementBytes: 4, WeightBytes: 90_000_000,
}

// A pass is as long as the longest text, and its attention scores are
// materialized like a decoder's.
func TestEncoderHasNoKVAndReadsTextsWhole(t *testing.T) {
	decoder := encoder
	decoder.EncoderLayers, decoder.GrowingLayers = 0, 6
	for _, b := range Backends() {
		k := KernelsOf(b)
		for _, tokens := range []int64{1, 100, 512} {
			got, err := PrefillPeak(encoder, k, Prefill{New: tokens, Chunk: 32})
			if err != nil {
				t.Fatal(err)
			}
			whole, err := PrefillPeak(decoder, k, Prefill{New: tokens})
			if err != nil {
				t.Fatal(err)
			}
			layers := max(1, k.LayersAhead)
			ahead := layers / max(1, k.EncoderAhead)              // layers with more operations fill the queue sooner
			gate := tokens * encoder.FeedForwardSize * 4 * layers // which it has not
			if want := (Peak{Attention: whole.Attention, Activations: (whole.Activations - gate) / ahead}); got != want {
				t.Errorf("%s, %d tokens: %+v, want %+v", b, tokens, got, want)
			}
		}
		if strings.HasPrefix(b, MLX) != (k.EncoderAhead == 2) {
			t.Errorf("%s queues %d layers of an encoder", b, k.EncoderAhead)
		}
		short := estimated(t, encoder, Context{Tokens: 64, Sequences: 4, CacheTokens: 256, Backend: b})
		long := estimated(t, encoder, Context{Tokens: 4096, Sequences: 4, CacheTokens: 16384, Backend: b})
		if short.KV != 0 || long.KV != 0 {
			t.Errorf("%s: an encoder is charged for keys and values: %+v, %+v", b, short, long)
		}
		peak, err := PrefillPeak(encoder, k, Prefill{New: 4096})
		if err != nil || long.Transient < peak.Total() {
			t.Errorf("%s: %d bytes are promised for a pass that takes %d (%v)", b, long.Transient, peak.Total(), err)
		}
	}
}
