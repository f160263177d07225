package weights_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"metalfleet.dev/metalfleet/hack/tinymodel"
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
			t.Put(row.Biases, g, float32(r%16)-8)
		}
		words, scales, biases = append(words, row.Raw...), append(scales, row.Scales...), append(biases, row.Biases...)
	}
	kind := map[quant.Type]string{quant.Float32: "F32", quant.Float16: "F16", quant.BFloat16: "BF16"}[t]
	m.set(path+".weight", stored{"U32", []int{rows, cols * bits / 32}, words})
	m.set(path+".scales", stored{kind, []int{rows, cols / group}, scales})
	m.set(path+".biases", stored{kind, []int{rows, cols / group}, biases})
	if m.config["quantization"] == nil {
		m.config["quantization"] = map[string]any{"bits": bits, "group_size": group}
	}
}

// wantQuantized is element i of row r of a matrix that quantized wrote.
func wantQuantized(bits, group, r, i int) float32 {
	return float32(i/group+1)/4*float32((r+3*i)%(1<<bits)) + float32(r%16) - 8
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
	f, err := weights.Open(m.write(t))
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

func TestDenseFoldersAreReadAsTheyAreWritten(t *testing.T) {
	for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
		for _, shards := range []int{0, 3} {
			t.Run(fmt.Sprintf("%v in %d shards", kind, shards), func(t *testing.T) {
				m := newFolder("qwen3")
				for name, s := range m.files[oneFile] {
					m.dense(strings.TrimSuffix(name, ".weight"), kind, s.shape...)
				}
				if shards > 0 {
					m.shards(shards)
				}
				f := openFolder(t, m)
				if f.Precision() != kind || f.Header() != nil || f.Metadata != nil || f.Folder() == nil || f.Dim.Architecture != "qwen3" {
					t.Errorf("precision %v, header %v, architecture %s", f.Precision(), f.Header(), f.Dim.Architecture)
				}
				if len(f.Entries()) != 13 {
					t.Errorf("%d tensors, want 13", len(f.Entries()))
				}
				for _, e := range f.Entries() {
					for r, row := range matrixOf(t, f, e.Path) {
						for i, got := range row {
							if want := value(strings.TrimSuffix(e.Path, ".weight"), r*e.Columns()+i); got != want {
								t.Fatalf("%s[%d, %d] is %v, want %v", e.Path, r, i, got, want)
							}
						}
					}
				}
			})
		}
	}
}

func TestQuantisedLayersAreReadInEveryFormat(t *testing.T) {
	const path = "model.layers.0.mlp.down_proj"
	for _, bits := range quant.Bits() {
		for _, group := range quant.Groups() {
			for _, kind := range []quant.Type{quant.Float32, quant.Float16, quant.BFloat16} {
				m := newFolder("llama")
				m.quantized(path, bits, group, kind)
				f := openFolder(t, m)
				e, _ := f.Entry(path + ".weight")
				want := quant.AffineOf(bits, group, kind)
				if e.Format != want || !slices.Equal(e.Shape, []int64{tinyHidden, tinyInner}) || e.Stored() != want.String() {
					t.Fatalf("%v: entry %+v", want, e)
				}
				sizes, err := want.Sizes(tinyInner)
				if err != nil || e.Bytes != int64(sizes.Sum()*tinyHidden) {
					t.Errorf("%v: %d bytes, want %d rows of %d", want, e.Bytes, tinyHidden, sizes.Sum())
				}
				for r, row := range matrixOf(t, f, path+".weight") {
					for i, got := range row {
						if want := wantQuantized(bits, group, r, i); got != want {
							t.Fatalf("%d bits, group %d: [%d, %d] is %v, want %v", bits, group, r, i, got, want)
						}
					}
				}
			}
		}
	}
}

func TestLayersMayDifferInHowTheyAreQuantised(t *testing.T) {
	const down, gate, up, query = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
	m := newFolder("llama")
	m.quantized(down, 4, 64, quant.BFloat16)
	m.quantized(gate, 8, 32, quant.BFloat16)
	m.quantized(up, 3, 32, quant.BFloat16)
	m.quantized("model.embed_tokens", 4, 64, quant.BFloat16)
	m.config["quantization"] = map[string]any{"bits": 4, "group_size": 64, "mode": "affine",
		gate:                 map[string]any{"bits": 8, "group_size": 32}, // named
		down:                 true,                                        // named, as the whole
		query:                false,                                       // named, not quantised
		"model.embed_tokens": map[string]any{},                            // the defaults of MLX
		// up is not named: its shapes say how, as mlx-lm infers it
	}
	m.config["quantization_config"] = map[string]any{"quant_method": "what only stands beside it"}
	f := openFolder(t, m)
	for path, want := range map[string]quant.Format{
		down: quant.AffineOf(4, 64, quant.BFloat16), gate: quant.AffineOf(8, 32, quant.BFloat16), up: quant.AffineOf(3, 32, quant.BFloat16),
		query: quant.DenseOf(quant.Float32), "model.embed_tokens": quant.AffineOf(4, 64, quant.BFloat16),
	} {
		if e, _ := f.Entry(path + ".weight"); e.Format != want {
			t.Errorf("%s is %v, want %v", path, e.Format, want)
		}
	}
	if f.Precision() != quant.BFloat16 {
		t.Errorf("precision %v, want that of the scales", f.Precision())
	}
}

func TestFactsOfAFolder(t *testing.T) {
	m := newFolder("llama")
	for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
		m.quantized("model.layers.0.mlp."+p, 8, 64, quant.Float16)
	}
	m.quantized("model.embed_tokens", 4, 64, quant.Float16)
	for name, s := range m.files[oneFile] {
		if s.kind == "F32" {
			m.dense(strings.TrimSuffix(name, ".weight"), quant.BFloat16, s.shape...)
		}
	}
	m.set("model.layers.0.self_attn.rotary_emb.inv_freq", stored{"F32", []int{8}, make([]byte, 32)})
	f := openFolder(t, m)
	facts, err := f.Facts()
	if err != nil {
		t.Fatal(err)
	}
	var used int64
	for name, s := range m.files[oneFile] {
		if !strings.Contains(name, "inv_freq") {
			used += int64(len(s.data))
		}
	}
	if facts.Quantization != "affine 8-bit group 64" || facts.WeightBytes != used || facts.Layers != 1 || facts.KeyValueElementBytes != 4 ||
		facts.HeadSize != tinyHead || facts.ContextTokens != 256 || facts.Architecture != "llama" {
		t.Errorf("facts are %+v, want %d bytes of weights", facts, used)
	}
	st, err := os.Stat(filepath.Join(f.Folder().Path(), oneFile))
	if err != nil || f.Bytes() != st.Size() {
		t.Errorf("%d bytes on disk, want %d", f.Bytes(), st.Size())
	}
}

func TestTheHeadFollowsTheConfiguration(t *testing.T) {
	for name, c := range map[string]struct {
		tie     any
		head    bool
		want    error
		hasHead bool
	}{
		"tied, without a head":             {true, false, nil, false},
		"tied, with a copy, is still tied": {true, true, nil, false},
		"its own head":                     {false, true, nil, true},
		"its own head, but none is there":  {false, false, weights.ErrMissing, false},
		"not said, with a head":            {nil, true, nil, true},
		"not said, without a head":         {nil, false, nil, false},
		"said in text":                     {"yes", false, weights.ErrInvalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFolder("llama")
			m.config["tie_word_embeddings"] = c.tie
			if c.head {
				m.dense("lm_head", quant.Float32, tinyVocabulary, tinyHidden)
			}
			f, err := weights.Open(m.write(t))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil {
				if _, ok := f.Entry("lm_head.weight"); ok != c.hasHead {
					t.Errorf("a head: %v, want %v", ok, c.hasHead)
				}
				f.Close()
			}
		})
	}
}

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
		"a tensor nobody knows":            {shaped("model.layers.0.extra.weight", "F32", 1), weights.ErrInvalid, "does not have"},
		"a bias":                           {shaped(down+".bias", "F32", tinyHidden), weights.ErrInvalid, "down_proj.bias"},
		"a layer that nobody asked for":    {shaped("model.layers.1.input_layernorm.weight", "F32", tinyHidden), weights.ErrInvalid, "layers.1"},
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
		"mxfp4":                                 {affine(quantization(map[string]any{"group_size": 32, "bits": 4, down: map[string]any{"mode": "mxfp4", "bits": 4, "group_size": 32}})), weights.ErrUnsupported, "mxfp4"},
		"scales of eight bits":                  {affine(shaped(down+".scales", "U8", tinyHidden, tinyInner/64)), weights.ErrUnsupported, "mxfp4, nvfp4, mxfp8"},
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
		"a file that the index forgot":  {sharded(func(m *modelFolder) { m.files["model-3.safetensors"] = nil }), weights.ErrInvalid, "does not name model-3"},
		"an index with a missing entry": {sharded(func(m *modelFolder) { delete(m.index, "model.norm.weight") }), weights.ErrInvalid, "does not have it"},
		"an index with one too many":    {sharded(func(m *modelFolder) { m.index["model.more.weight"] = first }), weights.ErrMissing, "model.more.weight"},
		"an index that is wrong": {sharded(func(m *modelFolder) {
			for name, file := range m.index {
				m.index[name] = map[string]string{first: second, second: first}[file]
			}
		}), weights.ErrInvalid, "it is in"},
		"an index that is not JSON":       {sharded(func(m *modelFolder) { m.literal["model.safetensors.index.json"] = "[" }), weights.ErrInvalid, "index.json"},
		"an index that leads out":         {sharded(func(m *modelFolder) { m.index["a"] = "../model-other.safetensors" }), weights.ErrInvalid, "beside it"},
		"an index with a path":            {sharded(func(m *modelFolder) { m.index["a"] = "model/x.safetensors" }), weights.ErrInvalid, "beside it"},
		"an index with an absolute path":  {sharded(func(m *modelFolder) { m.index["a"] = "/etc/passwd" }), weights.ErrInvalid, "beside it"},
		"an index with another extension": {sharded(func(m *modelFolder) { m.index["a"] = "model.bin" }), weights.ErrInvalid, "beside it"},
		"a tensor in two files": {func(m *modelFolder) {
			m.files["model-2.safetensors"] = map[string]stored{"model.norm.weight": m.files[oneFile]["model.norm.weight"]}
		}, weights.ErrInvalid, "is also in"},
		"a .gguf beside safetensors": {func(m *modelFolder) { m.literal["m.gguf"] = "GGUF" }, weights.ErrNoModel, "name the file"},
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
				t.Errorf("error %v, want one that says that the link leads out", err)
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

// largeFolder is a folder with a matrix of many pieces.
func largeFolder(t *testing.T) (*weights.File, weights.Entry) {
	t.Helper()
	m := newFolder("llama")
	const vocabulary = 60_000
	m.config["vocab_size"] = vocabulary
	m.dense("model.embed_tokens", quant.Float16, vocabulary, tinyHidden)
	m.quantized("model.embed_tokens", 8, 32, quant.Float16)
	f := openFolder(t, m)
	e, _ := f.Entry("model.embed_tokens.weight")
	if e.Bytes < 3<<20 {
		t.Fatalf("%d bytes are too few pieces", e.Bytes)
	}
	return f, e
}

func TestRowsOfManyPiecesComeWhole(t *testing.T) {
	f, e := largeFolder(t)
	for r, row := range matrixOf(t, f, e.Path) {
		for i, got := range row {
			if want := wantQuantized(8, 32, r, i); got != want {
				t.Fatalf("[%d, %d] is %v, want %v", r, i, got, want)
			}
		}
	}
	var mu sync.Mutex
	seen := map[int]bool{}
	if err := f.Place(context.Background(), e, func(row int, r quant.Row) error {
		v := make([]float32, e.Columns())
		if err := e.Format.Dequantize(r, v); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if seen[row] || v[5] != wantQuantized(8, 32, row, 5) || v[63] != wantQuantized(8, 32, row, 63) {
			return fmt.Errorf("row %d came twice, or is %v", row, v)
		}
		seen[row] = true
		return nil
	}); err != nil || len(seen) != e.Rows() {
		t.Errorf("%d of %d rows were placed: %v", len(seen), e.Rows(), err)
	}
}

func TestLoadingStopsAtTheFirstFault(t *testing.T) {
	f, e := largeFolder(t)
	for name, load := range map[string]func(context.Context, weights.Entry, func(int, quant.Row) error) error{"Rows": f.Rows, "Place": f.Place} {
		full := errors.New("no memory")
		err := load(context.Background(), e, func(row int, _ quant.Row) error {
			if row > 20_000 {
				return full
			}
			return nil
		})
		if !errors.Is(err, full) {
			t.Errorf("%s: error %v, want that of the receiver", name, err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		err = load(ctx, e, func(row int, _ quant.Row) error {
			if row == 100 {
				cancel()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", name, err)
		}
	}
}

func TestAShardThatShrinksWhileItIsLoadedIsAnError(t *testing.T) {
	f, e := largeFolder(t)
	if err := os.Truncate(filepath.Join(f.Folder().Path(), oneFile), f.Bytes()-2<<20); err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func(context.Context, weights.Entry, func(int, quant.Row) error) error{"Rows": f.Rows, "Place": f.Place} {
		var failed error
		for _, e := range append(f.Entries(), e) {
			failed = errors.Join(failed, load(context.Background(), e, func(int, quant.Row) error { return nil }))
		}
		if !errors.Is(failed, weights.ErrTruncated) {
			t.Errorf("%s: error %v, want ErrTruncated", name, failed)
		}
	}
}

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
		"factor and old context":     {add(scaling("yarn"), factor, whole("llama.rope.scaling.original_context_length", 64)), nil, ""},
		"without a factor":           {add(scaling("yarn")), weights.ErrMissing, "factor"},
		"an old context of nothing":  {add(scaling("yarn"), factor, whole("llama.rope.scaling.original_context_length", 0)), weights.ErrInvalid, "original_context"},
		"a key that changes it":      {add(scaling("yarn"), factor, float("llama.rope.scaling.yarn_beta_fast", 16)), weights.ErrUnsupported, "yarn_beta_fast"},
		"a kind that is not there":   {add(scaling("longrope"), factor), weights.ErrUnsupported, "longrope"},
		"linear, of the same factor": {add(scaling("linear"), factor), nil, ""},
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
