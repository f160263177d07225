package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
	indexFile      = "model.safetensors.index.json"
	// maxJSON and maxCopied bound a file that is read, and one that is copied.
	maxJSON   = 4 << 20
	maxCopied = 256 << 20
)

// copied are the files of a folder that go along: tokenizer, templates, and
// how to generate.
func copied() []string {
	return []string{
		"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
		"chat_template.jinja", "chat_template.json", generationFile, "LICENSE", "LICENSE.txt", "NOTICE",
	}
}

// templatesFolder is where transformers keeps further chat templates.
const templatesFolder = "additional_chat_templates"

// sideFiles are all files but the weights.
func sideFiles(ctx context.Context, f *weights.File, p *plan) (map[string]content, error) {
	files := map[string]content{}
	if len(p.shards) > 1 {
		text, err := p.index()
		if err != nil {
			return nil, err
		}
		files[indexFile] = textContent(text)
	}
	cfg, err := newConfig(ctx, f, p)
	if err != nil {
		return nil, err
	}
	text, err := indented(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	files[configFile] = textContent(text)
	if f.Folder() != nil {
		return files, copies(f.Folder(), files)
	}
	return files, tokenizerFiles(f, files)
}

// copies enters the files of a folder that go along.
func copies(dir *folder.Folder, files map[string]content) error {
	for _, name := range copied() {
		if dir.Has(name) {
			files[name] = copyOf(dir, "", name)
		}
	}
	if !dir.Has(templatesFolder) {
		return nil
	}
	sub, err := dir.Sub(templatesFolder)
	if err != nil {
		return fmt.Errorf("%w: %w", weights.ErrInvalid, err)
	}
	defer sub.Close()
	names, err := sub.Names(".jinja")
	if err != nil {
		return fmt.Errorf("%w: %w", weights.ErrInvalid, err)
	}
	for _, name := range names {
		files[templatesFolder+"/"+name] = copyOf(dir, templatesFolder, name)
	}
	return nil
}

// copyOf opens a file of a folder, or of a folder inside it, and refuses one
// that is too large.
func copyOf(dir *folder.Folder, inside, name string) content {
	return func() (io.ReadCloser, error) {
		from := dir
		if inside != "" {
			sub, err := dir.Sub(inside)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", weights.ErrInvalid, err)
			}
			defer sub.Close()
			from = sub
		}
		file, err := from.File(name)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", weights.ErrInvalid, err)
		}
		st, err := file.Stat()
		if err == nil && st.Size() > maxCopied {
			err = fmt.Errorf("%s has %d bytes, more than %d: %w", name, st.Size(), int64(maxCopied), weights.ErrInvalid)
		}
		if err != nil {
			file.Close()
			return nil, err
		}
		return file, nil
	}
}

// index is the JSON that maps tensors to files.
func (p *plan) index() ([]byte, error) {
	files := map[string]string{}
	for _, s := range p.shards {
		for _, part := range s.parts {
			files[part.name] = s.name
		}
	}
	return indented(map[string]any{"metadata": map[string]int64{"total_size": p.bytes}, "weight_map": files})
}

// indented is JSON as people read it, with the characters of templates and
// tokens as they are.
func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// newConfig is config.json: that of the folder, or what the header of a GGUF
// file says, with the new formats.
func newConfig(ctx context.Context, f *weights.File, p *plan) (map[string]any, error) {
	cfg := map[string]any{}
	if dir := f.Folder(); dir != nil {
		text, err := dir.Read(configFile, maxJSON)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", weights.ErrInvalid, err)
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber() // so that every number stays as it is written
		if err := d.Decode(&cfg); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", configFile, weights.ErrInvalid, err)
		}
		if text := family.Decoder(cfg); text != nil { // without its vision encoder
			cfg = text
		}
		hybridWords(cfg, f.Dim)
		modernRope(cfg)
		modernWindows(cfg, f.Dim)
	} else if err := configOfGGUF(ctx, f, cfg); err != nil {
		return nil, err
	}
	d := f.Dim
	_, untied := f.Entry("lm_head.weight")
	for key, v := range map[string]any{
		"hidden_size": d.Hidden, "num_hidden_layers": d.Layers, "intermediate_size": d.FeedForward, "num_attention_heads": d.QueryHeads,
		"num_key_value_heads": d.KVHeads, "head_dim": d.HeadSize, "vocab_size": d.Vocabulary, "max_position_embeddings": d.Context,
		"tie_word_embeddings": !untied, "torch_dtype": p.dense.String(),
	} {
		cfg[key] = v
	}
	delete(cfg, "_name_or_path")
	delete(cfg, "dtype") // the key of transformers 5; torch_dtype stays
	delete(cfg, "quantization")
	delete(cfg, "quantization_config")
	if q := p.quantization(f.Dim); q != nil {
		cfg["quantization"], cfg["quantization_config"] = q, q // both, as mlx-lm writes them
	}
	return cfg, nil
}

// modernRope says in the older words too what transformers 5 says in
// rope_parameters: mlx-lm 0.32.2's llama reads the older ones alone.
func modernRope(cfg map[string]any) {
	params, ok := cfg["rope_parameters"].(map[string]any)
	if !ok {
		return
	}
	if cfg["rope_theta"] == nil && params["rope_theta"] != nil {
		cfg["rope_theta"] = params["rope_theta"]
	}
	if kind := params["rope_type"]; cfg["rope_scaling"] == nil && kind != nil && kind != "default" {
		cfg["rope_scaling"] = params
	}
}

// modernWindows says in the older words what transformers 5 says of the layers
// of a Gemma one by one; mlx-lm 0.32.2 knows one pattern and two bases. A
// pattern that is none stays as it is written.
func modernWindows(cfg map[string]any, d family.Dimensions) {
	params, ok := cfg["rope_parameters"].(map[string]any)
	if d.LocalRope == nil || !ok && cfg["layer_types"] == nil {
		return
	}
	cfg["rope_theta"], cfg["rope_local_base_freq"] = d.Rope.Theta, d.LocalRope.Theta
	if full, ok := params["full_attention"].(map[string]any); ok && cfg["rope_scaling"] == nil && full["rope_type"] != nil && full["rope_type"] != "default" {
		cfg["rope_scaling"] = full
	}
	pattern := slices.Index(d.Everywhere, true) + 1
	for i, everywhere := range d.Everywhere {
		if everywhere != (pattern > 0 && (i+1)%pattern == 0) {
			return
		}
	}
	if pattern == 0 {
		pattern = d.Layers + 1
	}
	cfg["sliding_window_pattern"] = pattern
}

// quantization is what mlx-lm reads: the format of most bytes, and by path
// those that differ. nil where nothing is quantised.
func (p *plan) quantization(d family.Dimensions) map[string]any {
	type grouping struct {
		bits, group int
		mode        string
	}
	of := func(f quant.Format) grouping {
		g := grouping{f.Bits, f.Group, "affine"}
		if f.BlockFloat() {
			g.mode = f.String()
		}
		return g
	}
	bytes, most := map[grouping]int64{}, grouping{}
	for _, t := range p.tensors {
		if g := of(t.format); t.format.Quantized() {
			if bytes[g] += t.parts[0].bytes(); most.bits == 0 || bytes[g] > bytes[most] {
				most = g
			}
		}
	}
	if most.bits == 0 {
		return nil
	}
	say := func(g grouping) map[string]any {
		return map[string]any{"bits": g.bits, "group_size": g.group, "mode": g.mode}
	}
	q := say(most)
	for _, t := range p.tensors {
		if g := of(t.format); t.format.Quantized() && g != most {
			q[namedInMLX(t.layer(), d)] = say(g)
		}
	}
	return q
}

// configOfGGUF converts the header of a GGUF file.
func configOfGGUF(ctx context.Context, f *weights.File, cfg map[string]any) error {
	d, h := f.Dim, f.Header()
	classes := map[string]string{"gemma3_text": "Gemma3ForCausalLM", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
	class := classes[d.Architecture]
	if class == "" {
		return &weights.UnsupportedError{Subject: "architecture", Value: d.Architecture, Supported: slices.Sorted(maps.Keys(classes))}
	}
	if d.Rope.Size != d.HeadSize {
		return &weights.UnsupportedError{Subject: "rotation of", Value: fmt.Sprintf("%d of %d elements of a head", d.Rope.Size, d.HeadSize), Supported: []string{"all"}}
	}
	cfg["architectures"], cfg["model_type"] = []string{class}, d.Architecture
	cfg["hidden_act"], cfg["rms_norm_eps"], cfg["rope_theta"] = "silu", shortest(d.NormEps), shortest(d.Rope.Theta)
	cfg["attention_bias"] = false
	if d.LocalRope != nil {
		gemmaOfGGUF(d, cfg)
	}
	if x := d.Experts; x.Count > 0 {
		cfg["num_experts"], cfg["num_experts_per_tok"], cfg["moe_intermediate_size"] = x.Count, x.PerToken, x.FeedForward
		cfg["norm_topk_prob"], cfg["decoder_sparse_step"], cfg["mlp_only_layers"] = x.Normalized, x.Step, []int{}
	}
	for name, key := range map[string]string{"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"} {
		if id, ok := h.Integer("tokenizer.ggml." + key + "_token_id"); ok {
			cfg[name] = id
		}
	}
	scaling, err := scalingOfGGUF(ctx, f)
	if err == nil && scaling != nil {
		cfg["rope_scaling"] = scaling
	}
	return err
}

// gemmaOfGGUF sets the options of a Gemma. Its pattern is the index of the
// first layer with full attention, or a number that no layer reaches.
func gemmaOfGGUF(d family.Dimensions, cfg map[string]any) {
	delete(cfg, "hidden_act")
	cfg["hidden_activation"], cfg["query_pre_attn_scalar"] = "gelu_pytorch_tanh", shortest(d.QueryScalar)
	cfg["sliding_window"], cfg["rope_local_base_freq"] = d.Window, shortest(d.LocalRope.Theta)
	pattern := slices.Index(d.Everywhere, true) + 1
	if pattern == 0 {
		pattern = d.Layers + 1
	}
	cfg["sliding_window_pattern"] = pattern
}

// shortest is a number that was a float32: 1e-05, not 9.999999747378752e-06.
func shortest(v float64) json.Number {
	if float64(float32(v)) == v {
		return json.Number(strings.TrimSpace(fmt.Sprint(float32(v))))
	}
	return json.Number(fmt.Sprint(v))
}

// scalingOfGGUF says in the words of config.json how positions are stretched;
// nil where they are not.
func scalingOfGGUF(ctx context.Context, f *weights.File) (map[string]any, error) {
	d, h := f.Dim, f.Header()
	family, _ := h.Text("general.architecture")
	kind, _ := h.Text(family + ".rope.scaling.type")
	e, factors := f.Entry(factorsPath)
	factor, _ := h.Float(family + ".rope.scaling.factor")
	switch {
	case factors && (kind == "yarn" || kind == "linear" && factor != 1):
		return nil, &weights.UnsupportedError{Subject: "rope scaling", Value: kind + " with rope_freqs", Supported: []string{"one of them"}}
	case factors:
		return llama3OfGGUF(ctx, f, e)
	case kind == "linear":
		return map[string]any{"rope_type": "linear", "type": "linear", "factor": shortest(factor)}, nil
	case kind == "yarn":
		before, ok := h.Integer(d.Architecture + ".rope.scaling.original_context_length")
		if !ok {
			before = int64(d.Context)
		}
		return map[string]any{"rope_type": "yarn", "type": "yarn", "factor": shortest(factor), "original_max_position_embeddings": before}, nil
	}
	return nil, nil
}

// llama3OfGGUF finds the words for the factors of a Llama 3.
func llama3OfGGUF(ctx context.Context, f *weights.File, e weights.Entry) (map[string]any, error) {
	values, err := f.Values(ctx, e)
	if err != nil {
		return nil, err
	}
	s, ok := f.Dim.Rope.Llama3(values)
	if !ok {
		return nil, &weights.UnsupportedError{Subject: "rope scaling", Value: "factors that no Llama 3 model has", Supported: []string{"those of Llama 3"}}
	}
	return map[string]any{
		"rope_type": "llama3", "type": "llama3", "factor": shortest(s.Factor), "low_freq_factor": shortest(s.Low), "high_freq_factor": shortest(s.High),
		"original_max_position_embeddings": int64(s.Context),
	}, nil
}
