//go:build !race

package weights_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/excerpt"
)

const epsilonKey = "llama.attention.layer_norm_rms_epsilon"

// before is the metadata of a small model, to which a key is to be added.
func before(key string) *raw {
	keys := []string{"block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length"}
	n := len(keys) + 2
	if key != epsilonKey {
		n++
	}
	r := header(0, uint64(n))
	r.str("general.architecture").u32(8).str("llama")
	for _, key := range keys {
		r.str("llama." + key).u32(4).u32(2)
	}
	if key != epsilonKey {
		r.str(epsilonKey).u32(6).u32(0x3727c5ac)
	}
	return r.str(key)
}

// TestAttackMessagesRepeatNoLongValue: what stands in place of a number or a name may be as long
// as a header, and an error about it is made again by each function that adds to it.
func TestAttackMessagesRepeatNoLongValue(t *testing.T) {
	const bytes = 4 << 20
	text := strings.Repeat("\x01", bytes)
	files := map[string]*raw{
		"a long architecture": header(0, 1).str("general.architecture").u32(8).str(text),
		"a quoted one":        header(0, 1).str("general.architecture").u32(8).str(`"` + strings.Repeat("x", bytes) + `"`),
		"a long kind":         before("llama.rope.scaling.type").u32(8).str(text),
	}
	for _, key := range []string{"general.alignment", epsilonKey, "llama.rope.freq_base", "llama.rope.scaling.attn_factor"} {
		r := before(key).u32(9).u32(0).u64(bytes)
		r.WriteString(strings.Repeat("\xff", bytes))
		files["a list in place of "+key] = r
	}
	for name, r := range files {
		t.Run(name, func(t *testing.T) {
			file := r.pad(64).Bytes()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			h, err := read(file)
			if err == nil {
				_, err = h.Facts()
			}
			if err == nil {
				t.Fatal("it is a model")
			}
			said := fmt.Errorf("model: %w", err).Error()
			runtime.ReadMemStats(&after)
			if made := after.TotalAlloc - before.TotalAlloc; made > 2*bytes+bytes/2 || len(said) > excerpt.MessageBytes {
				t.Errorf("%.2f times the bytes of the value are allocated, and the message has %d bytes", float64(made)/bytes, len(said))
			}
		})
	}
}
