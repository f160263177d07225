//go:build !race

package weights_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// stored is a tensor to write.
type stored struct {
	kind  string
	shape []int
	data  []byte
}

// modelFolder is a model to write: a small decoder that a test then changes.
type modelFolder struct {
	config  map[string]any
	files   map[string]map[string]stored
	index   map[string]string
	literal map[string]string // files written as they are
}

const oneFile = "model.safetensors"

// The widths of the model under test.
const (
	tinyHidden, tinyInner, tinyVocabulary, tinyHeads, tinyKVHeads, tinyHead = 64, 128, 96, 4, 2, 16
)

func newFolder(modelType string) *modelFolder {
	m := &modelFolder{
		config: map[string]any{
			"model_type": modelType, "hidden_size": tinyHidden, "num_hidden_layers": 1, "intermediate_size": tinyInner, "num_attention_heads": tinyHeads,
			"num_key_value_heads": tinyKVHeads, "head_dim": tinyHead, "vocab_size": tinyVocabulary, "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
			"rope_theta": 10000.0, "tie_word_embeddings": true,
		},
		files: map[string]map[string]stored{oneFile: {}}, literal: map[string]string{},
	}
	layer := "model.layers.0."
	shapes := map[string][]int{
		"model.embed_tokens": {tinyVocabulary, tinyHidden}, "model.norm": {tinyHidden},
		layer + "input_layernorm": {tinyHidden}, layer + "post_attention_layernorm": {tinyHidden},
		layer + "self_attn.q_proj": {tinyHeads * tinyHead, tinyHidden}, layer + "self_attn.k_proj": {tinyKVHeads * tinyHead, tinyHidden},
		layer + "self_attn.v_proj": {tinyKVHeads * tinyHead, tinyHidden}, layer + "self_attn.o_proj": {tinyHidden, tinyHeads * tinyHead},
		layer + "mlp.gate_proj": {tinyInner, tinyHidden}, layer + "mlp.up_proj": {tinyInner, tinyHidden}, layer + "mlp.down_proj": {tinyHidden, tinyInner},
	}
	if modelType == "qwen3" {
		shapes[layer+"self_attn.q_norm"], shapes[layer+"self_attn.k_norm"] = []int{tinyHead}, []int{tinyHead}
	}
	for path, shape := range shapes {
		m.dense(path, quant.Float32, shape...)
	}
	return m
}

// value is what element i of the tensor at a path is: exact in every type.
func value(path string, i int) float32 {
	return float32((len(path)*7+i*13)%31-15) / 8
}

func (m *modelFolder) set(name string, s stored) { m.files[oneFile][name] = s }

// dense writes a tensor of floats.
func (m *modelFolder) dense(path string, t quant.Type, shape ...int) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	s := stored{kind: map[quant.Type]string{quant.Float32: "F32", quant.Float16: "F16", quant.BFloat16: "BF16"}[t], shape: shape, data: make([]byte, n*t.Bytes())}
	for i := range n {
		t.Put(s.data, i, value(path, i))
	}
	m.set(path+".weight", s)
}

// quantized replaces a matrix by words, scales and biases.
func (m *modelFolder) quantized(path string, bits, group int, t quant.Type) {
	shape := m.files[oneFile][path+".weight"].shape
	rows, cols := shape[0], shape[1]
	f := quant.AffineOf(bits, group, t)
	var words, scales, biases []byte
	for r := range rows {
		row, err := f.NewRow(cols)
		if err != nil {
			panic(err)
		}
		for i := range cols {
			quant.PutQ(row.Raw, bits, i, (r+3*i)%(1<<bits))
		}
		for g := range cols / group {
			t.Put(row.Scales, g, float32(g+1)/4)
			t.Put(row.Biases, g, float32(r%17)-8)
		}
		words, scales, biases = append(words, row.Raw...), append(scales, row.Scales...), append(biases, row.Biases...)
	}
	kind := map[quant.Type]string{quant.Float32: "F32", quant.Float16: "F16", quant.BFloat16: "BF16"}[t]
	m.set(path+".weight", stored{kind: "U32", shape: []int{rows, cols * bits / 32}, data: words})
	m.set(path+".scales", stored{kind: kind, shape: []int{rows, cols / group}, data: scales})
	m.set(path+".biases", stored{kind: kind, shape: []int{rows, cols / group}, data: biases})
	if m.config["quantization"] == nil {
		m.config["quantization"] = map[string]any{"bits": bits, "group_size": group}
	}
}

// wantQuantized is element i of row r of a matrix that quantized wrote.
func wantQuantized(bits, group, r, i int) float32 {
	return float32(i/group+1)/4*float32((r+3*i)%(1<<bits)) + float32(r%17) - 8
}

// shards spreads the tensors over n files and writes an index.
func (m *modelFolder) shards(n int) {
	all := m.files[oneFile]
	m.files, m.index = map[string]map[string]stored{}, map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", i%n+1, n)
		if m.files[file] == nil {
			m.files[file] = map[string]stored{}
		}
		m.files[file][name], m.index[name] = all[name], file
	}
}

func (m *modelFolder) write(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put("config.json", mustJSON(m.config))
	for name, tensors := range m.files {
		put(name, shardBytes(tensors))
	}
	if m.index != nil {
		put("model.safetensors.index.json", mustJSON(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": m.index}))
	}
	for name, text := range m.literal {
		put(name, []byte(text))
	}
	return dir
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func shardBytes(tensors map[string]stored) []byte {
	header, data := map[string]any{"__metadata__": map[string]string{"format": "mlx"}}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		s := tensors[name]
		header[name] = map[string]any{"dtype": s.kind, "shape": s.shape, "data_offsets": []int{len(data), len(data) + len(s.data)}}
		data = append(data, s.data...)
	}
	text := mustJSON(header)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), data...)
}

func openFolder(t testing.TB, m *modelFolder) *weights.File {
	t.Helper()
	return openAt(t, m.write(t))
}

func openAt(t testing.TB, dir string) *weights.File {
	t.Helper()
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// matrixOf reads a tensor as numbers.
func matrixOf(t testing.TB, f *weights.File, path string) [][]float32 {
	t.Helper()
	e, ok := f.Entry(path)
	if !ok {
		t.Fatalf("no %s", path)
	}
	out := make([][]float32, e.Rows())
	next := 0
	if err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
		if e.Columns() == 0 || row != next {
			t.Errorf("row %d of %s, want %d", row, path, next)
		}
		next++
		out[row] = make([]float32, e.Columns())
		return e.Format.Dequantize(r, out[row])
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
