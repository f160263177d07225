//go:build !race

package weights

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// expansion is a model of two heads whose kv_b_proj has these parts in each layer, by name,
// type, shape and bytes; and maybe others next to it.
func expansion(kind, more string, layers, plain int, parts ...string) (config, header string, data int64) {
	config = small(kind, layers, 2, fmt.Sprintf(`"kv_lora_rank":64,"qk_nope_head_dim":%d,"qk_rope_head_dim":2,"v_head_dim":8,"n_routed_experts":1,"num_experts_per_tok":1,"moe_intermediate_size":1,"first_k_dense_replace":%d%s`, plain, layers, more))
	at := 0
	for i := range layers * len(parts) {
		f := strings.Fields(parts[i%len(parts)])
		var bytes int
		fmt.Sscan(f[3], &bytes)
		header += "," + tensorJSON(fmt.Sprintf("model.layers.%d.self_attn.%s", i/len(parts), f[0]), f[1], f[2], at, at+bytes)
		at += bytes
	}
	return config, strings.TrimPrefix(header, ","), int64(at)
}

// TestAnExpansionThatCannotBeCutIsRefused: what mlx-lm does not load either, and what
// contradicts itself.
func TestAnExpansionThatCannotBeCutIsRefused(t *testing.T) {
	const four = `,"quantization":{"bits":4,"group_size":32}`
	words := func(rows int) string { return fmt.Sprintf("kv_b_proj.weight U32 %d,8 %d", rows, rows*32) }
	scales := func(name string, rows int) string {
		return fmt.Sprintf("kv_b_proj.%s BF16 %d,2 %d", name, rows, rows*4)
	}
	for name, c := range map[string]struct {
		kind, more string
		plain      int
		parts      []string
		want       error
	}{
		"groups longer than rows of keys": {"deepseek_v3", four, 24, []string{words(64), scales("scales", 64), scales("biases", 64)}, ErrUnsupported},
		"small floats":                    {"deepseek_v3", `,"quantization":{"bits":4,"group_size":32,"mode":"mxfp4"}`, 32, []string{words(80), "kv_b_proj.scales U8 80,2 160"}, ErrUnsupported},
		"rows of other heads":             {"deepseek_v3", four, 32, []string{words(64), scales("scales", 64), scales("biases", 64)}, ErrInvalid},
		"no biases":                       {"deepseek_v2", four, 32, []string{words(80), scales("scales", 80)}, ErrMissing},
		"a dense model":                   {"deepseek_v2", "", 32, []string{words(80), scales("scales", 80), scales("biases", 80)}, ErrInvalid},
		"other bits in config.json":       {"deepseek_v2", `,"quantization":{"bits":4,"group_size":32,"model.layers.0.self_attn.kv_b_proj":{"bits":8,"group_size":32}}`, 32, []string{words(80), scales("scales", 80), scales("biases", 80)}, ErrInvalid},
		"keys that are also apart":        {"deepseek_v2", four, 32, []string{words(80), scales("scales", 80), scales("biases", 80), "embed_q.weight BF16 2,64,32 8192"}, ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			config, header, data := expansion(c.kind, c.more, 1, c.plain, c.parts...)
			_, err := Open(sparseFolder(t, config, header, data))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "kv_b_proj") {
				t.Errorf("error %v, want %v of kv_b_proj", err, c.want)
			}
		})
	}
}

// TestAQuantisedExpansionCountsAsItIsKept: keys as numbers where mlx-lm multiplies by the
// matrix as it is, in as many bits as before where it quantises them again. Nothing but
// the header is read.
func TestAQuantisedExpansionCountsAsItIsKept(t *testing.T) {
	const layers, heads, plain, value, rank = 8, 2, 32, 8, 64
	packed := func(elements int64) int64 { return elements/2 + 2*2*elements/32 }
	for kind, want := range map[string]int64{"deepseek_v2": 2 * layers * heads * plain * rank, "deepseek_v3": packed(layers * heads * plain * rank)} {
		config, header, data := expansion(kind, `,"quantization":{"bits":4,"group_size":32}`, layers, plain,
			"kv_b_proj.weight U32 80,8 2560", "kv_b_proj.scales BF16 80,2 320", "kv_b_proj.biases BF16 80,2 320")
		d, err := dimensionsOf(config)
		if err != nil {
			t.Fatal(err)
		}
		slots, err := d.Slots(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		others := int64(0)
		for _, s := range slots {
			if !strings.Contains(s.Path, ".embed_q.") && !strings.Contains(s.Path, ".unembed_out.") {
				n := elementsOf(s.Shape)
				header += "," + tensorJSON(s.Path, "BF16", strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Shape), " ", ","), "[]"), int(data), int(data+2*n))
				data, others = data+2*n, others+2*n
			}
		}
		f, err := Open(sparseFolder(t, config, header, data))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		defer f.Close()
		facts, err := f.Facts()
		if want += others + packed(layers*heads*value*rank); err != nil || facts.WeightBytes != want || facts.KeyValueElementBytes != 2 {
			t.Errorf("%s: facts %+v (%v), want weights of %d bytes", kind, facts, err, want)
		}
		keys, _ := f.Entry("model.layers.0.self_attn.embed_q.weight")
		made, remade := keys.Made()
		if keys.Format != quant.AffineOf(4, 32, quant.BFloat16) || keys.Bytes != packed(heads*plain*rank) || !remade || made.Quantized() != (kind == "deepseek_v3") || !keys.Turned() {
			t.Errorf("%s: keys are kept as %v (%v), of %+v", kind, made, remade, keys)
		}
	}
}
