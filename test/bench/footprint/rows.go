package footprint

import (
	"context"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/scenario"
)

// row is a model to measure.
type row struct {
	name string
	// family of metal/arch whose code it runs.
	family string
	// quick is promised on a quick back end, slow on a slow one: MLX on a processor
	// computes a token or two per second where numbers have 16 bits.
	quick, slow promise
	// reads: an embedding model or reranker.
	reads bool
	// sight is how the images of a model with a vision tower are filled; nil without one.
	sight *sight
	// ready fetches, converts or writes the model unless it is there, and returns
	// its path.
	ready func(context.Context) (string, error)
}

// promise is a context that is promised and filled.
type promise struct{ tokens, sequences int }

// rows hold at least one model of every kind of cache that a family has, and of
// every format of weights.
func rows(e *scenario.Env) []row {
	if e == nil {
		e = &scenario.Env{}
	}
	dir := e.Model("footprint")
	out := realRows(e, dir)
	for _, r := range random() {
		path := filepath.Join(dir, r.config.Name)
		out = append(out, row{name: r.config.Name, family: string(r.config.Family), quick: r.quick, slow: r.slow,
			ready: func(context.Context) (string, error) { return models.Write(path, r.config, r.layout) }})
	}
	for _, r := range described(7) {
		path := filepath.Join(dir, r.model.Name)
		out = append(out, row{name: r.model.Name, family: r.model.Config["model_type"].(string), quick: r.quick, slow: r.slow,
			ready: func(context.Context) (string, error) { return models.WriteDescribed(path, r.model) }})
	}
	for _, r := range readers() {
		path := filepath.Join(dir, r.reader.Name)
		out = append(out, row{name: r.reader.Name, family: r.reader.Family, quick: r.quick, slow: r.slow, reads: true,
			ready: func(context.Context) (string, error) { return models.WriteReader(path, r.reader) }})
	}
	return append(out, seers(dir)...)
}

// realRows are models that people serve, as they are and converted. Q4_1 has few
// bits and no float type of its own, so the conversion names the type.
func realRows(e *scenario.Env, dir string) []row {
	long, reading := promise{512, 2}, promise{256, 4} // MiniLM reads no more of a text
	fetch := func(name string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) { return models.Fetch(ctx, name) }
	}
	converted := func(name string, slow promise, args ...string) row {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		return row{name: name, family: "llama", quick: long, slow: slow, ready: func(ctx context.Context) (string, error) {
			from, err := models.Fetch(ctx, "smollm2")
			if err != nil {
				return "", err
			}
			return models.Convert(ctx, e.Engine, from, path, args...)
		}}
	}
	return []row{
		{name: "SmolLM2-135M Q4_1", family: "llama", quick: long, slow: promise{256, 1}, ready: fetch("smollm2")},
		converted("SmolLM2-135M 4-bit", promise{64, 1}, "--quantize", "4", "--dtype", "bfloat16"),
		converted("SmolLM2-135M bfloat16", promise{32, 1}, "--dtype", "bfloat16"),
		{name: "all-MiniLM-L6-v2", family: "bert", quick: reading, slow: reading, reads: true, ready: fetch("minilm")},
	}
}

// written is a random model.
type written struct {
	config      tinymodel.Config
	layout      *tinymodel.Layout // nil for a GGUF file
	quick, slow promise
}

// random models have every head size that kernels distinguish, with and without
// grouped heads, in several formats; vocabularies of two common sizes show what a
// tokenizer takes. None ends its turn by itself, and none is smaller than SmolLM2
// in 4 bits (76 MB): of less, the process itself would decide the ratio.
func random() []written {
	base := tinymodel.Config{Seed: 1, Layers: 12, Hidden: 512, FeedForward: 2048, Context: 4096, Vocabulary: 32000, Merged: true, NormEps: 1e-5, Theta: 10000, Endless: true}
	of := func(name string, family tinymodel.Family, heads, kvHeads, size int) tinymodel.Config {
		c := base
		c.Name, c.Family, c.QueryHeads, c.KVHeads, c.HeadSize = name, family, heads, kvHeads, size
		return c
	}
	deep := func(c tinymodel.Config) tinymodel.Config {
		c.Layers = 28
		return c
	}
	folder := func(f quant.Format) *tinymodel.Layout { return &tinymodel.Layout{Matrices: f, ShardBytes: 5e9} }
	q8 := of("llama-32000-heads-of-96-Q8_0.gguf", tinymodel.Llama, 6, 3, 96)
	q8.Type = weights.Q8_0
	wide := of("qwen3-151936-heads-of-128", tinymodel.Qwen3, 8, 2, 128)
	wide.Vocabulary = 151936
	large := tinymodel.Sized(1e9, 32)
	large.Name, large.Context, large.Endless, large.Merged, large.Seed = "llama-1-gigabyte-float32", 4096, true, true, 1
	experts := of("gpt-oss-32000-heads-of-64-mxfp4", tinymodel.GPTOSS, 16, 4, 64)
	experts.Window, experts.FeedForward = 128, 512
	experts.Experts, experts.Scaling = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512}, tinymodel.Scaling{Kind: "yarn", Factor: 32, Original: 4096, Fractional: true}
	recurrent := func(c tinymodel.Config) tinymodel.Config {
		c.Layers, c.Hybrid = 28, tinymodel.Hybrid{Interval: 4, KeyHeads: 4, KeySize: 128, ValueHeads: 8, ValueSize: 128, Taps: 4, Rotary: 0.25}
		return c
	}
	mixture := deep(of("qwen3-moe-32000-heads-of-128-4-bit", tinymodel.Qwen3MoE, 8, 2, 128))
	mixture.Experts = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512}
	both := recurrent(of("qwen3-next-32000-states-of-128-4-bit", tinymodel.Qwen3Next, 4, 1, 256))
	both.Experts = tinymodel.Experts{Count: 8, PerToken: 2, FeedForward: 512, Shared: 512}
	drafts := recurrent(of("qwen3.5-32000-draft-head-4-bit", tinymodel.Qwen35, 4, 1, 256))
	drafts.Drafts = tinymodel.LikelyDrafts
	window := deep(of("gemma3-32000-windows-of-256-4-bit", tinymodel.Gemma3, 4, 1, 256))
	window.Window = 256
	packed, quick, slow, half, brief := models.Packed(), promise{1024, 1}, promise{256, 1}, promise{64, 1}, promise{32, 1}
	return []written{
		{of("llama-32000-heads-of-64-bfloat16", tinymodel.Llama, 8, 8, 64), folder(quant.DenseOf(quant.BFloat16)), quick, half},
		{deep(of("llama-32000-heads-of-80-6-bit", tinymodel.Llama, 8, 2, 80)), folder(quant.AffineOf(6, 64, quant.BFloat16)), quick, half},
		{q8, nil, quick, slow},
		{deep(of("qwen3-32000-heads-of-256-4-bit-bfloat16", tinymodel.Qwen3, 4, 1, 256)), packed, quick, brief},
		{of("qwen2-32000-heads-of-64-8-bit", tinymodel.Qwen2, 8, 2, 64), folder(quant.AffineOf(8, 64, quant.BFloat16)), quick, brief},
		{mixture, packed, quick, brief},
		{window, packed, quick, brief},
		{wide, packed, quick, half},
		{experts, folder(quant.DenseOf(quant.BFloat16)), quick, half},
		{recurrent(of("qwen3.5-32000-states-of-128-4-bit", tinymodel.Qwen35, 4, 1, 256)), packed, quick, half},
		{drafts, packed, quick, half},
		{both, packed, quick, half},
		{large, folder(quant.DenseOf(quant.Float32)), promise{256, 1}, promise{256, 1}},
	}
}

// config is a random model that its configuration describes.
type config struct {
	model       tinymodel.Described
	quick, slow promise
}

// described models have every kind of cache, four layers for each of periods, and large
// caches next to their weights: long contexts where a cache grows, many requests where it
// does not. That of DeepSeek V2 has experts and heads in 4 bits.
func described(periods int) []config {
	latent := tinymodel.Described{Name: "deepseek-v2-32000-latents-of-512-4-bit", Seed: 1, Matrices: models.Packed().Matrices, Config: map[string]any{
		"model_type": "deepseek_v2", "architectures": []string{"DeepseekV2ForCausalLM"},
		"hidden_size": 512, "num_hidden_layers": 4 * periods, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8,
		"vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": false, "attention_bias": false,
		"kv_lora_rank": 512, "q_lora_rank": nil, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
		"moe_intermediate_size": 512, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1,
		"norm_topk_prob": false, "routed_scaling_factor": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
	}}
	out := []config{{latent, promise{1024, 1}, promise{64, 1}}}
	for _, m := range tinymodel.Growing(periods) {
		slow := promise{2048, 1}
		if strings.Contains(m.Name, "latents") { // which a processor copies for every head
			slow.tokens = 1024
		}
		out = append(out, config{m, promise{2048, 1}, slow})
	}
	for _, m := range tinymodel.Constant(periods) {
		out = append(out, config{m, promise{256, 8}, promise{256, 8}})
	}
	return out
}

// reader is a random embedding model or reranker.
type reader struct {
	reader      tinymodel.Reader
	quick, slow promise
}

// readers are one of each family in addition to the real one: an encoder in
// float32 with the vocabulary of XLM-RoBERTa, one in half precision with a head,
// and a decoder that makes vectors, whose texts are in its cache while it reads.
func readers() []reader {
	many := tinymodel.Reader{Name: "xlm-roberta-250002-float32", Family: "xlm-roberta", Pooling: "mean",
		Size: tinymodel.Size{Hidden: 256, Inner: 1024, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 250_002}}
	half := tinymodel.Reader{Name: "bert-30522-rerank-bfloat16", Family: "bert", Rerank: true, Type: quant.BFloat16,
		Size: tinymodel.Size{Hidden: 512, Inner: 2048, Heads: 8, Layers: 12, Positions: 512, Vocabulary: 30_522}}
	decoder := tinymodel.Reader{Name: "qwen3-embedding-32000-bfloat16", Family: "qwen3", Pooling: "lasttoken", Type: quant.BFloat16,
		Size: tinymodel.Size{Hidden: 512, Inner: 2048, Heads: 8, Layers: 12, Positions: 4096, Vocabulary: 32_000}}
	return []reader{{many, promise{512, 4}, promise{512, 1}}, {half, promise{512, 4}, promise{64, 1}}, {decoder, promise{512, 1}, promise{32, 1}}}
}
