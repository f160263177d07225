//go:build !race

package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// mixture is a Qwen3 of which the second layer has experts.
func mixture() tinymodel.Config {
	c := tinymodel.Default()
	c.Family, c.Type = tinymodel.Qwen3MoE, weights.F32
	c.Experts = tinymodel.Experts{Count: 6, PerToken: 2, FeedForward: 96, Dense: []int{0}}
	return c
}

// TestExpertsAreOneTensorHoweverTheyLie: apart as Hugging Face writes them, in
// several files, stacked and packed as MLX does, and as GGUF has them.
func TestExpertsAreOneTensorHoweverTheyLie(t *testing.T) {
	dir := t.TempDir()
	c := mixture()
	everywhere := c
	everywhere.Experts.Dense = nil
	paths := map[string]string{}
	for name, write := range map[string]func(path string) error{
		"apart": func(path string) error {
			return tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float16)})
		},
		"files": func(path string) error {
			return tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.DenseOf(quant.Float16), ShardBytes: 20_000})
		},
		"packed": func(path string) error {
			return tinymodel.WriteFolder(path, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 32, quant.BFloat16)})
		},
		"gguf": func(path string) error { return tinymodel.Write(path, everywhere) },
	} {
		paths[name] = filepath.Join(dir, name)
		if err := write(paths[name]); err != nil {
			t.Fatal(err)
		}
	}
	const down = "model.layers.1.mlp.switch_mlp.down_proj.weight"
	matrices := map[string][][]float32{}
	for name, path := range paths {
		f, err := weights.Open(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer f.Close()
		e, ok := f.Entry(down)
		if want := []int64{6, 64, 96}; !ok || !slices.Equal(e.Shape, want) || e.Rows() != 6*64 || e.Columns() != 96 || e.Part() != "feed-forward" {
			t.Errorf("%s: experts are %+v, want shape %v", name, e, want)
		}
		if name != "gguf" {
			if _, ok := f.Entry("model.layers.0.mlp.gate_proj.weight"); !ok {
				t.Errorf("%s: the dense layer has no gate", name)
			}
		}
		matrices[name] = matrixOf(t, f, down)
		facts, err := f.Facts()
		if err != nil || facts.Experts != 6 || facts.ExpertsPerToken != 2 || facts.ExpertFeedForwardSize != 96 || facts.Architecture != "qwen3_moe" {
			t.Errorf("%s: facts %+v (%v)", name, facts, err)
		}
		inner := int64(c.FeedForward)
		if name == "gguf" { // no layer is dense
			inner = 96
		}
		if facts.FeedForwardSize != inner {
			t.Errorf("%s: a feed-forward is %d wide, want %d", name, facts.FeedForwardSize, inner)
		}
		wantResident(t, name, f, facts)
	}
	for r, row := range matrices["apart"] {
		if !slices.Equal(row, matrices["files"][r]) {
			t.Fatalf("row %d differs between one file and several", r)
		}
	}
	if slices.Equal(matrices["apart"][0], matrices["apart"][64]) {
		t.Error("the second expert is the first")
	}
}

// wantResident checks that all experts count as weights, not only chosen ones.
func wantResident(t *testing.T, name string, f *weights.File, facts model.Facts) {
	t.Helper()
	sum := int64(0)
	for _, e := range f.Entries() {
		sizes, err := e.Format.Sizes(e.Columns())
		if err != nil {
			t.Fatal(err)
		}
		sum += int64(e.Rows()) * int64(sizes.Sum())
	}
	if facts.WeightBytes != sum {
		t.Errorf("%s: %d bytes of weights, the tensors have %d", name, facts.WeightBytes, sum)
	}
}

// TestExpertsThatDoNotFitAreRefused by the name of the tensor.
func TestExpertsThatDoNotFitAreRefused(t *testing.T) {
	apart := func(experts int) *modelFolder {
		m := newFolder("qwen3")
		for key, v := range map[string]any{"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": true} {
			m.config[key] = v
		}
		for _, name := range []string{"gate_proj", "up_proj", "down_proj"} {
			delete(m.files[oneFile], "model.layers.0.mlp."+name+".weight")
			for i := range experts {
				shape := []int{32, tinyHidden}
				if name == "down_proj" {
					shape = []int{tinyHidden, 32}
				}
				m.dense(fmt.Sprintf("model.layers.0.mlp.experts.%d.%s", i, name), quant.Float32, shape...)
			}
		}
		m.dense("model.layers.0.mlp.gate", quant.Float32, 3, tinyHidden)
		return m
	}
	openFolder(t, apart(3)) // as it should be
	for name, c := range map[string]struct {
		m    *modelFolder
		want error
		says string
	}{
		"one too few":  {m: apart(2), want: weights.ErrMissing, says: "experts.2.gate_proj"},
		"one too many": {m: apart(4), want: weights.ErrInvalid, says: "experts.3."},
		"of another shape": {m: func() *modelFolder {
			m := apart(3)
			m.dense("model.layers.0.mlp.experts.1.up_proj", quant.Float32, 64, tinyHidden/2)
			return m
		}(), want: weights.ErrInvalid, says: "experts.1.up_proj"},
		"of another type": {m: func() *modelFolder {
			m := apart(3)
			m.dense("model.layers.0.mlp.experts.1.up_proj", quant.Float16, 32, tinyHidden)
			return m
		}(), want: weights.ErrInvalid, says: "experts.1.up_proj"},
		"packed one by one": {m: func() *modelFolder {
			m := apart(3)
			m.quantized("model.layers.0.mlp.experts.0.up_proj", 4, 32, quant.Float16)
			return m
		}(), want: weights.ErrInvalid, says: "experts.0.up_proj"},
		"stacked with scales of another shape": {m: func() *modelFolder {
			m := apart(0)
			for name, shape := range map[string][]int{"gate_proj": {3, 32, tinyHidden}, "up_proj": {3, 32, tinyHidden}, "down_proj": {3, tinyHidden, 32}} {
				m.dense("model.layers.0.mlp.switch_mlp."+name, quant.Float32, shape...)
			}
			m.config["quantization"] = map[string]any{"bits": 4, "group_size": 32}
			const up = "model.layers.0.mlp.switch_mlp.up_proj"
			m.set(up+".weight", stored{kind: "U32", shape: []int{3, 32, 8}, data: make([]byte, 3*32*8*4)})
			m.set(up+".scales", stored{kind: "F16", shape: []int{3, 64}, data: make([]byte, 3*64*2)})
			m.set(up+".biases", stored{kind: "F16", shape: []int{3, 64}, data: make([]byte, 3*64*2)})
			return m
		}(), want: weights.ErrInvalid, says: "up_proj"},
		"stacked with words in another order": {m: func() *modelFolder {
			m := apart(0)
			for name, shape := range map[string][]int{"gate_proj": {3, 32, tinyHidden}, "up_proj": {3, 32, tinyHidden}, "down_proj": {3, tinyHidden, 32}} {
				m.dense("model.layers.0.mlp.switch_mlp."+name, quant.Float32, shape...)
			}
			m.config["quantization"] = map[string]any{"bits": 4, "group_size": 32}
			const up = "model.layers.0.mlp.switch_mlp.up_proj"
			m.set(up+".weight", stored{kind: "U32", shape: []int{32, 3, 8}, data: make([]byte, 3*32*8*4)})
			m.set(up+".scales", stored{kind: "F16", shape: []int{3, 32, 2}, data: make([]byte, 3*64*2)})
			m.set(up+".biases", stored{kind: "F16", shape: []int{3, 32, 2}, data: make([]byte, 3*64*2)})
			return m
		}(), want: weights.ErrInvalid, says: "up_proj"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := weights.Open(c.m.write(t))
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

// TestMixturesInGGUFThatComputeSomethingElseAreRefused: keys that llama.cpp has
// for other families.
func TestMixturesInGGUFThatComputeSomethingElseAreRefused(t *testing.T) {
	c := mixture()
	c.Experts.Dense = nil
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	with := func(key string, kind, v uint32) error {
		h, err := read(file)
		if err != nil {
			t.Fatal(err)
		}
		var r raw
		entry := r.str("qwen3moe." + key).u32(kind).u32(v).String()
		out := slices.Concat(file[:16], binary.LittleEndian.AppendUint64(nil, binary.LittleEndian.Uint64(file[16:])+1), []byte(entry), file[24:h.DataOffset], make([]byte, 32), file[h.DataOffset:])
		if h, err = weights.ReadHeader(bytes.NewReader(out), int64(len(out))); err != nil {
			t.Fatal(err)
		}
		_, err = h.Dimensions()
		return err
	}
	for name, c := range map[string]struct {
		kind, v uint32
		fine    bool
	}{
		"expert_shared_count": {kind: 4, v: 1}, "expert_group_count": {kind: 4, v: 2}, "expert_gating_func": {kind: 4, v: 2},
		"expert_weights_scale": {kind: 6, v: math.Float32bits(2.5)},
	} {
		if err := with(name, c.kind, c.v); !errors.Is(err, weights.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s of %d: error %v, want one that names it", name, c.v, err)
		}
	}
	if err := with("expert_gating_func", 4, 1); err != nil {
		t.Errorf("a softmax that is named: %v", err)
	}
}
