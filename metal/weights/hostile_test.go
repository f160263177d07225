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
		return func(m *modelFolder) { m.set(name, stored{kind: kind, shape: shape, data: make([]byte, n)}) }
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
	second := "model-00002-of-00002.safetensors"
	for name, c := range map[string]struct {
		change func(*modelFolder)
		want   error
		says   string
	}{
		"no weights":                       {change: func(m *modelFolder) { m.files = nil }, want: weights.ErrNoModel, says: "no model*.safetensors"},
		"a configuration that is not JSON": {change: func(m *modelFolder) { m.literal["config.json"] = "{" }, want: weights.ErrTruncated, says: "config.json"},
		"a huge configuration":             {change: func(m *modelFolder) { m.literal["config.json"] = strings.Repeat(" ", 5<<20) }, want: weights.ErrInvalid, says: "config.json has over"},
		"a tensor that is missing":         {change: func(m *modelFolder) { delete(m.files[oneFile], down+".weight") }, want: weights.ErrMissing, says: down},
		"a norm that is missing":           {change: func(m *modelFolder) { delete(m.files[oneFile], "model.norm.weight") }, want: weights.ErrMissing, says: "model.norm.weight"},
		"an unknown tensor":                {change: shaped("model.layers.0.extra.weight", "F32", 1), want: weights.ErrInvalid, says: "does not have"},
		"a bias":                           {change: shaped(down+".bias", "F32", tinyHidden), want: weights.ErrInvalid, says: "down_proj.bias"},
		"an unexpected layer":              {change: shaped("model.layers.1.input_layernorm.weight", "F32", tinyHidden), want: weights.ErrInvalid, says: "layers.1"},
		"GGUF's factors":                   {change: shaped("model.rope_freqs.weight", "F32", tinyHead/2), want: weights.ErrInvalid, says: "rope_freqs"},
		"norms of heads in a Llama":        {change: shaped("model.layers.0.self_attn.q_norm.weight", "F32", tinyHead), want: weights.ErrInvalid, says: "q_norm"},
		"more layers than tensors":         {change: func(m *modelFolder) { m.config["num_hidden_layers"] = 4096 }, want: weights.ErrInvalid, says: "4096 layers need"},
		"another shape":                    {change: shaped(down+".weight", "F32", tinyInner, tinyHidden), want: weights.ErrInvalid, says: "shape [128 64], want [64 128]"},
		"a vector that is a matrix":        {change: shaped("model.norm.weight", "F32", 1, tinyHidden), want: weights.ErrInvalid, says: "shape"},
		"whole numbers for weights":        {change: shaped(down+".weight", "I32", tinyHidden, tinyInner), want: weights.ErrUnsupported, says: "I32"},
		"doubles for weights":              {change: shaped(down+".weight", "F64", tinyHidden, tinyInner), want: weights.ErrUnsupported, says: "F64"},
		"a model that also sees":           {change: shaped("vision_tower.patch_embed.weight", "F32", 1), want: weights.ErrUnsupported, says: "vision_tower."},
		"a decoder inside another model":   {change: shaped("language_model.model.norm.weight", "F32", 1), want: weights.ErrUnsupported, says: "language_model."},
		"a shard that is cut off":          {change: func(m *modelFolder) { m.literal[oneFile] = string(shardBytes(m.files[oneFile])[:5000]) }, want: weights.ErrTruncated, says: oneFile},
		"a shard that is empty":            {change: func(m *modelFolder) { m.literal[oneFile] = "" }, want: weights.ErrTruncated, says: oneFile},

		"scales without quantisation": {change: affine(quantization(nil)), want: weights.ErrInvalid, says: "no quantization"},
		"quantisation that is text":   {change: affine(quantization("4 bits")), want: weights.ErrInvalid, says: "quantization"},
		"quantisation without bits":   {change: affine(quantization(map[string]any{"group_size": 64})), want: weights.ErrMissing, says: "bits"},
		"bits that are text":          {change: affine(quantization(map[string]any{"group_size": 64, "bits": "4"})), want: weights.ErrInvalid, says: "bits"},
		"bits as a float":             {change: affine(quantization(map[string]any{"group_size": 64, "bits": json.Number("4.0")})), want: weights.ErrInvalid, says: "bits"},
		"a mode that is a number":     {change: affine(quantization(map[string]any{"group_size": 64, "bits": 4, "mode": 1})), want: weights.ErrInvalid, says: "mode"},
		"another tool's quantisation": {change: func(m *modelFolder) {
			m.config["quantization_config"] = map[string]any{"quant_method": "awq", "bits": 4}
		}, want: weights.ErrUnsupported, says: "awq"},
		"an unknown mode":                       {change: affine(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp6"})), want: weights.ErrUnsupported, says: `mode "mxfp6"`},
		"an unknown mode of a layer":            {change: affine(quantization(map[string]any{"group_size": 32, "bits": 4, down: map[string]any{"mode": "int4"}})), want: weights.ErrUnsupported, says: `mode "int4"`},
		"small floats that are affine":          {change: affine(quantization(map[string]any{"group_size": 32, "bits": 4, down: map[string]any{"mode": "mxfp4", "bits": 4, "group_size": 32}})), want: weights.ErrInvalid, says: `mode "mxfp4", but its scales have type F16`},
		"words that are a stack of one":         {change: affine(shaped(down+".weight", "U32", 1, tinyHidden, tinyInner/8)), want: weights.ErrInvalid, says: "want words of shape"},
		"scales of eight bits":                  {change: affine(shaped(down+".scales", "U8", tinyHidden, tinyInner/64)), want: weights.ErrUnsupported, says: "mxfp4, mxfp8, nvfp4"},
		"small floats without quantisation":     {change: small(quantization(nil)), want: weights.ErrInvalid, says: "no quantization"},
		"small floats that are named as dense":  {change: small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: false})), want: weights.ErrInvalid, says: "not quantised"},
		"small floats that are named otherwise": {change: small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: map[string]any{"mode": "nvfp4"}})), want: weights.ErrInvalid, says: `mode "nvfp4", 4 bits and groups of 16`},
		"small floats that are named affine":    {change: small(quantization(map[string]any{"group_size": 32, "bits": 4, "mode": "mxfp4", down: map[string]any{"group_size": 32, "bits": 4}})), want: weights.ErrInvalid, says: "its shapes and its one-byte scales match mxfp4"},
		"small floats with biases":              {change: small(shaped(down+".biases", "F16", tinyHidden, tinyInner/32)), want: weights.ErrInvalid, says: "down_proj.biases"},
		"small floats of half words":            {change: small(shaped(down+".weight", "I32", tinyHidden, tinyInner/8)), want: weights.ErrUnsupported, says: "I32"},
		"small floats of no columns":            {change: small(shaped(down+".weight", "U32", tinyHidden, 0)), want: weights.ErrInvalid, says: "words of shape"},
		"small floats of more words":            {change: small(shaped(down+".weight", "U32", tinyHidden, tinyInner+1)), want: weights.ErrInvalid, says: "words of shape"},
		"small floats of a few words more":      {change: small(shaped(down+".weight", "U32", tinyHidden, tinyInner/8+1)), want: weights.ErrInvalid, says: "of mxfp4"},
		"small floats of five bits":             {change: small(shaped(down+".weight", "U32", tinyHidden, tinyInner/32*5)), want: weights.ErrUnsupported, says: "5 bits in groups of 32"},
		"small floats with more rows":           {change: small(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8)), want: weights.ErrInvalid, says: "want words of shape"},
		"small floats with more scales":         {change: small(shaped(down+".scales", "U8", tinyHidden+1, tinyInner/32)), want: weights.ErrInvalid, says: "want words of shape"},
		"small floats with scales of no use":    {change: small(shaped(down+".scales", "U8", tinyHidden, 0)), want: weights.ErrInvalid, says: "scales of shape"},
		"small floats with uneven scales":       {change: small(shaped(down+".scales", "U8", tinyHidden, tinyInner/32-1)), want: weights.ErrUnsupported, says: "groups of 42"},
		"small floats with scales of one":       {change: small(shaped(down+".scales", "U8", tinyHidden)), want: weights.ErrInvalid, says: "scales of shape"},
		"a norm of small floats":                {change: shaped("model.norm.scales", "U8", 1, 1), want: weights.ErrInvalid, says: "model.norm"},
		"scales that are whole numbers":         {change: affine(shaped(down+".scales", "I32", tinyHidden, tinyInner/64), shaped(down+".biases", "I32", tinyHidden, tinyInner/64)), want: weights.ErrUnsupported, says: "I32"},
		"biases of another type":                {change: affine(shaped(down+".biases", "F32", tinyHidden, tinyInner/64)), want: weights.ErrInvalid, says: "biases of type F32"},
		"biases that are missing":               {change: affine(func(m *modelFolder) { delete(m.files[oneFile], down+".biases") }), want: weights.ErrMissing, says: "biases"},
		"scales that are missing":               {change: affine(func(m *modelFolder) { delete(m.files[oneFile], down+".scales") }), want: weights.ErrInvalid, says: "shape"},
		"words that are floats":                 {change: affine(shaped(down+".weight", "F32", tinyHidden, tinyInner/8)), want: weights.ErrUnsupported, says: "F32"},
		"words of another width":                {change: affine(shaped(down+".weight", "U32", tinyHidden, 15)), want: weights.ErrInvalid, says: "words"},
		"words of more rows":                    {change: affine(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8)), want: weights.ErrInvalid, says: "words"},
		"more rows than the layer has":          {change: affine(shaped(down+".weight", "U32", tinyHidden+1, tinyInner/8), shaped(down+".scales", "F16", tinyHidden+1, tinyInner/64), shaped(down+".biases", "F16", tinyHidden+1, tinyInner/64)), want: weights.ErrInvalid, says: "words"},
		"words of no columns":                   {change: affine(shaped(down+".weight", "U32", tinyHidden, 0)), want: weights.ErrInvalid, says: "words of shape"},
		"more words than columns":               {change: affine(shaped(down+".weight", "U32", tinyHidden, tinyInner+1)), want: weights.ErrInvalid, says: "words of shape"},
		"scales of another width":               {change: affine(func(m *modelFolder) { m.config["quantization"].(map[string]any)[down] = true }, shaped(down+".scales", "F16", tinyHidden, 1)), want: weights.ErrInvalid, says: "scales"},
		"biases of another width":               {change: affine(shaped(down+".biases", "F16", tinyHidden, 1)), want: weights.ErrInvalid, says: "biases"},
		"scales of one dimension":               {change: affine(shaped(down+".scales", "F16", tinyHidden)), want: weights.ErrInvalid, says: "scales of shape"},
		"words of seven bits":                   {change: affine(shaped(down+".weight", "U32", tinyHidden, 28)), want: weights.ErrUnsupported, says: "7-bit"},
		"groups of sixteen":                     {change: affine(shaped(down+".scales", "F16", tinyHidden, 8), shaped(down+".biases", "F16", tinyHidden, 8)), want: weights.ErrUnsupported, says: "group 16"},
		"a layer that is named otherwise":       {change: affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: map[string]any{"bits": 8, "group_size": 64}})), want: weights.ErrInvalid, says: "words"},
		"a layer that is named as dense":        {change: affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: false})), want: weights.ErrInvalid, says: "not quantised"},
		"a layer that is named, but dense":      {change: quantization(map[string]any{"group_size": 64, "bits": 4, down: true}), want: weights.ErrMissing, says: "scales"},
		"a layer that is named by a number":     {change: affine(quantization(map[string]any{"group_size": 64, "bits": 4, down: 4})), want: weights.ErrInvalid, says: "want an object"},
		"a dense layer that is named by a text": {change: quantization(map[string]any{"group_size": 64, "bits": 4, down: "no"}), want: weights.ErrInvalid, says: "want an object"},
		"a norm with scales":                    {change: shaped("model.norm.scales", "F32", 1, 1), want: weights.ErrMissing, says: "biases"},
		"a quantised norm": {change: func(m *modelFolder) {
			shaped("model.norm.scales", "F32", 1, 1)(m)
			shaped("model.norm.biases", "F32", 1, 1)(m)
		}, want: weights.ErrInvalid, says: "model.norm"},

		"a file of the index that is not there": {change: sharded(func(m *modelFolder) { delete(m.files, second) }), want: weights.ErrMissing, says: `such as "` + second + `"`},
		"a tensor that is in the index alone":   {change: sharded(func(m *modelFolder) { delete(m.files[m.index["model.norm.weight"]], "model.norm.weight") }), want: weights.ErrMissing, says: "model.norm.weight"},
		"a tensor in two files": {change: func(m *modelFolder) {
			m.files["model-2.safetensors"] = map[string]stored{"model.norm.weight": m.files[oneFile]["model.norm.weight"]}
		}, want: weights.ErrInvalid, says: "is also in"},
		"a .gguf next to safetensors": {change: func(m *modelFolder) { m.literal["m.gguf"] = "GGUF" }, want: weights.ErrNoModel, says: "name the file"},
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
