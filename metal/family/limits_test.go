//go:build !race

package family_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/family"
)

// repeated is a list of n values.
func repeated(n int, value func(i int) any) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = value(i)
	}
	return out
}

// whole is a number of JSON.
func whole(n int) json.Number { return json.Number(fmt.Sprint(n)) }

// manyKeys is an object of n members that mean nothing, next to those of another.
func manyKeys(n int, value any, members map[string]any) map[string]any {
	for i := range n {
		members[fmt.Sprintf("other%d", i)] = value
	}
	return members
}

// TestAttackNumbersOfAConfigurationTakeLittleMemory: numbers and lists of a configuration
// are bounded before something is computed for each layer or each value.
func TestAttackNumbersOfAConfigurationTakeLittleMemory(t *testing.T) {
	const layers, values = 1 << 12, 200_000
	large := func(name string) map[string]any {
		c := configOf(t, name)
		c["num_hidden_layers"] = whole(layers)
		return c
	}
	step := func(changes map[string]any) map[string]any {
		c := large("step3p5")
		c["head_dim"], c["attention_other_setting"] = whole(layers), nil
		for _, key := range []string{"layer_types", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared"} {
			delete(c, key)
		}
		c["rope_theta"] = whole(10000)
		for key, v := range changes {
			c[key] = v
		}
		return c
	}
	scaled := map[string]any{"rope_type": "llama3", "factor": whole(2)}
	mixture, hybrid, odd := large("qwen2_moe"), configOf(t, "nemotron_h"), large("starcoder2")
	mixture["mlp_only_layers"] = repeated(values, func(i int) any { return whole(i % layers) })
	delete(hybrid, "hybrid_override_pattern")
	delete(hybrid, "num_hidden_layers")
	full, chunked, sparse := configOf(t, "minimax_m2"), configOf(t, "llama4_text"), configOf(t, "gemma3n_text")
	full["attn_type_list"] = repeated(values, func(int) any { return whole(0) })
	chunked["moe_layers"] = repeated(values, func(int) any { return whole(layers) })
	sparse["activation_sparsity_pattern"] = repeated(values, func(int) any { return "0" })
	hybrid["layers_block_type"] = repeated(values, func(int) any { return "mamba" })
	for name, c := range map[string]struct {
		config map[string]any
		want   error
		most   uint64 // MiB that are allocated, also what is freed meanwhile
	}{
		"a rotation for each layer":       {step(map[string]any{"rope_scaling": scaled}), nil, 8},
		"another rotation for each layer": {step(map[string]any{"rope_theta": repeated(layers, func(i int) any { return whole(i + 2) })}), family.ErrUnsupported, 8},
		"keys of a rotation":              {step(map[string]any{"rope_scaling": manyKeys(values, nil, map[string]any{"rope_type": "default"})}), nil, 8},
		"mixtures that are none":          {step(map[string]any{"moe_layers_enum": strings.Repeat(",", 1<<20)}), family.ErrInvalid, 4},
		"mixtures past the last layer":    {step(map[string]any{"moe_layers_enum": strings.Repeat("5000,", values) + "1"}), nil, 4},
		"dense layers, again and again":   {mixture, nil, 1},
		"layers of another attention":     {full, family.ErrUnsupported, 1},
		"mixtures that no layer is":       {chunked, family.ErrInvalid, 1},
		"sparsities that are no numbers":  {sparse, family.ErrInvalid, 1},
		"layers of a hybrid":              {hybrid, family.ErrInvalid, 4},
		"keys that no family reads":       {manyKeys(values, whole(1), odd), nil, 32},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			d, err := family.NewConfig(c.config).Dimensions()
			runtime.ReadMemStats(&after)
			if c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if n := len(d.Experts.Dense); n > layers {
				t.Errorf("%d dense layers of %d", n, layers)
			}
			if made := after.TotalAlloc - before.TotalAlloc; made > c.most<<20 {
				t.Errorf("%d KiB are allocated, want at most %d", made>>10, c.most<<10)
			}
		})
	}
}

// TestLayersThatTensorsCannotFillAreNotListed, however many tensors each would have.
func TestLayersThatTensorsCannotFillAreNotListed(t *testing.T) {
	d, err := family.NewConfig(configOf(t, "gemma3n_text")).Dimensions()
	if err != nil {
		t.Fatal(err)
	}
	d.Layers = 1 << 12
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = d.Slots(1 << 12)
	runtime.ReadMemStats(&after)
	if made := (after.TotalAlloc - before.TotalAlloc) >> 10; !errors.Is(err, family.ErrInvalid) || made > 16<<10 {
		t.Errorf("%d KiB are allocated, error %v", made, err)
	}
}

// TestAttackListsOfMetadata: a list with a number for each layer is no longer than the layers.
func TestAttackListsOfMetadata(t *testing.T) {
	list := make([]int32, 1<<20) // 4 MiB
	for i := range list {
		list[i] = int32(i)
	}
	for name, layers := range map[string]int64{"more numbers than layers": 2, "as many layers": 1 << 20} {
		k := keys{"llama", map[string]any{"llama.attention.head_count_kv": list, "llama.feed_forward_length": list, "llama.block_count": layers}, map[string]bool{}}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := family.OfMetadata(k)
		runtime.ReadMemStats(&after)
		if made := (after.TotalAlloc - before.TotalAlloc) >> 10; !errors.Is(err, family.ErrInvalid) || made > 1<<10 {
			t.Errorf("%s: %d KiB are allocated, error %v", name, made, err)
		}
	}
}

// TestLayersThatAreListedTwiceAreListedOnce, as in the references.
func TestLayersThatAreListedTwiceAreListedOnce(t *testing.T) {
	c := configOf(t, "qwen2_moe")
	for name, list := range map[string][]any{"twice": {whole(1), whole(0), whole(1)}, "once": {whole(0), whole(1)}} {
		c["mlp_only_layers"] = list
		if d, err := family.NewConfig(c).Dimensions(); err != nil || !slices.Equal(d.Experts.Dense, []int{0, 1}) {
			t.Errorf("%s: dense layers %v, error %v", name, d.Experts.Dense, err)
		}
	}
	for name, list := range map[string]any{"past the last": []any{whole(1 << 12)}, "negative": []any{whole(-1)}, "no number": []any{"1"}, "no list": whole(1)} {
		c["mlp_only_layers"] = list
		if _, err := family.NewConfig(c).Dimensions(); !errors.Is(err, family.ErrInvalid) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestNamesOfScaledLayersAreReadOnce: the list is not read again for each layer, which no
// context would end.
func TestNamesOfScaledLayersAreReadOnce(t *testing.T) {
	c := configOf(t, "step3p5")
	c["num_hidden_layers"], c["rope_theta"] = whole(1<<12), whole(10000)
	for _, key := range []string{"partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared"} {
		delete(c, key)
	}
	kinds := []any{"full_attention", "sliding_attention"}
	c["layer_types"] = repeated(1<<12, func(i int) any { return kinds[i%2] })
	names := repeated(200_000, func(int) any { return strings.Clone("full_attentioX") })
	for _, last := range []string{"full_attention", "full_attentioX"} {
		c["yarn_only_types"] = append(names, last)
		began := time.Now()
		d, err := family.NewConfig(c).Dimensions()
		if took := time.Since(began); err != nil || took > 2*time.Second {
			t.Errorf("it took %v, error %v", took, err)
			continue
		}
		if scaled := len(d.Ropes[0].Factors) > 0; scaled != (last == "full_attention") || len(d.Ropes[1].Factors) > 0 {
			t.Errorf("%s: layers with all tokens are scaled: %v, those with a window: %v", last, scaled, len(d.Ropes[1].Factors) > 0)
		}
	}
}
