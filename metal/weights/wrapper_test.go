//go:build !race

package weights

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

const (
	// googleText is the text_config of Gemma 3 of 4 billion weights as Google
	// writes it.
	googleText    = `"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text","num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024`
	ministralText = `"model_type":"ministral3","hidden_size":4096,"num_hidden_layers":34,"intermediate_size":14336,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":131072,"rms_norm_eps":1e-05,"sliding_window":null,"rope_parameters":{"beta_fast":32.0,"beta_slow":1.0,"factor":16.0,"llama_4_scaling_beta":0.1,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":16384,"rope_theta":1000000.0,"rope_type":"yarn"}`
	mistralText   = `"model_type":"mistral","hidden_size":5120,"num_hidden_layers":40,"intermediate_size":32768,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":131072,"rms_norm_eps":1e-05,"rope_theta":1000000000.0,"sliding_window":null,"max_position_embeddings":131072`
)

// seeing is config.json of a model with eyes.
func seeing(kind, text string) string {
	return `{"model_type":"` + kind + `","vision_config":{"num_hidden_layers":27},"text_config":{` + text + `}}`
}

// TestDecodersInsideModelsThatSee have the numbers that their references take,
// also where the file leaves them out.
func TestDecodersInsideModelsThatSee(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want family.Dimensions
	}{
		"Gemma 3 as Google writes it": {text: seeing("gemma3", googleText), want: family.Dimensions{Architecture: "gemma3_text", Layers: 34, Hidden: 2560, QueryHeads: 8, KVHeads: 4,
			HeadSize: 256, Vocabulary: 262208, Context: 131072, Window: 1024, NormEps: 1e-6}},
		"Gemma 3 whose decoder is not named": {text: seeing("gemma3", strings.Replace(googleText, `"model_type":"gemma3_text",`, "", 1)), want: family.Dimensions{Architecture: "gemma3_text",
			Layers: 34, Hidden: 2560, QueryHeads: 8, KVHeads: 4, HeadSize: 256, Vocabulary: 262208, Context: 131072, Window: 1024, NormEps: 1e-6}},
		"Gemma 3 that says more": {text: strings.Replace(seeing("gemma3", googleText+`,"num_attention_heads":16,"num_key_value_heads":8`), `{`, `{"vocab_size":262144,`, 1),
			want: family.Dimensions{Architecture: "gemma3_text", Layers: 34, Hidden: 2560, QueryHeads: 16, KVHeads: 8, HeadSize: 256, Vocabulary: 262144, Context: 131072, Window: 1024, NormEps: 1e-6}},
		"Mistral Small 3.1": {text: seeing("mistral3", mistralText), want: family.Dimensions{Architecture: "llama", Layers: 40, Hidden: 5120, QueryHeads: 32, KVHeads: 8,
			HeadSize: 128, Vocabulary: 131072, Context: 131072, NormEps: 1e-5}},
		"Ministral 3": {text: seeing("mistral3", ministralText), want: family.Dimensions{Architecture: "llama", Layers: 34, Hidden: 4096, QueryHeads: 32, KVHeads: 8,
			HeadSize: 128, Vocabulary: 131072, Context: 262144, NormEps: 1e-5, Temper: &family.Temper{Beta: 0.1, Every: 16384}}},
		"Ministral 3 without eyes": {text: "{" + ministralText + "}", want: family.Dimensions{Architecture: "llama", Layers: 34, Hidden: 4096, QueryHeads: 32, KVHeads: 8,
			HeadSize: 128, Vocabulary: 131072, Context: 262144, NormEps: 1e-5, Temper: &family.Temper{Beta: 0.1, Every: 16384}}},
	} {
		d, err := dimensionsOf(c.text)
		got := family.Dimensions{Architecture: d.Architecture, Layers: d.Layers, Hidden: d.Hidden, QueryHeads: d.QueryHeads, KVHeads: d.KVHeads, HeadSize: d.HeadSize,
			Vocabulary: d.Vocabulary, Context: d.Context, Window: d.Window, NormEps: d.NormEps}
		want := c.want
		want.Temper = nil
		if err != nil || !equalPlain(got, want) || (d.Temper == nil) != (c.want.Temper == nil) || d.Temper != nil && *d.Temper != *c.want.Temper {
			t.Errorf("%s: %+v, %v, %v; want %+v", name, got, d.Temper, err, c.want)
		}
	}
}

// equalPlain compares dimensions of numbers alone.
func equalPlain(a, b family.Dimensions) bool {
	return a.Architecture == b.Architecture && [9]int{a.Layers, a.Hidden, a.QueryHeads, a.KVHeads, a.HeadSize, a.Vocabulary, a.Context, a.Window} ==
		[9]int{b.Layers, b.Hidden, b.QueryHeads, b.KVHeads, b.HeadSize, b.Vocabulary, b.Context, b.Window} && a.NormEps == b.NormEps
}

func TestModelsThatSeeAreRefusedWhereTheirDecoderIsNotKnown(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"no text_config":            {text: `{"model_type":"gemma3","num_hidden_layers":2}`, want: ErrMissing, says: "text_config, of a gemma3"},
		"layers in another section": {text: `{"model_type":"mistral3","llm_config":{` + mistralText + `}}`, want: ErrMissing, says: "text_config"},
		"another decoder":           {text: seeing("mistral3", strings.Replace(mistralText, `"mistral"`, `"mistral9"`, 1)), want: ErrUnsupported, says: "supported: mistral, ministral3, mistral4"},
		"a decoder of another":      {text: seeing("gemma3", mistralText), want: ErrUnsupported, says: "gemma3_text"},
		"a decoder that is a list":  {text: seeing("gemma3", strings.Replace(googleText, `"gemma3_text"`, `[1]`, 1)), want: ErrUnsupported, says: "a list"},
		"a Ministral without beta":  {text: seeing("mistral3", strings.Replace(ministralText, `"llama_4_scaling_beta":0.1,`, "", 1)), want: ErrMissing, says: "rope_parameters.llama_4_scaling_beta"},
		"a Ministral whose growth has no context": {text: seeing("mistral3", strings.NewReplacer(`"original_max_position_embeddings":16384,`, "", `"rope_type":"yarn"`, `"rope_type":"default"`).Replace(ministralText)),
			want: ErrMissing, says: "original_max_position_embeddings"},
		"a Ministral under a window": {text: seeing("mistral3", strings.Replace(ministralText, `"sliding_window":null`, `"sliding_window":4096`, 1)), want: ErrUnsupported, says: "sliding_window"},
	} {
		_, err := dimensionsOf(c.text)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v saying %q", name, err, c.want, c.says)
		}
	}
}

// TestOneTensorUnderTwoNamesIsRefused, because it is ambiguous.
func TestOneTensorUnderTwoNamesIsRefused(t *testing.T) {
	c := &collection{tensors: map[string]shardTensor{"language_model.model.norm.weight": {}, "model.language_model.norm.weight": {}}, left: newAllowance(&account{budget: NewBudget(HeaderMemory)})}
	if err := c.unwrapModel(family.Dimensions{}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "model.norm.weight") {
		t.Errorf("error %v, want %v that names the tensor", err, ErrInvalid)
	}
}

// TestQuantisedLayersInsideAnotherModelAreNamedAlike: what config.json says of
// a layer holds for the layer, under the older names and the newer ones.
func TestQuantisedLayersInsideAnotherModelAreNamedAlike(t *testing.T) {
	g, err := grouping{layers: map[string]any{"language_model.model.layers.0.mlp.up_proj": false, "model.language_model.layers.1.mlp.up_proj": false, "language_model.lm_head": false}}.unwrap(&account{budget: NewBudget(HeaderMemory)})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "lm_head"} {
		if l, named, err := g.of(path); !named || l.bits != 0 || err != nil {
			t.Errorf("%s is %+v, named %v, %v; want that it is not quantised", path, l, named, err)
		}
	}
}
