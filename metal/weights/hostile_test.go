//go:build !race

package weights_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

func TestHostileFoldersAreTypedErrors(t *testing.T) {
	const down = "model.layers.0.mlp.down_proj"
	shaped := func(name string, kind string, shape ...int) func(*modelFolder) {
		n := map[string]int{"U8": 1, "I32": 4, "U32": 4, "F32": 4, "F16": 2, "F64": 8}[kind]
		for _, d := range shape {
			n *= d
		}
		return func(m *modelFolder) { m.set(name, stored{kind, shape, make([]byte, n)}) }
	}
	quantization := func(v any) func(*modelFolder) {
		return func(m *modelFolder) { m.config["quantization"] = v }
	}
	affine := func(change ...func(*modelFolder)) func(*modelFolder) {
		return func(m *modelFolder) {
			m.quantized(down, 4, 64, quant.Float16)
			for _, c := range change {
				c(m)
			}
		}
	}
	small := func(change ...func(*modelFolder)) func(*modelFolder) {
		return func(m *modelFolder) {
			m.smallFloats(down, quant.BlockFloats()[0])
			for _, c := range change {
				c(m)
			}
		}
	}
	sharded := func(change func(*modelFolder)) func(*modelFolder) {
		return func(m *modelFolder) { m.shards(2); change(m) }
	}
	first, second := "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	for name, c := range map[string]struct {
		change func(*modelFolder)
		want   error
		says   string
	}{
		"no weights":                       {func(m *modelFolder) { m.files = nil }, weights.ErrNoModel, "no model*.safetensors"},
		"a configuration that is not JSON": {func(m *modelFolder) { m.literal["config.json"] = "{" }, weights.ErrTruncated, "config.json"},
		"a huge configuration":             {func(m *modelFolder) { m.literal["config.json"] = strings.Repeat(" ", 5<<20) }, weights.ErrInvalid, "config.json has over"},
		"a tensor that is missing":         {func(m *modelFolder) { delete(m.files[oneFile], down+".weight") }, weights.ErrMissing, down},
		"a norm that is missing":           {func(m *modelFolder) { delete(m.files[oneFile], "model.norm.weight") }, weights.ErrMissing, "model.norm.weight"},
		"an unknown tensor":                {shaped("model.layers.0.extra.weight", "F32", 1), weights.ErrInvalid, "does not have"},
		"a bias":                           {shaped(down+".bias", "F32", tinyHidden), weights.ErrInvalid, "down_proj.bias"},
		"an unexpected layer":              {shaped("model.layers.1.input_layernorm.weight", "F32", tinyHidden), weights.ErrInvalid, "layers.1"},
		"GGUF's factors":                   {shaped("model.rope_freqs.weight", "F32", tinyHead/2), weights.ErrInvalid, "rope_freqs"},
		"norms of heads in a Llama":        {shaped("model.layers.0.self_attn.q_norm.weight", "F32", tinyHead), weights.ErrInvalid, "q_norm"},
		"more layers than tensors":         {func(m *modelFolder) { m.config["num_hidden_layers"] = 4096 }, weights.ErrInvalid, "4096 layers need"},
		"another shape":                    {shaped(down+".weight", "F32", tinyInner, tinyHidden), weights.ErrInvalid, "shape [128 64], want [64 128]"},
		"a vector that is a matrix":        {shaped("model.norm.weight", "F32", 1, tinyHidden), weights.ErrInvalid, "shape"},
		"whole numbers for weights":        {shaped(down+".weight", "I32", tinyHidden, tinyInner), weights.ErrUnsupported, "I32"},
		"doubles for weights":              {shaped(down+".weight", "F64", tinyHidden, tinyInner), weights.ErrUnsupported, "F64"},
		"a model that also sees":           {shaped("vision_tower.patch_embed.weight", "F32", 1), weights.ErrUnsupported, "vision_tower."},
		"a decoder inside another model":   {shaped("language_model.model.norm.weight", "F32", 1), weights.ErrUnsupported, "language_model."},
		"a shard that is cut off":          {func(m *modelFolder) { m.literal[oneFile] = string(shardBytes(m.files[oneFile])[:5000]) }, weights.ErrTruncated, oneFile},
		"a shard that is empty":            {func(m *modelFolder) { m.literal[oneFile] = "" }, weights.ErrTruncated, oneFile},

		"scales without quantisation": {affine(quantization(nil)), weights.ErrInvalid, "no quantization"},
		"quantisation that is text":   {affine(quantization("4 bits")), weights.ErrInvalid, "quantization"},
		"quantisation without bits":   {affine(quantization(map[string]any{"group_size": 64})), weights.ErrMissing, "bits"},
		"bits that are text":          {affine(quantization(map[string]any{"group_size": 64, "bits": "4"})), weights.ErrInvalid, "bits"},
		"bits as a float":             {affine(quantization(map[string]any{"group_size": 64, "bits": json.Number("4.0")})), weights.ErrInvalid, "bits"},
		"a mode that is a number":     {affine(quantization(map[string]any{"group_size": 64, "bits": 4, "mode": 1})), weights.ErrInvalid, "mode"},
		"another tool's quantisation": {func(m *modelFolder) {
			m.config["quantization_config"] = map[string]any{"quant_method": "awq", "bits": 4}
		}, weights.ErrUnsupported, "awq"},
		"an unknown mode":                       {affine(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp6"})), weights.ErrUnsupported, `mode "mxfp6"`},
		"an unknown mode of a layer":            {affine(quantization(map[string]any{"group_size": 32, "bits": 4, down: map[string]any{"mode": "int4"}})), weights.ErrUnsupported, `mode "int4"`},
		"small floats that are affine":          {affine(quantization(map[string]any{"group_size": 32, "bits": 4, down: map[string]any{"mode": "mxfp4", "bits": 4, "group_size": 32}})), weights.ErrInvalid, `mode "mxfp4", but its scales have type F16`},
		"words that are a stack of one":         {affine(shaped(down+".weight", "U32", 1, tinyHidden, tinyInner/8)), weights.ErrInvalid, "want words of shape"},
		"scales of eight bits":                  {affine(shaped(down+".scales", "U8", tinyHidden, tinyInner/64)), weights.ErrUnsupported, "mxfp4, mxfp8, nvfp4"},
		"small floats without quantisation":     {small(quantization(nil)), weights.ErrInvalid, "no quantization"},
		"small floats that are named as dense":  {small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: false})), weights.ErrInvalid, "not quantised"},
		"small floats that are named otherwise": {small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: map[string]any{"mode": "nvfp4"}})), weights.ErrInvalid, `mode "nvfp4", 4 bits and groups of 16`},
		"small floats that are named affine":    {small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: map[string]any{"group_size": 32, "bits": 4}})), weights.ErrInvalid, "its shapes and its one-byte scales match mxfp4"},
		"small floats with biases":              {small(shaped(down+".biases", "F16", tinyHidden, tinyInner/32)), weights.ErrInvalid, "down_proj.biases"},
		"small floats of half words":            {small(shaped(down+".weight", "I32", tinyHidden, tinyInner/8)), weights.ErrUnsupported, "I32"},
		"small floats of no columns":            {small(shaped(down+".weight", "U32", tinyHidden, 0)), weights.ErrInvalid, "words of shape"},
		"small floats of more words":            {small(shaped(down+".weight", "U32", tinyHidden, tinyInner+1)), weights.ErrInvalid, "words of shape"},
		"small floats of a few words more":      {small(shaped(down+".weight", "U32", tinyHidden, tinyInner/8+1)), weights.ErrInvalid, "of mxfp4"},
		"small floats of five bits":             {small(shaped(down+".weight", "U32", tinyHidden, tinyInner/32*5)), weights.ErrUnsupported, "5 bits in groups of 32"},
		"small floats with more rows":           {small(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8)), weights.ErrInvalid, "want words of shape"},
		"small floats with more scales":         {small(shaped(down+".scales", "U8", tinyHidden+1, tinyInner/32)), weights.ErrInvalid, "want words of shape"},
		"small floats with scales of no use":    {small(shaped(down+".scales", "U8", tinyHidden, 0)), weights.ErrInvalid, "scales of shape"},
		"small floats with uneven scales":       {small(shaped(down+".scales", "U8", tinyHidden, tinyInner/32-1)), weights.ErrUnsupported, "groups of 42"},
		"small floats with scales of one":       {small(shaped(down+".scales", "U8", tinyHidden)), weights.ErrInvalid, "scales of shape"},
		"a norm of small floats":                {shaped("model.norm.scales", "U8", 1, 1), weights.ErrInvalid, "model.norm"},
		"scales that are whole numbers":         {affine(shaped(down+".scales", "I32", tinyHidden, tinyInner/64), shaped(down+".biases", "I32", tinyHidden, tinyInner/64)), weights.ErrUnsupported, "I32"},
		"biases of another type":                {affine(shaped(down+".biases", "F32", tinyHidden, tinyInner/64)), weights.ErrInvalid, "biases of type F32"},
		"biases that are missing":               {affine(func(m *modelFolder) { delete(m.files[oneFile], down+".biases") }), weights.ErrMissing, "biases"},
		"scales that are missing":               {affine(func(m *modelFolder) { delete(m.files[oneFile], down+".scales") }), weights.ErrInvalid, "shape"},
		"words that are floats":                 {affine(shaped(down+".weight", "F32", tinyHidden, tinyInner/8)), weights.ErrUnsupported, "F32"},
		"words of another width":                {affine(shaped(down+".weight", "U32", tinyHidden, 15)), weights.ErrInvalid, "words"},
		"words of more rows":                    {affine(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8)), weights.ErrInvalid, "words"},
		"more rows than the layer has":          {affine(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8), shaped(down+".scales", "F16", tinyHidden+1, tinyInner/64), shaped(down+".biases", "F16", tinyHidden+1, tinyInner/64)), weights.ErrInvalid, "words"},
		"words of no columns":                   {affine(shaped(down+".weight", "U32", tinyHidden, 0)), weights.ErrInvalid, "words of shape"},
		"more words than columns":               {affine(shaped(down+".weight", "U32", tinyHidden, tinyInner+1)), weights.ErrInvalid, "words of shape"},
		"scales of another width":               {affine(func(m *modelFolder) { m.config["quantization"].(map[string]any)[down] = true }, shaped(down+".scales", "F16", tinyHidden, 1)), weights.ErrInvalid, "scales"},
		"biases of another width":               {affine(shaped(down+".biases", "F16", tinyHidden, 1)), weights.ErrInvalid, "biases"},
		"scales of one dimension":               {affine(shaped(down+".scales", "F16", tinyHidden)), weights.ErrInvalid, "scales of shape"},
		"words of seven bits":                   {affine(shaped(down+".weight", "U32", tinyHidden, 28)), weights.ErrUnsupported, "7-bit"},
		"groups of sixteen":                     {affine(shaped(down+".scales", "F16", tinyHidden, 8), shaped(down+".biases", "F16", tinyHidden, 8)), weights.ErrUnsupported, "group 16"},
		"a layer that is named otherwise":       {affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: map[string]any{"bits": 8, "group_size": 64}})), weights.ErrInvalid, "words"},
		"a layer that is named as dense":        {affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: false})), weights.ErrInvalid, "not quantised"},
		"a layer that is named, but dense":      {quantization(map[string]any{"group_size": 64, "bits": 4, down: true}), weights.ErrMissing, "scales"},
		"a layer that is named by a number":     {affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: 4})), weights.ErrInvalid, "want an object"},
		"a dense layer that is named by a text": {quantization(map[string]any{"group_size": 64, "bits": 4, down: "no"}), weights.ErrInvalid, "want an object"},
		"a norm with scales":                    {shaped("model.norm.scales", "F32", 1, 1), weights.ErrMissing, "biases"},
		"a quantised norm": {func(m *modelFolder) {
			shaped("model.norm.scales", "F32", 1, 1)(m)
			shaped("model.norm.biases", "F32", 1, 1)(m)
		}, weights.ErrInvalid, "model.norm"},

		"an index without its file":     {sharded(func(m *modelFolder) { delete(m.files, second) }), weights.ErrMissing, second},
		"a file that the index forgot":  {sharded(func(m *modelFolder) { m.files["model-3.safetensors"] = nil }), weights.ErrInvalid, "does not list model-3"},
		"an index with a missing entry": {sharded(func(m *modelFolder) { delete(m.index, "model.norm.weight") }), weights.ErrInvalid, "is not in it"},
		"an index with one too many":    {sharded(func(m *modelFolder) { m.index["model.more.weight"] = first }), weights.ErrMissing, "model.more.weight"},
		"an index that is wrong": {sharded(func(m *modelFolder) {
			for name, file := range m.index {
				m.index[name] = map[string]string{first: second, second: first}[file]
			}
		}), weights.ErrInvalid, "the tensor is in"},
		"an index that is not JSON":       {sharded(func(m *modelFolder) { m.literal["model.safetensors.index.json"] = "[" }), weights.ErrInvalid, "index.json"},
		"an index that leads out":         {sharded(func(m *modelFolder) { m.index["a"] = "../model-other.safetensors" }), weights.ErrInvalid, "in the same folder"},
		"an index with a path":            {sharded(func(m *modelFolder) { m.index["a"] = "model/x.safetensors" }), weights.ErrInvalid, "in the same folder"},
		"an index with an absolute path":  {sharded(func(m *modelFolder) { m.index["a"] = "/etc/passwd" }), weights.ErrInvalid, "in the same folder"},
		"an index with another extension": {sharded(func(m *modelFolder) { m.index["a"] = "model.bin" }), weights.ErrInvalid, "in the same folder"},
		"a tensor in two files": {func(m *modelFolder) {
			m.files["model-2.safetensors"] = map[string]stored{"model.norm.weight": m.files[oneFile]["model.norm.weight"]}
		}, weights.ErrInvalid, "is also in"},
		"a .gguf next to safetensors": {func(m *modelFolder) { m.literal["m.gguf"] = "GGUF" }, weights.ErrNoModel, "name the file"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFolder("llama")
			c.change(m)
			_, err := weights.Open(m.write(t))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

func TestNothingOutsideAModelsFolderIsOpened(t *testing.T) {
	for name, link := range map[string]func(dir string) (from, to string){
		"a shard":         func(dir string) (string, string) { return filepath.Join(dir, "..", "secret.safetensors"), oneFile },
		"a configuration": func(dir string) (string, string) { return "/etc/hostname", "config.json" },
		"an index":        func(dir string) (string, string) { return "/etc/hostname", "model.safetensors.index.json" },
	} {
		t.Run(name, func(t *testing.T) {
			m := newFolder("llama")
			dir := m.write(t)
			secret := filepath.Join(filepath.Dir(dir), "secret.safetensors")
			if err := os.WriteFile(secret, shardBytes(m.files[oneFile]), 0o644); err != nil {
				t.Fatal(err)
			}
			from, to := link(dir)
			os.Remove(filepath.Join(dir, to))
			if err := os.Symlink(from, filepath.Join(dir, to)); err != nil {
				t.Fatal(err)
			}
			if _, err := weights.Open(dir); !errors.Is(err, weights.ErrInvalid) || !strings.Contains(err.Error(), "leads out") {
				t.Errorf("error %v, want one about a link that leads out", err)
			}
		})
	}
	t.Run("a .gguf", func(t *testing.T) {
		dir := t.TempDir()
		outside := filepath.Join(t.TempDir(), "m.gguf")
		if err := tinymodel.Write(outside, tinymodel.Default()); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(dir, "m.gguf")); err != nil {
			t.Fatal(err)
		}
		if _, err := weights.Open(dir); !errors.Is(err, weights.ErrInvalid) {
			t.Errorf("error %v, want ErrInvalid", err)
		}
	})
}
