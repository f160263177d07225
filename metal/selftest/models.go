package selftest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// network is a small random model: two layers of a family, written to a folder
// as a model is published, loaded and run.
type network struct {
	family string
	t      quant.Type
	// bits of the matrices, in groups of 64; 0 for dense ones.
	bits int
}

const (
	hidden, inner, vocabulary    = 256, 512, 1000
	layers, heads, kvHeads, head = 2, 4, 2, 64
	promptTokens, decodedTokens  = 150, 12
)

func models() []check {
	var out []check
	for _, n := range []network{
		{"llama", quant.Float32, 0}, {"qwen3", quant.Float32, 4},
		{"llama", quant.BFloat16, 4}, {"qwen3", quant.BFloat16, 0}, {"llama", quant.Float16, 8},
	} {
		name := fmt.Sprintf("model: %s, %v", n.family, n.t)
		if n.bits != 0 {
			name += fmt.Sprintf(", %d bits", n.bits)
		}
		out = append(out, check{name, n.run})
	}
	return out
}

// run decodes the same tokens on ref and on the back end under test, and
// compares the logits of every step. Roundings add up from layer to layer.
func (n network) run(x *bench) {
	folder, err := os.MkdirTemp("", "metalfleet-selftest-")
	if err != nil {
		x.fail(err)
		return
	}
	defer os.RemoveAll(folder)
	if err := n.write(folder); err != nil {
		x.fail(err)
		return
	}
	tokens := make([]int32, promptTokens)
	for i := range tokens {
		tokens[i] = int32((i*131 + i*i*7 + 3) % vocabulary)
	}
	want, err := decode(x.ctx, folder, ref.New(ref.Options{Threads: 1}), &tokens)
	if err != nil {
		x.fail(fmt.Errorf("on ref: %w", err))
		return
	}
	b, err := x.open()
	if err != nil {
		x.fail(err)
		return
	}
	got, err := decode(x.ctx, folder, b, &tokens)
	if err != nil {
		x.fail(err)
		return
	}
	x.mode = mode{n.t}
	limit := 3 * x.product()
	if n.bits != 0 {
		limit = 3 * x.packed()
	}
	if x.tolerance.wide { // it is ref itself, with other threads
		limit = 0
	}
	for i, logits := range got {
		exact := make([]float64, len(logits))
		for j, v := range want[i] {
			exact[j] = float64(v)
		}
		x.near(fmt.Sprintf("logits after %d tokens", promptTokens+i), logits, exact, limit)
	}
}

// decode returns the logits after a prompt and after each of the tokens that
// follow it; if none are given, the most likely ones are appended.
func decode(ctx context.Context, folder string, b tensor.Backend, tokens *[]int32) ([][]float32, error) {
	s, err := engine.OpenSession(ctx, folder, b)
	if err != nil {
		return nil, err
	}
	id := s.NewRequest()
	logits, err := s.Extend(ctx, id, (*tokens)[:promptTokens])
	all := [][]float32{logits}
	for at := promptTokens; err == nil && at < promptTokens+decodedTokens; at++ {
		if at == len(*tokens) {
			*tokens = append(*tokens, int32(slices.Index(logits, slices.Max(logits))))
		}
		logits, err = s.Extend(ctx, id, (*tokens)[at:at+1])
		all = append(all, logits)
	}
	s.Drop(id)
	if closed := s.Close(); err == nil {
		err = closed
	}
	return all, err
}

// write makes the folder: config.json and model.safetensors.
func (n network) write(folder string) error {
	config := map[string]any{
		"model_type": n.family, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary,
		"num_attention_heads": heads, "num_key_value_heads": kvHeads, "head_dim": head, "max_position_embeddings": 512,
		"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
	}
	if n.bits != 0 {
		config["quantization"] = map[string]any{"group_size": 64, "bits": n.bits}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "config.json"), text, 0o600); err != nil {
		return fmt.Errorf("write model: %w", err)
	}
	tensors := map[string]stored{}
	shapes := n.shapes()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		if err := n.add(tensors, name, shapes[name], rng); err != nil {
			return fmt.Errorf("write model: %s: %w", name, err)
		}
	}
	return writeTensors(filepath.Join(folder, "model.safetensors"), tensors)
}

// shapes of all tensors, by name; vectors have one number.
func (n network) shapes() map[string][]int {
	out := map[string][]int{"model.embed_tokens": {vocabulary, hidden}, "model.norm": {hidden}, "lm_head": {vocabulary, hidden}}
	for i := range layers {
		layer := fmt.Sprintf("model.layers.%d.", i)
		for name, shape := range map[string][]int{
			"input_layernorm": {hidden}, "post_attention_layernorm": {hidden},
			"self_attn.q_proj": {heads * head, hidden}, "self_attn.k_proj": {kvHeads * head, hidden},
			"self_attn.v_proj": {kvHeads * head, hidden}, "self_attn.o_proj": {hidden, heads * head},
			"mlp.gate_proj": {inner, hidden}, "mlp.up_proj": {inner, hidden}, "mlp.down_proj": {hidden, inner},
		} {
			out[layer+name] = shape
		}
		if n.family == "qwen3" {
			out[layer+"self_attn.q_norm"], out[layer+"self_attn.k_norm"] = []int{head}, []int{head}
		}
	}
	return out
}

// add makes one random tensor: norms about 1, matrices that keep the size of
// what they multiply.
func (n network) add(tensors map[string]stored, name string, shape []int, rng *rand.Rand) error {
	if len(shape) == 1 {
		raw := make([]byte, shape[0]*n.t.Bytes())
		for i := range shape[0] {
			n.t.Put(raw, i, float32(1+rng.NormFloat64()/10))
		}
		tensors[name+".weight"] = stored{n.t, shape, raw}
		return nil
	}
	out, in := shape[0], shape[1]
	format := quant.DenseOf(n.t)
	if n.bits != 0 {
		format = quant.AffineOf(n.bits, 64, n.t)
	}
	var raw, scales, biases []byte
	values := make([]float32, in)
	for range out {
		for i := range values {
			values[i] = float32(rng.NormFloat64() / math.Sqrt(float64(in)))
		}
		row, err := format.NewRow(in)
		if err != nil {
			return err
		}
		if n.bits == 0 {
			for i, v := range values {
				n.t.Put(row.Raw, i, v)
			}
		} else if err := format.Quantize(values, row); err != nil {
			return err
		}
		raw, scales, biases = append(raw, row.Raw...), append(scales, row.Scales...), append(biases, row.Biases...)
	}
	if n.bits == 0 {
		tensors[name+".weight"] = stored{n.t, shape, raw}
		return nil
	}
	tensors[name+".weight"] = stored{words, []int{out, in * n.bits / 32}, raw}
	tensors[name+".scales"] = stored{n.t, []int{out, in / 64}, scales}
	tensors[name+".biases"] = stored{n.t, []int{out, in / 64}, biases}
	return nil
}

// stored is a tensor as a file holds it; words are packed numbers.
type stored struct {
	t     quant.Type
	shape []int
	raw   []byte
}

const words quant.Type = -1

// writeTensors writes a safetensors file: the length of the header, the header,
// the data (https://github.com/huggingface/safetensors, "Format").
func writeTensors(path string, tensors map[string]stored) error {
	names := map[quant.Type]string{quant.Float32: "F32", quant.Float16: "F16", quant.BFloat16: "BF16", words: "U32"}
	header, data := map[string]any{}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		t := tensors[name]
		header[name] = map[string]any{"dtype": names[t.t], "shape": t.shape, "data_offsets": []int{len(data), len(data) + len(t.raw)}}
		data = append(data, t.raw...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("write tensors: %w", err)
	}
	text = append(text, strings.Repeat(" ", (8-len(text)%8)%8)...)
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	if err := os.WriteFile(path, append(file, data...), 0o600); err != nil {
		return fmt.Errorf("write tensors: %w", err)
	}
	return nil
}
