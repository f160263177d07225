//go:build !race

package weights_test

import (
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// TestQwen3InGGUF: names of its own for the norms of heads, and rows in order.
func TestQwen3InGGUF(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.Type = tinymodel.Qwen3, weights.F32
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	facts, err := f.Facts()
	if err != nil || facts.Architecture != "qwen3" || f.Header() == nil || f.Folder() != nil || f.Bytes() != f.Header().Size || f.Precision() != quant.Float32 {
		t.Errorf("facts %+v (%v), precision %v", facts, err, f.Precision())
	}
	for path, name := range map[string]string{"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"} {
		e, ok := f.Entry("model.layers.1." + path + ".weight")
		if !ok || e.Name != "blk.1."+name+".weight" || !slices.Equal(e.Shape, []int64{int64(c.HeadSize)}) {
			t.Errorf("%s is %+v", path, e)
		}
	}
	matrixOf(t, f, "model.layers.0.self_attn.q_proj.weight") // wants rows in order
}

// TestAHybridInGGUFIsRefusedWithWhatToUse, which is its folder; any other unknown
// family with the names of those that are read.
func TestAHybridInGGUFIsRefusedWithWhatToUse(t *testing.T) {
	for arch, want := range map[string]string{"qwen3next": "safetensors folder", "qwen35": "safetensors folder", "qwen35moe": "safetensors folder", "mamba": "gemma3, gpt-oss, llama, qwen2, qwen3, qwen3moe"} {
		h := &weights.Header{Metadata: map[string]any{"general.architecture": arch}}
		_, err := h.Facts()
		var unsupported *weights.UnsupportedError
		if !errors.As(err, &unsupported) || unsupported.Value != arch || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to name %q", arch, err, want)
		}
	}
}

// TestQwen2HasBiases in files of both kinds, with rows in order.
func TestQwen2HasBiases(t *testing.T) {
	c := tinymodel.Default()
	c.Family, c.Type = tinymodel.Qwen2, weights.F32
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "m")
	if err := errors.Join(tinymodel.Write(file, c), tinymodel.WriteFolder(folder, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.BFloat16)})); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, folder} {
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for name, width := range map[string]int{"q": c.QueryHeads, "k": c.KVHeads, "v": c.KVHeads} {
			e, ok := f.Entry("model.layers.1.self_attn." + name + "_proj.bias")
			if !ok || !slices.Equal(e.Shape, []int64{int64(width * c.HeadSize)}) || e.Format.Quantized() || e.Part() != "attention" {
				t.Errorf("bias of %s is %+v", name, e)
			}
			if want := "blk.1.attn_" + name + ".bias"; path == file && e.Name != want {
				t.Errorf("bias of %s is called %s, want %s", name, e.Name, want)
			}
		}
		matrixOf(t, f, "model.layers.0.self_attn.q_proj.weight") // wants rows in order
		facts, err := f.Facts()
		if err != nil || facts.Architecture != "qwen2" || facts.HeadSize != int64(c.HeadSize) {
			t.Errorf("facts %+v (%v)", facts, err)
		}
	}
}

// TestYarnInGGUF is llama.cpp's reading of its keys.
func TestYarnInGGUF(t *testing.T) {
	scaling := func(kind string) string {
		var r raw
		r.str("llama.rope.scaling.type").u32(8).str(kind)
		return r.String()
	}
	add := func(keys ...string) []byte {
		b := tiny(t, tinymodel.Default())
		h, err := read(b)
		if err != nil {
			t.Fatal(err)
		}
		count := binary.LittleEndian.Uint64(b[16:])
		out := slices.Clone(b[:16])
		out = binary.LittleEndian.AppendUint64(out, count+uint64(len(keys)))
		out = append(append(out, strings.Join(keys, "")...), b[24:h.DataOffset]...)
		return append(append(out, make([]byte, 32)...), b[h.DataOffset:]...)
	}
	float := func(key string, v float32) string {
		var r raw
		r.str(key).u32(6).u32(math.Float32bits(v))
		return r.String()
	}
	whole := func(key string, v uint32) string {
		var r raw
		r.str(key).u32(4).u32(v)
		return r.String()
	}
	factor := float("llama.rope.scaling.factor", 4)
	for name, c := range map[string]struct {
		file []byte
		want error
		says string
	}{
		"factor and old context":     {file: add(scaling("yarn"), factor, whole("llama.rope.scaling.original_context_length", 64))},
		"no kind is linear":          {file: add(factor)},
		"the old key of the factor":  {file: add(float("llama.rope.scale_linear", 4))},
		"the old key, and linear":    {file: add(scaling("linear"), float("llama.rope.scale_linear", 4))},
		"both keys":                  {file: add(factor, float("llama.rope.scale_linear", 2))},
		"a factor that is a text":    {file: add("\x17\x00\x00\x00\x00\x00\x00\x00llama.rope.scale_linear\x08\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x004"), want: weights.ErrInvalid, says: "scale_linear"},
		"an unknown key":             {file: add(float("llama.rope.scaling.short_factor", 4)), want: weights.ErrUnsupported, says: "llama.rope.scaling.short_factor"},
		"linear with a magnitude":    {file: add(factor, float("llama.rope.scaling.attn_factor", 2)), want: weights.ErrUnsupported, says: "attn_factor"},
		"without a factor":           {file: add(scaling("yarn")), want: weights.ErrMissing, says: "factor"},
		"an old context of nothing":  {file: add(scaling("yarn"), factor, whole("llama.rope.scaling.original_context_length", 0)), want: weights.ErrInvalid, says: "original_context"},
		"a key that changes it":      {file: add(scaling("yarn"), factor, float("llama.rope.scaling.yarn_beta_fast", 16)), want: weights.ErrUnsupported, says: "yarn_beta_fast"},
		"a kind that is not there":   {file: add(scaling("longrope"), factor), want: weights.ErrUnsupported, says: "longrope"},
		"linear, of the same factor": {file: add(scaling("linear"), factor)},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := read(c.file)
			if err != nil {
				t.Fatal(err)
			}
			d, err := h.Dimensions()
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want %v saying %q", err, c.want, c.says)
			}
			if err != nil {
				return
			}
			yarn := name == "factor and old context"
			if (len(d.Rope.Factors) == 8) != yarn || (d.Rope.Linear == 4) == yarn {
				t.Errorf("rope %+v", d.Rope)
			}
			if yarn && (math.Abs(d.Rope.Magnitude-1.138629436111989) > 1e-12 || d.Rope.Factors[0] != 1 || d.Rope.Factors[7] != 4) {
				t.Errorf("rope %+v", d.Rope)
			}
		})
	}
}
