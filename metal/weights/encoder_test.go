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
		"MiniLM":                          {text: edited(bertConfig), want: minilm, context: 512},
		"what transformers fills in":      {text: edited(bertConfig, "max_position_embeddings", "", "layer_norm_eps", "", "type_vocab_size", "", "hidden_act", "", "architectures", ""), want: minilm, context: 512},
		"the other GELU":                  {text: edited(bertConfig, "hidden_act", `"gelu_new"`), want: tanh, context: 512},
		"one that was trained on":         {text: edited(bertConfig, "architectures", `["BertForMaskedLM"]`), want: minilm, context: 512},
		"a cross-encoder":                 {text: edited(bertConfig, "architectures", pairs, "id2label", `{"0":"LABEL_0"}`), want: scored, context: 512},
		"one label by number":             {text: edited(bertConfig, "architectures", pairs, "num_labels", "1"), want: scored, context: 512},
		"scores as they are":              {text: edited(bertConfig, "architectures", pairs, "num_labels", "1", "sentence_transformers", `{"activation_fn":"torch.nn.modules.linear.Identity"}`), want: identity, context: 512},
		"scores as they are, of old":      {text: edited(bertConfig, "architectures", pairs, "num_labels", "1", "sbert_ce_default_activation_function", `"torch.nn.modules.linear.Identity"`), want: identity, context: 512},
		"a reranker with a padding token": {text: edited(xlmrConfig), want: family.Encoder{Types: 1, Padding: 1, FirstPosition: 2, Labels: 1}, context: 8192},
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
		"another activation":       {text: edited(bertConfig, "hidden_act", `"relu"`), want: ErrUnsupported, says: "hidden_act"},
		"positions that turn":      {text: edited(bertConfig, "position_embedding_type", `"relative_key"`), want: ErrUnsupported, says: "relative_key"},
		"a decoder":                {text: edited(bertConfig, "is_decoder", "true"), want: ErrUnsupported, says: "is_decoder"},
		"two labels":               {text: edited(bertConfig, "architectures", pairs, "id2label", `{"0":"a","1":"b"}`), want: ErrUnsupported, says: "2 labels"},
		"labels without a count":   {text: edited(bertConfig, "architectures", pairs), want: ErrUnsupported, says: "2 labels"},
		"answers of spans":         {text: edited(bertConfig, "architectures", `["BertForQuestionAnswering"]`), want: ErrUnsupported, says: "BertForQuestionAnswering"},
		"scores of another kind":   {text: edited(bertConfig, "architectures", pairs, "num_labels", "1", "sentence_transformers", `{"activation_fn":"torch.nn.modules.activation.Tanh"}`), want: ErrUnsupported, says: "activation_fn"},
		"heads that do not divide": {text: edited(bertConfig, "num_attention_heads", "11"), want: ErrInvalid, says: "384 with 11 heads"},
		"no width":                 {text: edited(bertConfig, "hidden_size", ""), want: ErrMissing, says: "hidden_size"},
		"no place for texts":       {text: edited(xlmrConfig, "max_position_embeddings", "2"), want: ErrInvalid, says: "0 positions"},
		"types of none":            {text: edited(bertConfig, "type_vocab_size", "0"), want: ErrInvalid, says: "type_vocab_size is 0"},
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
		c := &collection{tensors: map[string]shardTensor{}, left: newAllowance(&account{budget: NewBudget(HeaderMemory)})}
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
		"inside a BERT":         {d: bare, from: "bert.encoder.layer.0.output.LayerNorm.gamma", want: "encoder.layer.0.output.LayerNorm.weight"},
		"old biases":            {d: bare, from: "embeddings.LayerNorm.beta", want: "embeddings.LayerNorm.bias"},
		"counters":              {d: bare, from: "bert.embeddings.position_ids"},
		"a head for training":   {d: bare, from: "cls.predictions.bias"},
		"a pooler not read":     {d: bare, from: "pooler.dense.weight"},
		"a pooler that is read": {d: scored, from: "bert.pooler.dense.weight", want: "pooler.dense.weight"},
		"a RoBERTa's pooler":    {d: multilingual, from: "roberta.pooler.dense.weight"},
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
