//go:build !race

package weights

import (
	"errors"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
)

const (
	bertConfig = `"model_type":"bert","architectures":["BertModel"],"hidden_size":384,"num_hidden_layers":6,"intermediate_size":1536,"num_attention_heads":12,"vocab_size":30522,"max_position_embeddings":512,"layer_norm_eps":1e-12,"type_vocab_size":2,"hidden_act":"gelu","position_embedding_type":"absolute"`
	xlmrConfig = `"model_type":"xlm-roberta","architectures":["XLMRobertaForSequenceClassification"],"hidden_size":1024,"num_hidden_layers":24,"intermediate_size":4096,"num_attention_heads":16,"vocab_size":250002,"max_position_embeddings":8194,"layer_norm_eps":1e-05,"type_vocab_size":1,"hidden_act":"gelu","pad_token_id":1,"id2label":{"0":"LABEL_0"}`
)

func TestConfigurationsOfEncoders(t *testing.T) {
	minilm := family.Encoder{Types: 2, Padding: family.NoPadding}
	tanh, identity := minilm, minilm
	tanh.TanhGELU, identity.Labels, identity.Identity = true, 1, true
	scored := identity
	scored.Identity = false
	const pairs = `["BertForSequenceClassification"]`
	for name, c := range map[string]struct {
		text    string
		want    family.Encoder
		context int
	}{
		"MiniLM":                          {edited(bertConfig), minilm, 512},
		"what transformers fills in":      {edited(bertConfig, "max_position_embeddings", "", "layer_norm_eps", "", "type_vocab_size", "", "hidden_act", "", "architectures", ""), minilm, 512},
		"the other GELU":                  {edited(bertConfig, "hidden_act", `"gelu_new"`), tanh, 512},
		"one that was trained on":         {edited(bertConfig, "architectures", `["BertForMaskedLM"]`), minilm, 512},
		"a cross-encoder":                 {edited(bertConfig, "architectures", pairs, "id2label", `{"0":"LABEL_0"}`), scored, 512},
		"one label by number":             {edited(bertConfig, "architectures", pairs, "num_labels", "1"), scored, 512},
		"scores as they are":              {edited(bertConfig, "architectures", pairs, "num_labels", "1", "sentence_transformers", `{"activation_fn":"torch.nn.modules.linear.Identity"}`), identity, 512},
		"scores as they are, of old":      {edited(bertConfig, "architectures", pairs, "num_labels", "1", "sbert_ce_default_activation_function", `"torch.nn.modules.linear.Identity"`), identity, 512},
		"a reranker with a padding token": {edited(xlmrConfig), family.Encoder{Types: 1, Padding: 1, FirstPosition: 2, Labels: 1}, 8192},
	} {
		d, err := dimensionsOf(c.text)
		if err != nil || d.Encoder == nil || *d.Encoder != c.want || d.Context != c.context {
			t.Errorf("%s: %+v of %+v (%v), want %+v", name, d.Encoder, d, err, c.want)
		}
	}
}

func TestConfigurationsOfEncodersThatCannotBeMeantAreRefused(t *testing.T) {
	const pairs = `["BertForSequenceClassification"]`
	for name, c := range map[string]struct {
		text string
		want error
		says string
	}{
		"another activation":       {edited(bertConfig, "hidden_act", `"relu"`), ErrUnsupported, "hidden_act"},
		"positions that turn":      {edited(bertConfig, "position_embedding_type", `"relative_key"`), ErrUnsupported, "relative_key"},
		"a decoder":                {edited(bertConfig, "is_decoder", "true"), ErrUnsupported, "is_decoder"},
		"two labels":               {edited(bertConfig, "architectures", pairs, "id2label", `{"0":"a","1":"b"}`), ErrUnsupported, "2 labels"},
		"labels without a count":   {edited(bertConfig, "architectures", pairs), ErrUnsupported, "2 labels"},
		"answers of spans":         {edited(bertConfig, "architectures", `["BertForQuestionAnswering"]`), ErrUnsupported, "BertForQuestionAnswering"},
		"scores of another kind":   {edited(bertConfig, "architectures", pairs, "num_labels", "1", "sentence_transformers", `{"activation_fn":"torch.nn.modules.activation.Tanh"}`), ErrUnsupported, "activation_fn"},
		"heads that do not divide": {edited(bertConfig, "num_attention_heads", "11"), ErrInvalid, "384 with 11 heads"},
		"no width":                 {edited(bertConfig, "hidden_size", ""), ErrMissing, "hidden_size"},
		"no place for texts":       {edited(xlmrConfig, "max_position_embeddings", "2"), ErrInvalid, "0 positions"},
		"types of none":            {edited(bertConfig, "type_vocab_size", "0"), ErrInvalid, "type_vocab_size is 0"},
	} {
		if _, err := dimensionsOf(c.text); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want %v saying %q", name, err, c.want, c.says)
		}
	}
}

// TestTensorsOfEncodersAreNamedAsOne: prefixes of what a model was saved inside,
// names of old, and nothing that is not read; a tensor that then is there twice is
// refused, and so are more layers than tensors could fill.
func TestTensorsOfEncodersAreNamedAsOne(t *testing.T) {
	named := func(d family.Dimensions, names ...string) (map[string]shardTensor, error) {
		c := &collection{tensors: map[string]shardTensor{}}
		for _, n := range names {
			c.tensors[n] = shardTensor{name: n}
		}
		err := c.encoderNames(d)
		return c.tensors, err
	}
	bare := family.Dimensions{Architecture: "bert", Encoder: &family.Encoder{}}
	scored := family.Dimensions{Architecture: "bert", Encoder: &family.Encoder{Labels: 1}}
	multilingual := family.Dimensions{Architecture: "xlm-roberta", Encoder: &family.Encoder{Labels: 1}}
	for name, c := range map[string]struct {
		d    family.Dimensions
		from string
		want string
	}{
		"inside a BERT":         {bare, "bert.encoder.layer.0.output.LayerNorm.gamma", "encoder.layer.0.output.LayerNorm.weight"},
		"old biases":            {bare, "embeddings.LayerNorm.beta", "embeddings.LayerNorm.bias"},
		"counters":              {bare, "bert.embeddings.position_ids", ""},
		"a head for training":   {bare, "cls.predictions.bias", ""},
		"a pooler not read":     {bare, "pooler.dense.weight", ""},
		"a pooler that is read": {scored, "bert.pooler.dense.weight", "pooler.dense.weight"},
		"a RoBERTa's pooler":    {multilingual, "roberta.pooler.dense.weight", ""},
	} {
		got, err := named(c.d, c.from)
		if _, ok := got[c.want]; err != nil || ok != (c.want != "") || len(got) > 1 {
			t.Errorf("%s: %v (%v), want %q", name, got, err, c.want)
		}
	}
	if _, err := named(bare, "embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"); !errors.Is(err, ErrInvalid) {
		t.Errorf("one tensor under two names: %v", err)
	}
	large := family.Dimensions{Architecture: "bert", Layers: 1 << 12, Encoder: &family.Encoder{}}
	if slots, err := large.Slots(100); !errors.Is(err, ErrInvalid) {
		t.Errorf("4096 layers of 100 tensors: %d slots, %v", len(slots), err)
	}
}
