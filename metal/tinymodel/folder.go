package tinymodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Layout is how WriteFolder stores a model.
type Layout struct {
	// Matrices is dense as in Hugging Face's folders, or affine or of small floats
	// as in MLX's.
	// Norms are floats of its type.
	Matrices quant.Format
	// Overrides are the formats of single matrices, by path
	// ("model.layers.0.mlp.down_proj"); dense ones are of the type of Matrices.
	Overrides map[string]quant.Format
	// ShardBytes is the most bytes of tensors in one file; 0 means one file.
	ShardBytes int64
	// Modern writes config.json in the words of transformers 5: rope_parameters
	// for rope_theta and rope_scaling, and dtype for torch_dtype.
	Modern bool
	// Bare writes the decoder as saved without a head: no name begins with
	// "model.". The values are the same.
	Bare bool
	// Extras adds to a Qwen3.5 a part of a vision encoder and one of a
	// multi-token prediction head, which text models ignore.
	Extras bool
	// Sees writes the decoder inside a model with eyes (a Gemma in a gemma3, a
	// Mistral or a Ministral in a mistral3), and random tensors for these.
	Sees bool
}

// inside is what a tensor or layer is called where the decoder is inside.
func (l Layout) inside(name string) string {
	switch {
	case !l.Sees:
		return name
	case l.Modern && strings.HasPrefix(name, "model."):
		return "model.language_" + name
	case l.Modern:
		return name
	}
	return "language_model." + name
}

func (l Layout) of(t tensor) quant.Format {
	if t.rows == 0 || t.kernel || t.eye {
		return quant.DenseOf(l.Matrices.Type)
	}
	if f, ok := l.Overrides[t.path]; ok {
		return f
	}
	return l.Matrices
}

// WriteFolder writes a folder of safetensors, configuration and tokenizer,
// whole or not at all. dir must not exist, or be empty.
func WriteFolder(dir string, c Config, l Layout) error {
	c = c.filled()
	vocab := newVocabulary()
	if err := c.validate(len(vocab.tokens)); err != nil {
		return err
	}
	vocab.fill(c)
	if c.Script != nil || c.Dictation != nil {
		return errors.New("tiny model: one with a script or a dictation is a GGUF file")
	}
	if c.RopeFactors {
		return errors.New("tiny model: a folder has no tensor of rope factors")
	}
	parts, err := c.parts(l)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), ".tinymodel-*")
	if err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	defer os.RemoveAll(work)
	for _, file := range []struct {
		name    string
		content any
	}{
		{"config.json", c.configFile(l)}, {"generation_config.json", c.generation()},
		{"tokenizer.json", c.tokenizer(vocab)}, {"tokenizer_config.json", c.tokenizerConfig()},
	} {
		if err := writeJSON(filepath.Join(work, file.name), file.content); err != nil {
			return err
		}
	}
	if err := writeShards(work, l.producer(), shards(parts, l.ShardBytes)); err != nil {
		return err
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if err := os.Rename(work, dir); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	return nil
}

// parts are all tensors as the layout stores them.
func (c Config) parts(l Layout) ([]part, error) {
	var parts []part
	all := c.tensors()
	if c.Family == GPTOSS && !l.Matrices.Quantized() {
		all = published(all)
	}
	if l.Sees {
		all = append(all, eye("vision_tower.patches"), eye("multi_modal_projector.linear"))
	}
	for _, t := range all {
		if t.norm && (c.Family == Gemma3 || c.Family.hybrid() && !l.Matrices.Quantized()) {
			t.values.mean--
		}
		p, err := t.parts(l.of(t), c.Seed)
		if err != nil {
			return nil, err
		}
		for i := range p {
			if l.Bare {
				p[i].name = strings.TrimPrefix(p[i].name, "model.")
			}
			if !t.eye {
				p[i].name = l.inside(p[i].name)
			}
		}
		parts = append(parts, p...)
	}
	if c.Family.hybrid() {
		parts = c.dressed(parts, l)
	}
	return parts, nil
}

func (l Layout) producer() string {
	if l.Matrices.Quantized() {
		return "mlx"
	}
	return "pt"
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	return nil
}

// config is config.json.
type config struct {
	Architectures []string       `json:"architectures,omitempty"`
	ModelType     Family         `json:"model_type"`
	Hidden        int            `json:"hidden_size"`
	Intermediate  int            `json:"intermediate_size,omitempty"`
	Layers        int            `json:"num_hidden_layers"`
	QueryHeads    int            `json:"num_attention_heads"`
	KVHeads       int            `json:"num_key_value_heads"`
	HeadSize      int            `json:"head_dim,omitempty"`
	Vocabulary    int            `json:"vocab_size"`
	Context       int            `json:"max_position_embeddings"`
	NormEps       float64        `json:"rms_norm_eps"`
	Theta         float64        `json:"rope_theta,omitempty"`
	Scaling       any            `json:"rope_scaling,omitempty"`
	Rope          map[string]any `json:"rope_parameters,omitempty"`
	Window        *int           `json:"sliding_window,omitempty"`
	Experts       int            `json:"num_experts,omitempty"`
	PerToken      int            `json:"num_experts_per_tok,omitempty"`
	ExpertInner   int            `json:"moe_intermediate_size,omitempty"`
	Normalized    *bool          `json:"norm_topk_prob,omitempty"`
	SparseStep    int            `json:"decoder_sparse_step,omitempty"`
	DenseLayers   *[]int         `json:"mlp_only_layers,omitempty"`
	Tied          bool           `json:"tie_word_embeddings"`
	Activation    string         `json:"hidden_act,omitempty"`
	Gated         string         `json:"hidden_activation,omitempty"`
	QueryScalar   int            `json:"query_pre_attn_scalar,omitempty"`
	LocalTheta    float64        `json:"rope_local_base_freq,omitempty"`
	Pattern       int            `json:"sliding_window_pattern,omitempty"`
	LayerTypes    []string       `json:"layer_types,omitempty"`
	KeyHeads      int            `json:"linear_num_key_heads,omitempty"`
	KeySize       int            `json:"linear_key_head_dim,omitempty"`
	ValueHeads    int            `json:"linear_num_value_heads,omitempty"`
	ValueSize     int            `json:"linear_value_head_dim,omitempty"`
	Taps          int            `json:"linear_conv_kernel_dim,omitempty"`
	Interval      int            `json:"full_attention_interval,omitempty"`
	Rotary        float64        `json:"partial_rotary_factor,omitempty"`
	Shared        int            `json:"shared_expert_intermediate_size,omitempty"`
	AttentionBias *bool          `json:"attention_bias,omitempty"`
	TorchDType    string         `json:"torch_dtype,omitempty"`
	DType         string         `json:"dtype,omitempty"`
	BOS           int            `json:"bos_token_id"`
	EOS           int            `json:"eos_token_id"`
	Quantization  map[string]any `json:"quantization,omitempty"`
	Method        map[string]any `json:"quantization_config,omitempty"`
	LocalExperts  int            `json:"num_local_experts,omitempty"`
	GateLimit     json.Number    `json:"swiglu_limit,omitempty"`
}

// words of config.json.
func (c Config) words(l Layout) any {
	if c.Family.hybrid() {
		return c.hybridConfig(c.config(l), l)
	}
	return c.config(l)
}

func (c Config) config(l Layout) config {
	class := map[Family]string{
		Gemma3: "Gemma3ForCausalLM", GPTOSS: "GptOssForCausalLM", Llama: "LlamaForCausalLM", Mistral: "MistralForCausalLM", Ministral3: "Ministral3ForCausalLM",
		Qwen2: "Qwen2ForCausalLM", Qwen3: "Qwen3ForCausalLM", Qwen3MoE: "Qwen3MoeForCausalLM", Qwen3Next: "Qwen3NextForCausalLM",
	}[c.Family]
	out := config{
		Architectures: []string{class}, ModelType: c.Family,
		Hidden: c.Hidden, Intermediate: c.FeedForward, Layers: c.Layers, QueryHeads: c.QueryHeads, KVHeads: c.KVHeads, HeadSize: c.HeadSize,
		Vocabulary: c.Vocabulary, Context: c.Context, NormEps: c.NormEps,
		Tied: !c.Untied, Activation: "silu", BOS: 1, EOS: c.endOfTurn(),
	}
	if c.Family == Qwen2 { // which says neither
		out.HeadSize = 0
	} else {
		out.AttentionBias = new(bool)
	}
	if l.Modern || c.Family == Ministral3 {
		out.DType, out.Rope = l.Matrices.Type.String(), c.Scaling.parameters(c.Theta)
	} else if out.TorchDType, out.Theta = l.Matrices.Type.String(), c.Theta; c.Scaling.Kind != "" {
		out.Scaling = &c.Scaling
	}
	if c.Family == Ministral3 {
		out.Rope["llama_4_scaling_beta"], out.Rope["mscale"], out.Rope["mscale_all_dim"] = c.Growth, 1.0, 1.0
	}
	if x := c.Experts; x.Count > 0 {
		normalized, dense := !x.Unnormalized, append([]int{}, x.Dense...)
		out.Experts, out.PerToken, out.ExpertInner, out.SparseStep = x.Count, x.PerToken, x.FeedForward, max(1, x.Step)
		out.Normalized, out.DenseLayers = &normalized, &dense
	}
	if c.Window > 0 {
		out.Window = &c.Window
	}
	switch c.Family {
	case Gemma3:
		out.gemma(c, l)
	case GPTOSS:
		out.gptoss(c, l)
	}
	if l.Matrices.Quantized() {
		out.Quantization = quantizationWords(l.Matrices)
		for path, f := range l.Overrides {
			if path = l.inside(path); !f.Quantized() {
				out.Quantization[path] = false
				continue
			}
			out.Quantization[path] = quantizationWords(f)
		}
	}
	return out
}

// configFile is config.json: the decoder's, or that of the model around it.
func (c Config) configFile(l Layout) any {
	text := c.config(l)
	if !l.Sees {
		return c.words(l)
	}
	kind, class := "mistral3", "Mistral3ForConditionalGeneration"
	if c.Family == Gemma3 {
		kind, class = "gemma3", "Gemma3ForConditionalGeneration"
	}
	out := map[string]any{
		"model_type": kind, "architectures": []string{class}, "eos_token_id": text.EOS, "bos_token_id": text.BOS,
		"vision_config": map[string]any{"model_type": "siglip_vision_model", "num_hidden_layers": 1}, "vocab_size": c.Vocabulary,
	}
	if text.Quantization != nil {
		out["quantization"], text.Quantization = text.Quantization, nil
	}
	out[textKey] = text
	return out
}

// textKey is where a model with eyes keeps the configuration of its decoder.
const textKey = "text_config"

// gemma sets the options that only a Gemma has.
func (out *config) gemma(c Config, l Layout) {
	out.Activation, out.Gated, out.QueryScalar = "", "gelu_pytorch_tanh", c.QueryScalar
	if !l.Modern {
		out.LocalTheta, out.Pattern = c.LocalTheta, c.Pattern
		return
	}
	out.Rope = map[string]any{"full_attention": c.Scaling.parameters(c.Theta), "sliding_attention": Scaling{}.parameters(c.LocalTheta)}
	for i := range c.Layers {
		kind := "sliding_attention"
		if (i+1)%c.Pattern == 0 {
			kind = "full_attention"
		}
		out.LayerTypes = append(out.LayerTypes, kind)
	}
}

// gptoss sets the options that only a GPT-OSS has.
func (out *config) gptoss(c Config, l Layout) {
	biased := true
	out.AttentionBias, out.GateLimit, out.LocalExperts = &biased, "7.0", c.Experts.Count
	out.Experts, out.ExpertInner, out.SparseStep, out.Normalized, out.DenseLayers = 0, 0, 0, nil, nil
	out.Scaling, out.Theta = nil, 0
	params := c.Scaling.parameters(c.Theta)
	if c.Scaling.Kind == "yarn" {
		params["beta_fast"], params["beta_slow"], params["truncate"] = 32.0, 1.0, !c.Scaling.Fractional
	}
	if out.Rope = params; !l.Modern {
		delete(params, "rope_theta")
		out.Rope, out.Theta, out.Scaling = nil, c.Theta, params
	}
	for i := range c.Layers {
		out.LayerTypes = append(out.LayerTypes, []string{"sliding_attention", "full_attention"}[i%2])
	}
	if !l.Matrices.Quantized() {
		out.Method = map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": []string{"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}
	}
}

// parameters are rope_parameters.
func (s Scaling) parameters(theta float64) map[string]any {
	out := map[string]any{"rope_theta": theta, "rope_type": "default"}
	if s.Kind == "" {
		return out
	}
	out["rope_type"], out["factor"] = s.Kind, s.Factor
	if s.Original > 0 {
		out["original_max_position_embeddings"] = s.Original
	}
	if s.Kind == "llama3" {
		out["low_freq_factor"], out["high_freq_factor"] = s.Low, s.High
	}
	return out
}

func quantizationWords(f quant.Format) map[string]any {
	mode := "affine"
	if f.BlockFloat() {
		mode = f.String()
	}
	return map[string]any{"group_size": f.Group, "bits": f.Bits, "mode": mode}
}

func (c Config) generation() map[string]any {
	return map[string]any{"bos_token_id": 1, "eos_token_id": c.endOfTurn(), "pad_token_id": 2}
}

func (c Config) tokenizerConfig() map[string]any {
	return map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": Template, "model_max_length": c.Context,
		"bos_token": "<|im_start|>", "eos_token": c.token(c.endOfTurn()), "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
		"add_bos_token": false, "clean_up_tokenization_spaces": false,
	}
}

// token is the text of a token that ends a turn.
func (c Config) token(id int) string {
	if id == 2 {
		return "<|im_end|>"
	}
	return reserved(id)
}

// qwenSplit cuts text as Qwen's tokenizer does.
const qwenSplit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// tokenizer is tokenizer.json. Reserved tokens are ordinary entries: added
// ones by the hundred thousand would take a reader minutes.
func (c Config) tokenizer(v *vocabulary) map[string]any {
	byteLevel := func(useRegex bool) map[string]any {
		return map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": useRegex}
	}
	split := []any{map[string]any{"type": "Digits", "individual_digits": true}, byteLevel(true)}
	var normalizer any
	if c.Family.qwen() {
		normalizer = map[string]any{"type": "NFC"}
		split = []any{map[string]any{"type": "Split", "pattern": map[string]any{"Regex": qwenSplit}, "behavior": "Isolated", "invert": false}, byteLevel(false)}
	}
	ids := make(map[string]int, len(v.tokens))
	var added []any
	for id, text := range v.tokens {
		ids[text] = id
		if id < controlTokens || id == c.endOfTurn() {
			added = append(added, map[string]any{
				"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
			})
		}
	}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": normalizer,
		"pre_tokenizer":  map[string]any{"type": "Sequence", "pretokenizers": split},
		"post_processor": nil, "decoder": byteLevel(true),
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": v.merges,
		},
	}
}
