package weights_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// adapterFiles writes an adapter: its configuration, and zeros of these shapes.
func adapterFiles(t *testing.T, config, file string, shapes map[string][]int) string {
	t.Helper()
	dir := t.TempDir()
	header, at := map[string]any{}, 0
	for name, shape := range shapes {
		n := 4
		for _, d := range shape {
			n *= d
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{at, at + n}}
		at += n
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	all := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), make([]byte, at)...)
	for name, b := range map[string][]byte{"adapter_config.json": []byte(config), file: all} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// plainModel opens a small model in float32.
func plainModel(t *testing.T) *weights.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, tinymodel.Default(), tinymodel.Layout{Matrices: quant.DenseOf(quant.Float32)}); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// modulesOf is rank_pattern with all modules of a model of this number of layers.
func modulesOf(layers int) string {
	var out []string
	for i := range layers {
		for _, m := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
			out = append(out, fmt.Sprintf(`"model.layers.%d.%s":2`, i, m))
		}
	}
	return strings.Join(out, ",")
}

// TestAttackPatternsOfAnAdapter: the patterns of an adapter are refused by name before they
// are compiled, where their programs are large or many.
func TestAttackPatternsOfAnAdapter(t *testing.T) {
	f := plainModel(t)
	letters := strings.Repeat("abcde", 21)
	many := func(n int, pattern string) (out []string) {
		for i := range n {
			out = append(out, pattern+string(rune('à'+i)))
		}
		return out
	}
	for name, c := range map[string]struct {
		patterns []string
		names    string
	}{
		"repetitions":                 {many(40, "(?:"+letters+"){1000}"), "instructions"},
		"repetitions of repetitions":  {many(40, "(?:(?:"+letters+"){30}){30}"), "instructions"},
		"an optional part many times": {many(40, "(?:"+letters+"){0,1000}"), "instructions"},
		"classes":                     {many(40, strings.Repeat(`\pL`, 60)), "instructions"},
		"many small ones":             {many(400, "a?"), "at most 256"},
		"many names":                  {many(5000, "a"), "at most 4096"},
		"a long one":                  {many(40, strings.Repeat("a|", 200)), "at most 256 bytes"},
		"one that RE2 has not":        {[]string{"(?<!a)b"}, "RE2"},
	} {
		for _, setting := range []string{"rank_pattern", "alpha_pattern"} {
			numbers := map[string]int{}
			for _, p := range c.patterns {
				numbers[p] = 2
			}
			config, err := json.Marshal(map[string]any{"peft_type": "LORA", "r": 2, "lora_alpha": 4, setting: numbers})
			if err != nil {
				t.Fatal(err)
			}
			dir := adapterFiles(t, string(config), "adapter_model.safetensors", nil)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			opened, err := weights.OpenAdapter(t.Context(), dir, f)
			runtime.ReadMemStats(&after)
			if err == nil {
				opened.Close()
			}
			if !errors.Is(err, weights.ErrUnsupported) || !strings.Contains(err.Error(), setting) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("%s in %s: %v, want %q", name, setting, err, c.names)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
				t.Errorf("%s in %s: %d MiB were allocated", name, setting, used>>20)
			}
		}
	}
}

// TestAdaptersAreRefusedByName: what would change an answer, and what is not the model's.
func TestAdaptersAreRefusedByName(t *testing.T) {
	f := plainModel(t)
	down, _ := f.Entry("model.layers.1.mlp.down_proj.weight")
	embed, _ := f.Entry("model.embed_tokens.weight")
	out, in := int(down.Shape[0]), int(down.Shape[1])
	const peft, mlx = `{"peft_type":"LORA","r":2,"lora_alpha":4`, `{"lora_parameters":{"rank":2,"scale":4`
	a, b := "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
	good := map[string][]int{a: {2, in}, b: {out, 2}}
	ours := map[string][]int{"model.layers.1.mlp.down_proj.lora_a": {in, 2}, "model.layers.1.mlp.down_proj.lora_b": {2, out}}
	first := map[string][]int{"model.layers.0.mlp.down_proj.lora_a": {in, 2}, "model.layers.0.mlp.down_proj.lora_b": {2, out}}
	with := func(name string, shape ...int) map[string][]int {
		m := maps.Clone(good)
		m[name] = shape
		return m
	}
	for name, c := range map[string]struct {
		config  string
		tensors map[string][]int
		err     error  // nil: it is accepted
		names   string // what the message has
	}{
		"peft":                          {config: peft + `}`, tensors: good},
		"without effect":                {config: peft + `,"fan_in_fan_out":true,"lora_dropout":0.1,"modules_to_save":[],"init_lora_weights":"gaussian","bias":"none"}`, tensors: good},
		"DoRA":                          {config: peft + `,"use_dora":true}`, tensors: good, err: weights.ErrUnsupported, names: "use_dora"},
		"modules that were saved":       {config: peft + `,"modules_to_save":["lm_head"]}`, tensors: good, err: weights.ErrUnsupported, names: "modules_to_save"},
		"biases":                        {config: peft + `,"bias":"all"}`, tensors: good, err: weights.ErrUnsupported, names: "all"},
		"a bias of the factor":          {config: peft + `,"lora_bias":true}`, tensors: good, err: weights.ErrUnsupported, names: "lora_bias"},
		"weights that were initialised": {config: peft + `,"init_lora_weights":"pissa"}`, tensors: good, err: weights.ErrUnsupported, names: "pissa"},
		"a setting to come":             {config: peft + `,"use_something":{"a":1}}`, tensors: good, err: weights.ErrUnsupported, names: "use_something"},
		"another method":                {config: `{"peft_type":"VERA","r":2,"lora_alpha":4}`, tensors: good, err: weights.ErrUnsupported, names: "VERA"},
		"another rank":                  {config: peft + `,"rank_pattern":{"down_proj":3}}`, tensors: good, err: weights.ErrInvalid, names: "rank 2"},
		"its rank":                      {config: peft + `,"rank_pattern":{"layers.0.mlp.down_proj":3,"o_proj":5}}`, tensors: good},
		"patterns of a layer elsewhere": {config: peft + `,"rank_pattern":{"down_proj":3}}`, tensors: map[string][]int{strings.Replace(a, ".1.", ".7.", 1): {2, in}, strings.Replace(b, ".1.", ".7.", 1): {out, 2}}, err: weights.ErrUnsupported, names: "layers.7.mlp"},
		"ranks of every module (EVA)":   {config: peft + `,"rank_pattern":{` + modulesOf(80) + `}}`, tensors: good},
		"a name that is too long":       {config: peft + `}`, tensors: map[string][]int{strings.Repeat("a.", 300) + a: {2, in}, strings.Repeat("a.", 300) + b: {out, 2}}, err: weights.ErrUnsupported, names: "at most 512 bytes"},
		"no rank":                       {config: `{"peft_type":"LORA","lora_alpha":4}`, tensors: good, err: weights.ErrInvalid, names: "r is"},
		"a magnitude":                   {config: peft + `}`, tensors: with("base_model.model.model.layers.1.mlp.down_proj.lora_magnitude_vector", out), err: weights.ErrUnsupported, names: "lora_magnitude_vector"},
		"a matrix of the model":         {config: peft + `}`, tensors: with("base_model.model.lm_head.base_layer.weight", out, in), err: weights.ErrUnsupported, names: "save_embedding_layers=False"},
		"one factor":                    {config: peft + `}`, tensors: map[string][]int{a: {2, in}}, err: weights.ErrMissing, names: "down_proj"},
		"another shape":                 {config: peft + `}`, tensors: map[string][]int{a: {2, in + 1}, b: {out, 2}}, err: weights.ErrInvalid, names: "down_proj"},
		"a layer that is not there":     {config: peft + `}`, tensors: map[string][]int{strings.Replace(a, ".1.", ".7.", 1): {2, in}, strings.Replace(b, ".1.", ".7.", 1): {out, 2}}, err: weights.ErrUnsupported, names: "layers.7.mlp"},
		"mlx-lm":                        {config: mlx + `}}`, tensors: ours},
		"DoRA of mlx-lm":                {config: mlx + `},"fine_tune_type":"dora"}`, tensors: ours, err: weights.ErrUnsupported, names: "dora"},
		"alpha of an old mlx-lm":        {config: mlx + `,"alpha":16}}`, tensors: ours, err: weights.ErrUnsupported, names: "alpha"},
		"a layer before the last":       {config: mlx + `},"num_layers":1}`, tensors: first, err: weights.ErrInvalid, names: "num_layers is 1"},
		"the last layer":                {config: mlx + `},"num_layers":1}`, tensors: ours},
		"the last none, which are all":  {config: mlx + `},"num_layers":0}`, tensors: first},
		"a whole name before the last":  {config: mlx + `,"keys":["model.layers.0.mlp.down_proj"]},"num_layers":1}`, tensors: first},
		"an embedding":                  {config: mlx + `}}`, tensors: map[string][]int{"model.embed_tokens.lora_a": {int(embed.Shape[0]), 2}, "model.embed_tokens.lora_b": {2, int(embed.Shape[1])}}, err: weights.ErrUnsupported, names: "embed_tokens"},
		"a stack of no experts":         {config: mlx + `}}`, tensors: map[string][]int{"model.layers.1.mlp.down_proj.lora_a": {0, 2, in}, "model.layers.1.mlp.down_proj.lora_b": {0, out, 2}}, err: weights.ErrInvalid, names: "shapes [0 2"},
		"another key":                   {config: mlx + `,"keys":["self_attn.q_proj"]}}`, tensors: ours, err: weights.ErrInvalid, names: "keys does not list"},
		"neither":                       {config: `{"r":2}`, tensors: good, err: weights.ErrInvalid, names: "peft_type"},
	} {
		file := "adapters.safetensors"
		if strings.Contains(c.config, "peft_type") {
			file = "adapter_model.safetensors"
		}
		opened, err := weights.OpenAdapter(t.Context(), adapterFiles(t, c.config, file, c.tensors), f)
		if err == nil {
			opened.Close()
		}
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v, want %v that names %q", name, err, c.err, c.names)
		}
	}
}
