//go:build !race

package weights

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/metal/family"
)

// llamaConfig and qwenConfig are whole configurations; with changes, the last
// of equal keys wins.
const (
	llamaConfig = `"model_type":"llama","hidden_size":576,"num_hidden_layers":30,"intermediate_size":1536,"num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,"rms_norm_eps":1e-05,"max_position_embeddings":8192,"rope_theta":100000`
	qwen2Config = `"model_type":"qwen2","hidden_size":896,"num_hidden_layers":24,"intermediate_size":4864,"num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,"rms_norm_eps":1e-06,"max_position_embeddings":32768,"rope_theta":1000000,"use_sliding_window":false,"sliding_window":32768,"max_window_layers":21,"tie_word_embeddings":true`
	moeConfig   = `"model_type":"qwen3_moe","hidden_size":2048,"num_hidden_layers":48,"intermediate_size":6144,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"rms_norm_eps":1e-06,"max_position_embeddings":40960,"rope_theta":1000000,"num_experts":128,"num_experts_per_tok":8,"moe_intermediate_size":768,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],"router_aux_loss_coef":0.001`
	gemmaConfig = `"model_type":"gemma3_text","hidden_size":1152,"num_hidden_layers":7,"intermediate_size":6912,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"vocab_size":262144,"rms_norm_eps":1e-06,"max_position_embeddings":32768,"rope_theta":1000000,"rope_local_base_freq":10000,"query_pre_attn_scalar":256,"sliding_window":512,"sliding_window_pattern":6,"hidden_activation":"gelu_pytorch_tanh","attn_logit_softcapping":null,"final_logit_softcapping":null,"attention_bias":false,"cache_implementation":"hybrid"`
	qwenConfig  = `"model_type":"qwen3","hidden_size":1024,"num_hidden_layers":28,"intermediate_size":3072,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"vocab_size":151936,"rms_norm_eps":1e-06,"max_position_embeddings":40960,"rope_theta":1000000,"tie_word_embeddings":true`
)

// edited replaces keys of a configuration, adds new ones, and drops those
// whose value is empty.
func edited(base string, changes ...string) string {
	for i := 0; i < len(changes); i += 2 {
		key := `"` + changes[i] + `":`
		if at := strings.Index(base, key); at >= 0 {
			end := strings.IndexByte(base[at:], ',')
			if end < 0 {
				end = len(base) - at - 1
			}
			base = base[:at] + base[at+end+1:]
		}
		if changes[i+1] != "" {
			base = strings.TrimSuffix(base, ",") + "," + key + changes[i+1]
		}
	}
	return "{" + strings.Trim(base, ",") + "}"
}

func dimensionsOf(text string) (family.Dimensions, error) {
	c, err := readConfig([]byte(text))
	if err != nil {
		return family.Dimensions{}, err
	}
	return c.Dimensions()
}

func TestConfigurationsGiveDimensions(t *testing.T) {
	llama := family.Dimensions{Architecture: "llama", Layers: 30, Hidden: 576, FeedForward: 1536, QueryHeads: 9, KVHeads: 3, HeadSize: 64,
		Vocabulary: 49152, Context: 8192, NormEps: 1e-5, Rope: family.Rope{Theta: 1e5, Size: 64, Linear: 1, Magnitude: 1}}
	qwen := family.Dimensions{Architecture: "qwen3", Layers: 28, Hidden: 1024, FeedForward: 3072, QueryHeads: 16, KVHeads: 8, HeadSize: 128,
		Vocabulary: 151936, Context: 40960, NormEps: 1e-6, Rope: family.Rope{Theta: 1e6, Size: 128, Linear: 1, Magnitude: 1}}
	qwen2 := family.Dimensions{Architecture: "qwen2", Layers: 24, Hidden: 896, FeedForward: 4864, QueryHeads: 14, KVHeads: 2, HeadSize: 64,
		Vocabulary: 151936, Context: 32768, NormEps: 1e-6, Rope: family.Rope{Theta: 1e6, Size: 64, Linear: 1, Magnitude: 1}}
	moe := family.Dimensions{Architecture: "qwen3_moe", Layers: 48, Hidden: 2048, FeedForward: 6144, QueryHeads: 32, KVHeads: 4, HeadSize: 128,
		Vocabulary: 151936, Context: 40960, NormEps: 1e-6, Rope: family.Rope{Theta: 1e6, Size: 128, Linear: 1, Magnitude: 1},
		Experts: family.Experts{Count: 128, PerToken: 8, FeedForward: 768, Normalized: true, Step: 1}}
	gemma := family.Dimensions{Architecture: "gemma3_text", Layers: 7, Hidden: 1152, FeedForward: 6912, QueryHeads: 4, KVHeads: 1, HeadSize: 256,
		Vocabulary: 262144, Context: 32768, NormEps: 1e-6, Rope: family.Rope{Theta: 1e6, Size: 256, Linear: 1, Magnitude: 1},
		Window: 512, Everywhere: []bool{5: true, 6: false}, LocalRope: &family.Rope{Theta: 1e4, Size: 256, Linear: 1, Magnitude: 1}, QueryScalar: 256, EmbedScale: 34}
	layers := func(names ...string) string {
		types := map[string]string{"s": `"sliding_attention"`, "f": `"full_attention"`}
		for i, n := range names {
			names[i] = types[n]
		}
		return "[" + strings.Join(names, ",") + "]"
	}
	with := func(d family.Dimensions, change func(*family.Dimensions)) family.Dimensions { change(&d); return d }
	for name, c := range map[string]struct {
		text string
		want family.Dimensions
	}{
		"a Llama":                                {text: edited(llamaConfig), want: llama},
		"a Qwen3":                                {text: edited(qwenConfig), want: qwen},
		"a Qwen2, whose window is off":           {text: edited(qwen2Config), want: qwen2},
		"a Qwen2 without a context":              {text: edited(qwen2Config, "max_position_embeddings", ""), want: qwen2},
		"a Qwen3 of experts":                     {text: edited(moeConfig), want: moe},
		"experts by the name of transformers 5":  {text: edited(moeConfig, "num_experts", "", "num_local_experts", "128", "mlp_only_layers", "null"), want: moe},
		"shares that are not normed":             {text: edited(moeConfig, "norm_topk_prob", "false"), want: with(moe, func(d *family.Dimensions) { d.Experts.Normalized = false })},
		"every second layer, but for the fourth": {text: edited(moeConfig, "decoder_sparse_step", "2", "mlp_only_layers", "[3]"), want: with(moe, func(d *family.Dimensions) { d.Experts.Step, d.Experts.Dense = 2, []int{3} })},
		"experts in every layer by default":      {text: edited(moeConfig, "decoder_sparse_step", "", "mlp_only_layers", ""), want: moe},
		"a Gemma 3":                              {text: edited(gemmaConfig), want: gemma},
		"a Gemma 3 that says little":             {text: edited(gemmaConfig, "rope_theta", "", "rope_local_base_freq", "", "query_pre_attn_scalar", "", "sliding_window_pattern", "", "hidden_activation", ""), want: gemma},
		"a Gemma 3 without a context":            {text: edited(gemmaConfig, "max_position_embeddings", ""), want: with(gemma, func(d *family.Dimensions) { d.Context = 131072 })},
		"a Gemma 3 whose positions are scaled":   {text: edited(gemmaConfig, "rope_scaling", `{"rope_type":"linear","factor":8.0}`), want: with(gemma, func(d *family.Dimensions) { d.Rope.Linear = 8 })},
		"a Gemma 3 of other numbers": {text: edited(gemmaConfig, "rope_local_base_freq", "20000", "query_pre_attn_scalar", "168", "sliding_window", "1024"), want: with(gemma, func(d *family.Dimensions) {
			d.LocalRope, d.QueryScalar, d.Window = &family.Rope{Theta: 2e4, Size: 256, Linear: 1, Magnitude: 1}, 168, 1024
		})},
		"a Gemma 3 with a name for each layer": {text: edited(gemmaConfig, "sliding_window_pattern", "", "layer_types", layers("s", "f", "s", "s", "s", "s", "f")), want: with(gemma, func(d *family.Dimensions) { d.Everywhere = []bool{1: true, 6: true} })},
		"a Gemma 3 in the words of transformers 5": {text: edited(gemmaConfig, "rope_theta", "", "rope_local_base_freq", "", "rope_parameters", `{"full_attention":{"rope_theta":500000.0,"rope_type":"linear","factor":8},"sliding_attention":{"rope_theta":20000.0,"rope_type":"default"}}`),
			want: with(gemma, func(d *family.Dimensions) {
				d.Rope.Theta, d.Rope.Linear, d.LocalRope = 5e5, 8, &family.Rope{Theta: 2e4, Size: 256, Linear: 1, Magnitude: 1}
			})},
		"a Mistral is a Llama":                   {text: edited(llamaConfig, "model_type", `"mistral"`, "sliding_window", "null"), want: llama},
		"a Mistral with a window":                {text: edited(llamaConfig, "model_type", `"mistral"`, "sliding_window", "4096"), want: with(llama, func(d *family.Dimensions) { d.Window = 4096 })},
		"a Llama has no window":                  {text: edited(llamaConfig, "sliding_window", "4096"), want: llama},
		"no key-value heads mean one per head":   {text: edited(llamaConfig, "num_key_value_heads", ""), want: with(llama, func(d *family.Dimensions) { d.KVHeads = 9 })},
		"null is absent":                         {text: edited(llamaConfig, "num_key_value_heads", "null", "head_dim", "null", "rope_scaling", "null"), want: with(llama, func(d *family.Dimensions) { d.KVHeads = 9 })},
		"a head size of its own":                 {text: edited(llamaConfig, "head_dim", "128"), want: with(llama, func(d *family.Dimensions) { d.HeadSize, d.Rope.Size = 128, 128 })},
		"a Llama without theta":                  {text: edited(llamaConfig, "rope_theta", ""), want: with(llama, func(d *family.Dimensions) { d.Rope.Theta = 10000 })},
		"a Llama without a context":              {text: edited(llamaConfig, "max_position_embeddings", ""), want: with(llama, func(d *family.Dimensions) { d.Context = 2048 })},
		"a Mistral without a context":            {text: edited(llamaConfig, "max_position_embeddings", "", "model_type", `"mistral"`), want: with(llama, func(d *family.Dimensions) { d.Context = 131072 })},
		"rope_parameters of transformers 5":      {text: edited(qwenConfig, "rope_theta", "", "rope_parameters", `{"rope_theta":500000.0,"rope_type":"default"}`), want: with(qwen, func(d *family.Dimensions) { d.Rope.Theta = 5e5 })},
		"both keys, with one value":              {text: edited(qwenConfig, "rope_parameters", `{"rope_theta":1000000.0,"rope_type":"default"}`), want: qwen},
		"a theta in rope_scaling":                {text: edited(qwenConfig, "rope_theta", "", "rope_scaling", `{"rope_theta":500000.0,"rope_type":"default"}`), want: with(qwen, func(d *family.Dimensions) { d.Rope.Theta = 5e5 })},
		"no part, said in rope_scaling":          {text: edited(llamaConfig, "rope_scaling", `{"rope_type":"default","partial_rotary_factor":1}`), want: llama},
		"an old context that nothing needs":      {text: edited(llamaConfig, "original_max_position_embeddings", "4096"), want: llama},
		"linear scaling":                         {text: edited(llamaConfig, "rope_scaling", `{"type":"linear","factor":4.0}`), want: with(llama, func(d *family.Dimensions) { d.Rope.Linear = 4 })},
		"linear scaling, in rope_parameters":     {text: edited(llamaConfig, "rope_parameters", `{"rope_type":"linear","factor":4,"rope_theta":100000}`), want: with(llama, func(d *family.Dimensions) { d.Rope.Linear = 4 })},
		"no scaling, by name":                    {text: edited(llamaConfig, "rope_scaling", `{"rope_type":"none"}`), want: llama},
		"layers that all attend to everything":   {text: edited(llamaConfig, "num_hidden_layers", "2", "layer_types", `["full_attention","full_attention"]`), want: with(llama, func(d *family.Dimensions) { d.Layers = 2 })},
		"a window that is switched off":          {text: edited(qwenConfig, "use_sliding_window", "false", "sliding_window", "null", "max_window_layers", "28"), want: qwen},
		"biases that are switched off":           {text: edited(llamaConfig, "attention_bias", "false", "mlp_bias", "false", "hidden_act", `"silu"`), want: llama},
		"biases in attention":                    {text: edited(llamaConfig, "attention_bias", "true"), want: with(llama, func(d *family.Dimensions) { d.Bias, d.OutBias = true, true })},
		"biases in the feed-forward":             {text: edited(llamaConfig, "mlp_bias", "true"), want: with(llama, func(d *family.Dimensions) { d.FeedBias = true })},
		"another name of a Llama":                {text: edited(llamaConfig, "model_type", `"iquestcoder"`), want: llama},
		"dynamic scaling, which begins later":    {text: edited(llamaConfig, "rope_scaling", `{"type":"dynamic","factor":2.0}`), want: llama},
		"sections of a text":                     {text: edited(llamaConfig, "rope_scaling", `{"type":"mrope","mrope_section":[16,24,24]}`), want: llama},
		"keys that do not change how it runs":    {text: edited(llamaConfig, "torch_dtype", `"bfloat16"`, "architectures", `["LlamaForCausalLM"]`, "use_cache", "true"), want: llama},
		"a rotary factor of one":                 {text: edited(llamaConfig, "partial_rotary_factor", "1.0"), want: llama},
		"a norm that adds nothing to its square": {text: edited(llamaConfig, "rms_norm_eps", "0"), want: with(llama, func(d *family.Dimensions) { d.NormEps = 0 })},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dimensionsOf(c.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("dimensions differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigurationsThatCannotBeMeantAreRefused(t *testing.T) {
	scaling := func(text string) string { return edited(llamaConfig, "rope_scaling", text) }
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"not JSON":                            {text: `{"model_type":`, want: ErrTruncated, says: "unexpectedly"},
		"a list":                              {text: `[]`, want: ErrInvalid, says: "object"},
		"a NaN, as Python writes it":          {text: edited(llamaConfig, "rms_norm_eps", "NaN"), want: ErrInvalid, says: "not JSON"},
		"a NaN, as transformers tags it":      {text: edited(llamaConfig, "rms_norm_eps", `{"__float__":"NaN"}`), want: ErrInvalid, says: "rms_norm_eps"},
		"a number beyond float64":             {text: edited(llamaConfig, "rms_norm_eps", "1e999"), want: ErrInvalid, says: "rms_norm_eps"},
		"a negative epsilon":                  {text: edited(llamaConfig, "rms_norm_eps", "-1e-5"), want: ErrInvalid, says: "rms_norm_eps"},
		"a key twice":                         {text: `{"model_type":"llama","model_type":"qwen3"}`, want: ErrInvalid, says: "twice"},
		"deep nesting":                        {text: `{"a":` + strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000) + "}", want: ErrInvalid, says: "deep"},
		"very many values":                    {text: `{"a":[` + strings.Repeat("1,", 1<<19) + "1]}", want: ErrInvalid, says: "values"},
		"something after it":                  {text: edited(llamaConfig) + "{}", want: ErrInvalid, says: "trailing data"},
		"no model type":                       {text: edited(llamaConfig, "model_type", ""), want: ErrMissing, says: "model_type"},
		"experts of a number not said":        {text: edited(moeConfig, "num_experts", ""), want: ErrMissing, says: "num_experts"},
		"experts for a token, not said":       {text: edited(moeConfig, "num_experts_per_tok", ""), want: ErrMissing, says: "num_experts_per_tok"},
		"experts of a width not said":         {text: edited(moeConfig, "moe_intermediate_size", ""), want: ErrMissing, says: "moe_intermediate_size"},
		"shares that may be normed or not":    {text: edited(moeConfig, "norm_topk_prob", ""), want: ErrMissing, says: "norm_topk_prob"},
		"more experts for a token than any":   {text: edited(moeConfig, "num_experts_per_tok", "129"), want: ErrInvalid, says: "129 experts, but there are only 128"},
		"no step from mixture to mixture":     {text: edited(moeConfig, "decoder_sparse_step", "0"), want: ErrInvalid, says: "decoder_sparse_step"},
		"a dense layer that is not there":     {text: edited(moeConfig, "mlp_only_layers", "[48]"), want: ErrInvalid, says: "mlp_only_layers"},
		"a dense layer that is no number":     {text: edited(moeConfig, "mlp_only_layers", `["a"]`), want: ErrInvalid, says: "mlp_only_layers"},
		"dense layers that are no list":       {text: edited(moeConfig, "mlp_only_layers", "3"), want: ErrInvalid, says: "mlp_only_layers"},
		"a Gemma of no window":                {text: edited(gemmaConfig, "sliding_window", "null"), want: ErrMissing, says: "sliding_window"},
		"a Gemma that caps scores":            {text: edited(gemmaConfig, "attn_logit_softcapping", "50.0"), want: ErrUnsupported, says: "attn_logit_softcapping"},
		"a Gemma that caps logits":            {text: edited(gemmaConfig, "final_logit_softcapping", "30.0"), want: ErrUnsupported, says: "final_logit_softcapping"},
		"a Gemma that looks ahead":            {text: edited(gemmaConfig, "use_bidirectional_attention", "true"), want: ErrUnsupported, says: "use_bidirectional_attention"},
		"a Gemma of another activation":       {text: edited(gemmaConfig, "hidden_activation", `"gelu"`), want: ErrUnsupported, says: "hidden_activation"},
		"a Gemma of another kind of layer":    {text: edited(gemmaConfig, "num_hidden_layers", "1", "layer_types", `["linear_attention"]`), want: ErrUnsupported, says: "linear_attention"},
		"a Gemma of two opinions":             {text: edited(gemmaConfig, "num_hidden_layers", "1", "layer_types", `["full_attention"]`), want: ErrInvalid, says: "sliding_window_pattern contradict each other for layer 0"},
		"a Gemma of too few layer types":      {text: edited(gemmaConfig, "layer_types", `["full_attention"]`), want: ErrInvalid, says: "layer_types"},
		"a Gemma of no query scalar":          {text: edited(gemmaConfig, "query_pre_attn_scalar", "0"), want: ErrInvalid, says: "query_pre_attn_scalar"},
		"a Gemma of a small base":             {text: edited(gemmaConfig, "rope_local_base_freq", "1"), want: ErrInvalid, says: "rope_local_base_freq"},
		"a Gemma that scales its windows":     {text: edited(gemmaConfig, "rope_local_base_freq", "", "rope_parameters", `{"sliding_attention":{"rope_type":"linear","factor":2}}`), want: ErrUnsupported, says: "sliding_attention"},
		"a Llama of another activation":       {text: edited(llamaConfig, "hidden_act", `"gelu_pytorch_tanh"`), want: ErrUnsupported, says: "hidden_act"},
		"a Qwen2 whose window is on":          {text: edited(qwen2Config, "use_sliding_window", "true"), want: ErrUnsupported, says: "use_sliding_window"},
		"a Qwen2 without theta":               {text: edited(qwen2Config, "rope_theta", ""), want: ErrMissing, says: "rope_theta"},
		"another model type":                  {text: edited(llamaConfig, "model_type", `"gpt2"`), want: ErrUnsupported, says: "supported: " + strings.Join(family.SupportedModelTypes(), ", ")},
		"a model that sees":                   {text: `{"model_type":"qwen0_vl","text_config":{` + qwenConfig + `}}`, want: ErrUnsupported, says: "qwen0_vl"},
		"a model type that is a number":       {text: edited(llamaConfig, "model_type", "7"), want: ErrMissing, says: "model_type"},
		"no heads":                            {text: edited(llamaConfig, "num_attention_heads", "0"), want: ErrInvalid, says: "num_attention_heads is 0"},
		"no layers":                           {text: edited(llamaConfig, "num_hidden_layers", "0"), want: ErrInvalid, says: "num_hidden_layers is 0"},
		"a thousand million layers":           {text: edited(llamaConfig, "num_hidden_layers", "1000000000"), want: ErrInvalid, says: "num_hidden_layers"},
		"a negative width":                    {text: edited(llamaConfig, "hidden_size", "-576"), want: ErrInvalid, says: "hidden_size"},
		"no width":                            {text: edited(llamaConfig, "hidden_size", ""), want: ErrMissing, says: "hidden_size"},
		"no feed-forward width":               {text: edited(llamaConfig, "intermediate_size", ""), want: ErrMissing, says: "intermediate_size"},
		"no vocabulary":                       {text: edited(llamaConfig, "vocab_size", "null"), want: ErrMissing, says: "vocab_size"},
		"no epsilon":                          {text: edited(llamaConfig, "rms_norm_eps", ""), want: ErrMissing, says: "rms_norm_eps"},
		"heads out of proportion":             {text: edited(llamaConfig, "num_key_value_heads", "2"), want: ErrInvalid, says: "multiple"},
		"an odd head":                         {text: edited(llamaConfig, "head_dim", "63"), want: ErrInvalid, says: "even"},
		"a head of nothing":                   {text: edited(llamaConfig, "hidden_size", "8"), want: ErrInvalid, says: "head size 0"},
		"biases in a Mistral":                 {text: edited(llamaConfig, "model_type", `"mistral"`, "attention_bias", "true"), want: ErrUnsupported, says: "attention_bias"},
		"biases in a Qwen3":                   {text: edited(qwenConfig, "mlp_bias", "true"), want: ErrUnsupported, says: "mlp_bias"},
		"a flag that is a number":             {text: edited(llamaConfig, "mlp_bias", "1"), want: ErrInvalid, says: "mlp_bias"},
		"interleaved rotary pairs":            {text: edited(llamaConfig, "rope_traditional", "true"), want: ErrUnsupported, says: `"true" is not supported (supported: false)`},
		"a window":                            {text: edited(qwenConfig, "use_sliding_window", "true"), want: ErrUnsupported, says: "use_sliding_window"},
		"layers with a window":                {text: edited(llamaConfig, "num_hidden_layers", "2", "layer_types", `["full_attention","sliding_attention"]`), want: ErrUnsupported, says: "sliding_attention"},
		"other layers than there are":         {text: edited(llamaConfig, "layer_types", `["full_attention"]`), want: ErrInvalid, says: "layer_types"},
		"another activation":                  {text: edited(llamaConfig, "hidden_act", `"gelu"`), want: ErrUnsupported, says: "gelu"},
		"experts":                             {text: edited(llamaConfig, "num_local_experts", "8"), want: ErrUnsupported, says: "mixture of experts"},
		"a part of the head is turned":        {text: edited(llamaConfig, "partial_rotary_factor", "0.5"), want: ErrUnsupported, says: "partial_rotary_factor"},
		"two opinions about theta":            {text: edited(qwenConfig, "rope_parameters", `{"rope_theta":500000.0,"rope_type":"default"}`), want: ErrInvalid, says: "rope_theta is 1000000, but 500000.0 in rope_parameters"},
		"two opinions, in rope_scaling":       {text: edited(llamaConfig, "rope_scaling", `{"rope_theta":5,"rope_type":"default"}`), want: ErrInvalid, says: "but 5 in rope_scaling"},
		"two old contexts":                    {text: edited(llamaConfig, "original_max_position_embeddings", "4096", "rope_scaling", `{"rope_type":"yarn","factor":4,"original_max_position_embeddings":2048}`), want: ErrInvalid, says: "original_max_position_embeddings is 4096"},
		"a part, said in rope_scaling":        {text: edited(llamaConfig, "rope_scaling", `{"rope_type":"default","partial_rotary_factor":0.5}`), want: ErrUnsupported, says: "rope_scaling.partial_rotary_factor"},
		"a key of the object not in use":      {text: edited(llamaConfig, "rope_scaling", `{"rope_type":"default"}`, "rope_parameters", `{"rope_odd":1}`), want: ErrUnsupported, says: "rope_parameters.rope_odd"},
		"a part, said in rope_parameters":     {text: edited(llamaConfig, "rope_parameters", `{"rope_type":"default","partial_rotary_factor":0.5}`), want: ErrUnsupported, says: "partial_rotary_factor"},
		"a Qwen3 without theta":               {text: edited(qwenConfig, "rope_theta", ""), want: ErrMissing, says: "rope_theta"},
		"a theta of one":                      {text: edited(llamaConfig, "rope_theta", "1"), want: ErrInvalid, says: "rope_theta"},
		"a theta that is text":                {text: edited(llamaConfig, "rope_theta", `"10000"`), want: ErrInvalid, says: "rope_theta"},
		"a scaling that is text":              {text: scaling(`"linear"`), want: ErrInvalid, says: "rope_scaling"},
		"a kind that is a number":             {text: scaling(`{"type":3}`), want: ErrInvalid, says: "type"},
		"dynamic scaling with an alpha":       {text: scaling(`{"type":"dynamic","alpha":1000.0,"factor":2}`), want: ErrUnsupported, says: "rope_scaling.alpha"},
		"longrope":                            {text: scaling(`{"rope_type":"longrope"}`), want: ErrUnsupported, says: "supported: default, dynamic, linear, llama3, none, proportional, yarn"},
		"an unknown key of a rotation":        {text: scaling(`{"rope_type":"linear","factor":2,"short_magnitude":1.1}`), want: ErrUnsupported, says: "rope_scaling.short_magnitude"},
		"another key that begins with rope_":  {text: edited(llamaConfig, "rope_pct", "0.25"), want: ErrUnsupported, says: "rope_pct"},
		"logits that are scaled":              {text: edited(llamaConfig, "logits_scaling", "8"), want: ErrUnsupported, says: "logits_scaling"},
		"heads that are normed":               {text: edited(llamaConfig, "use_qk_norm", "true"), want: ErrUnsupported, says: "use_qk_norm"},
		"the older name of the kind wins":     {text: scaling(`{"rope_type":"linear","type":"su","factor":2}`), want: ErrUnsupported, says: "su"},
		"linear without a factor":             {text: scaling(`{"type":"linear"}`), want: ErrMissing, says: "factor"},
		"a factor below one":                  {text: scaling(`{"type":"linear","factor":0.5}`), want: ErrInvalid, says: "factor"},
		"a factor of nothing":                 {text: scaling(`{"type":"yarn","factor":0}`), want: ErrInvalid, says: "factor"},
		"llama3 with bounds in reverse":       {text: scaling(`{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1}`), want: ErrInvalid, says: "low_freq_factor"},
		"yarn whose references disagree":      {text: scaling(`{"rope_type":"yarn","factor":4,"mscale":0.7}`), want: ErrUnsupported, says: "mscale"},
		"the other way round":                 {text: scaling(`{"rope_type":"yarn","factor":4,"mscale_all_dim":0.7}`), want: ErrUnsupported, says: "mscale"},
		"yarn with an old context of nothing": {text: scaling(`{"rope_type":"yarn","factor":4,"original_max_position_embeddings":0}`), want: ErrInvalid, says: "original_max"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := dimensionsOf(c.text)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

// Regression: the layers of a vision encoder were taken for those of the model,
// and floats and strings for integers.
func TestDecoderLayersAreCounted(t *testing.T) {
	text := strings.Replace(qwenConfig, `"model_type":"qwen3",`, "", 1)
	legacy := `"n_embd":576,"n_layer":30,"n_inner":1536,"n_head":9,"n_head_kv":3,"n_vocab":49152,"rms_norm_eps":1e-05,"n_ctx":8192`
	type counts struct{ layers, hidden, heads, kvHeads, context int }
	decoder, old := counts{layers: 28, hidden: 1024, heads: 16, kvHeads: 8, context: 40960}, counts{layers: 30, hidden: 576, heads: 9, kvHeads: 3, context: 8192}
	for name, c := range map[string]struct {
		text string
		want counts
		says string // of the error; empty means none
	}{
		"a plain decoder": {text: "{" + text + "}", want: decoder},
		"a vision model with text_config and the encoder's layers above it": {
			text: `{"num_hidden_layers":32,"hidden_size":1280,"vision_config":{"depth":32},"text_config":{` + text + "}}", want: decoder},
		"a vision model with language_config": {text: `{"num_layers":24,"language_config":{` + text + "}}", want: decoder},
		"a speech model with llm_config":      {text: `{"n_layer":12,"llm_config":{` + text + "}}", want: decoder},
		"a section that spells its layers the other way": {
			text: `{"num_hidden_layers":99,"text_config":{` + legacy + "}}", want: old},
		"a section without layers is passed over": {text: `{"text_config":{"model_type":"x"},` + text + "}", want: decoder},
		"the first section that counts wins": {
			text: `{"text_config":{"hidden_size":1},"language_config":{` + text + `},"llm_config":{` + legacy + "}}", want: decoder},
		"a section that is not an object is passed over": {text: `{"text_config":"none",` + text + "}", want: decoder},
		"legacy names":                                     {text: "{" + legacy + "}", want: old},
		"legacy names, n_layers":                           {text: "{" + strings.Replace(legacy, "n_layer", "n_layers", 1) + "}", want: old},
		"legacy names, num_layers and n_positions":         {text: "{" + strings.NewReplacer("n_layer", "num_layers", "n_ctx", "n_positions").Replace(legacy) + "}", want: old},
		"the present name wins over a legacy one":          {text: "{" + text + `,"n_layer":7,"n_ctx":5}`, want: decoder},
		"layers as a float":                                {text: "{" + strings.Replace(text, ":28,", ":28.0,", 1) + "}", want: counts{}, says: "num_hidden_layers is 28.0"},
		"layers with an exponent":                          {text: "{" + strings.Replace(text, ":28,", ":28e0,", 1) + "}", want: counts{}, says: "num_hidden_layers is 28e0"},
		"layers as text":                                   {text: "{" + strings.Replace(text, ":28,", `:"28",`, 1) + "}", want: counts{}, says: `num_hidden_layers is "28"`},
		"layers as a truth value":                          {text: "{" + strings.Replace(text, ":28,", ":true,", 1) + "}", want: counts{}, says: "num_hidden_layers is true"},
		"layers as a list":                                 {text: "{" + strings.Replace(text, ":28,", ":[28],", 1) + "}", want: counts{}, says: "num_hidden_layers is a list"},
		"heads as a float":                                 {text: "{" + strings.Replace(text, ":16,", ":16.5,", 1) + "}", want: counts{}, says: "num_attention_heads is 16.5"},
		"layers beyond 64 bits":                            {text: "{" + strings.Replace(text, ":28,", ":18446744073709551644,", 1) + "}", want: counts{}, says: "num_hidden_layers"},
		"a section that counts in floats does not go back": {text: `{"num_hidden_layers":32,"text_config":{` + strings.Replace(text, ":28,", ":28.0,", 1) + "}}", want: counts{}, says: "text_config.num_hidden_layers is 28.0"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := readConfig([]byte(strings.Replace(c.text, "{", `{"model_type":"llama",`, 1)))
			if err != nil {
				t.Fatal(err)
			}
			d, err := cfg.Dimensions()
			if c.says != "" {
				if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("error %v, want ErrInvalid saying %q", err, c.says)
				}
				return
			}
			if got := (counts{layers: d.Layers, hidden: d.Hidden, heads: d.QueryHeads, kvHeads: d.KVHeads, context: d.Context}); err != nil || got != c.want {
				t.Errorf("counts %+v (error %v), want %+v", got, err, c.want)
			}
		})
	}
}

// TestScalingsAreThoseOfTheReferences compares with mlx-lm 0.32.2
// (initialize_rope(...)._freqs over the plain frequencies, and its mscale).
func TestScalingsAreThoseOfTheReferences(t *testing.T) {
	for name, c := range map[string]struct {
		head           int
		theta, scaling string
		at             []int
		factors        []float64
		magnitude      float64
	}{
		"Llama 3.1": {head: 128, theta: "500000", scaling: `{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`,
			at: []int{0, 16, 32, 35, 48, 63}, factors: []float64{1, 1, 2.69453, 8, 8, 8}, magnitude: 1},
		"Llama 3.2": {head: 64, theta: "500000", scaling: `{"rope_type":"llama3","factor":32.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`,
			at: []int{0, 8, 16, 19, 24, 31}, factors: []float64{1, 1, 3.292263, 32, 32, 32}, magnitude: 1},
		"llama3 with defaults": {head: 64, theta: "10000", scaling: `{"rope_type":"llama3","factor":2}`,
			at: []int{0, 8, 16, 19, 24, 31}, factors: []float64{1, 1, 1, 1, 1.816092, 2}, magnitude: 1},
		"Qwen3 with yarn": {head: 128, theta: "1000000", scaling: `{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`,
			at: []int{0, 16, 32, 35, 48, 63}, factors: []float64{1, 1, 1.658537, 2.125, 4, 4}, magnitude: 1.138629436111989},
		"yarn with everything": {head: 64, theta: "10000", scaling: `{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":16,"beta_slow":2,"mscale":0.707,"mscale_all_dim":1.0}`,
			at: []int{0, 8, 16, 19, 24, 31}, factors: []float64{1, 1, 1.764706, 4.137931, 40, 40}, magnitude: 0.9210423553163399},
		// The old context is max_position_embeddings, 8192, as in transformers 5.24.0.
		"yarn with defaults": {head: 64, theta: "10000", scaling: `{"type":"yarn","factor":2}`,
			at: []int{0, 8, 16, 19, 24, 31}, factors: []float64{1, 1, 1.181818, 1.368421, 1.857143, 2}, magnitude: 1.0693147180559945},
		"yarn with a magnitude of its own, as transformers reads it": {head: 64, theta: "10000", scaling: `{"type":"yarn","factor":2,"attention_factor":1.5,"truncate":true}`,
			at: []int{0, 31}, factors: []float64{1, 2}, magnitude: 1.5},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := dimensionsOf(edited(llamaConfig, "head_dim", strconv.Itoa(c.head), "rope_theta", c.theta, "rope_scaling", c.scaling))
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Rope.Factors) != c.head/2 {
				t.Fatalf("%d factors for a head of %d", len(d.Rope.Factors), c.head)
			}
			for k, i := range c.at {
				if math.Abs(float64(d.Rope.Factors[i])-c.factors[k]) > 1e-5*c.factors[k] {
					t.Errorf("factor %d is %v, want %v", i, d.Rope.Factors[i], c.factors[k])
				}
			}
			if math.Abs(d.Rope.Magnitude-c.magnitude) > 1e-12 || d.Rope.Linear != 1 {
				t.Errorf("magnitude %v and linear %v, want %v and 1", d.Rope.Magnitude, d.Rope.Linear, c.magnitude)
			}
		})
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(edited(llamaConfig)))
	f.Add([]byte(edited(qwenConfig, "quantization", `{"bits":4,"group_size":64,"lm_head":false,"model.embed_tokens":{"bits":8,"group_size":32}}`)))
	f.Add([]byte(edited(llamaConfig, "rope_scaling", `{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}`)))
	f.Add([]byte(edited(qwenConfig, "rope_scaling", `{"type":"yarn","factor":40,"mscale":0.707,"mscale_all_dim":1.0,"truncate":false}`)))
	f.Add([]byte(`{"num_hidden_layers":99,"text_config":{"n_layer":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readConfig(b)
		if err != nil {
			return
		}
		if g, err := groupingOf(c); err == nil {
			_, _, _ = g.of("model.embed_tokens")
		}
		d, err := c.Dimensions()
		if err != nil {
			return
		}
		if d.Layers < 1 || d.HeadSize < 2 || d.KVHeads < 1 || len(d.Rope.Factors) > d.HeadSize || math.IsNaN(d.NormEps) {
			t.Errorf("dimensions %+v", d)
		}
		for _, v := range append(d.Rope.Factors, float32(d.Rope.Magnitude), float32(d.Rope.Linear), float32(d.Rope.Theta)) {
			if !(v > 0) || math.IsInf(float64(v), 0) {
				t.Errorf("rope %+v", d.Rope)
			}
		}
	})
}
