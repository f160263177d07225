package family

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// bert is the BERT family: MiniLM, BGE, GTE and other text encoders, and
// cross-encoders, which score pairs of texts. Positions count from 0, and token
// types distinguish the two texts of a pair.
func bert() Family {
	return Family{Name: "bert", Models: "BERT: embeddings, cross-encoders", Types: []string{"bert"}}
}

// xlmRoberta is the XLM-RoBERTa family: BGE-M3, multilingual E5, and rerankers
// made from them. Positions begin after the id of the padding token, and a
// scoring head has two layers of its own instead of a pooler.
func xlmRoberta() Family {
	return Family{Name: "xlm-roberta", Models: "XLM-RoBERTa: embeddings, cross-encoders", Types: []string{"xlm-roberta"}}
}

// Encoder describes a family with bidirectional attention and learned
// positions.
type Encoder struct {
	// Types is the number of token types.
	Types int
	// FirstPosition is the position of a text's first token. Padding is the id
	// of the padding token, which takes the position before the first wherever
	// it stands; NoPadding if positions just count.
	FirstPosition int
	Padding       int32
	// TanhGELU selects the tanh approximation of GELU.
	TanhGELU bool
	// Labels is the number of outputs of the head that scores pairs of texts; 0
	// means that there is no head.
	Labels int
	// Identity is set if the score is the head's logit itself, not its sigmoid.
	Identity bool
}

// NoPadding is the Encoder.Padding of models without a padding token; it equals
// no token id.
const NoPadding int32 = -1

// encoderClasses maps the classes of transformers that can be loaded to whether
// they score pairs of texts.
func encoderClasses(f Family) map[string]bool {
	if f.Name == "xlm-roberta" {
		return map[string]bool{"XLMRobertaModel": false, "XLMRobertaForMaskedLM": false, "XLMRobertaForSequenceClassification": true}
	}
	return map[string]bool{"BertModel": false, "BertForMaskedLM": false, "BertForPreTraining": false, "BertForSequenceClassification": true}
}

// readEncoder reads the dimensions of an encoder, with the defaults of transformers
// (BertConfig, XLMRobertaConfig, version 5).
func readEncoder(c *Config, f Family) Dimensions {
	d := Dimensions{
		Architecture: f.Name,
		Layers:       c.integer(1, 1<<12, "num_hidden_layers"),
		Hidden:       c.integer(1, 1<<20, "hidden_size"),
		FeedForward:  c.integer(1, 1<<22, "intermediate_size"),
		QueryHeads:   c.integer(1, 1<<12, "num_attention_heads"),
		Vocabulary:   c.integer(1, 1<<24, "vocab_size"),
		Context:      c.integerOr(512, 1, 1<<20, "max_position_embeddings"),
		NormEps:      1e-12,
	}
	if c.value("layer_norm_eps") != nil {
		d.NormEps = c.number(0, 1, "layer_norm_eps")
	}
	x := &Encoder{Types: c.integerOr(2, 1, 1<<10, "type_vocab_size"), Padding: NoPadding}
	if f.Name == "xlm-roberta" {
		x.Padding = int32(c.integerOr(1, 0, 1<<24, "pad_token_id"))
		x.FirstPosition = int(x.Padding) + 1
		d.Context -= x.FirstPosition
	}
	d.Encoder, d.KVHeads = x, d.QueryHeads
	if c.err == nil && (d.Hidden%d.QueryHeads != 0 || d.Context < 1) {
		c.fail(Invalidf("a width of %d with %d heads, and %d positions for texts", d.Hidden, d.QueryHeads, d.Context))
	}
	if c.err == nil {
		d.HeadSize = d.Hidden / d.QueryHeads
	}
	readPlain(c, x)
	readHead(c, f, x)
	return d
}

// readPlain reads the activation, and refuses by name the options of these
// families that the engine does not implement.
func readPlain(c *Config, x *Encoder) {
	switch act := c.value("hidden_act"); act {
	case nil, "gelu":
	case "gelu_new", "gelu_pytorch_tanh":
		x.TanhGELU = true
	default:
		c.fail(fmt.Errorf("%shidden_act: %w", c.inside, &UnsupportedError{"activation", Shown(act), []string{"gelu", "gelu_new", "gelu_pytorch_tanh"}}))
	}
	if v := c.value("position_embedding_type"); v != nil && v != "absolute" {
		c.fail(fmt.Errorf("%sposition_embedding_type: %w", c.inside, &UnsupportedError{"positions", Shown(v), []string{"absolute"}}))
	}
	for _, name := range []string{"is_decoder", "add_cross_attention"} {
		if c.flag(name) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
		}
	}
}

// readHead reads from the model's class whether it scores pairs of texts.
func readHead(c *Config, f Family, x *Encoder) {
	classes := encoderClasses(f)
	list, _ := c.values["architectures"].([]any)
	if len(list) == 0 { // a bare encoder
		return
	}
	name, _ := list[0].(string)
	scores, ok := classes[name]
	if !ok {
		c.fail(fmt.Errorf("architectures: %w", &UnsupportedError{"class", strings.Trim(Shown(list[0]), `"`), slices.Sorted(maps.Keys(classes))}))
		return
	}
	if !scores {
		return
	}
	x.Labels = c.integerOr(2, 1, 1<<20, "num_labels")
	if labels, ok := c.text["id2label"].(map[string]any); ok {
		x.Labels = len(labels)
	}
	if x.Labels != 1 {
		c.fail(fmt.Errorf("id2label: %w", &UnsupportedError{"classification head", fmt.Sprintf("%d labels", x.Labels), []string{"1 label, which is a score"}}))
	}
	readScoreActivation(c, x)
}

// readScoreActivation reads the function that sentence-transformers applies to the
// head's logit (CrossEncoder, get_default_activation_fn, 6.2): a sigmoid unless
// the model names another.
func readScoreActivation(c *Config, x *Encoder) {
	v := c.values["sbert_ce_default_activation_function"]
	if s, ok := c.values["sentence_transformers"].(map[string]any); ok && s["activation_fn"] != nil {
		v = s["activation_fn"]
	}
	switch v {
	case nil, "torch.nn.modules.activation.Sigmoid":
	case "torch.nn.modules.linear.Identity":
		x.Identity = true
	default:
		c.fail(fmt.Errorf("activation_fn: %w", &UnsupportedError{"activation of scores", Shown(v), []string{"torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"}}))
	}
}

// encoderSlots lists every tensor of an encoder; have is the number of tensors
// in the file.
func (d Dimensions) encoderSlots(have int) ([]Slot, error) {
	const perLayer = 16
	if d.Layers*perLayer > have {
		return nil, Invalidf("%d layers need %d tensors, the model has %d", d.Layers, d.Layers*perLayer, have)
	}
	hidden, inner := int64(d.Hidden), int64(d.FeedForward)
	var out []Slot
	add := func(path string, shape ...int64) { out = append(out, Slot{Path: path, Shape: shape}) }
	dense := func(path string, to, from int64) {
		add(path+".weight", to, from)
		add(path+".bias", to)
	}
	norm := func(path string) {
		add(path+".weight", hidden)
		add(path+".bias", hidden)
	}
	add("embeddings.word_embeddings.weight", int64(d.Vocabulary), hidden)
	add("embeddings.position_embeddings.weight", int64(d.Context+d.Encoder.FirstPosition), hidden)
	add("embeddings.token_type_embeddings.weight", int64(d.Encoder.Types), hidden)
	norm("embeddings.LayerNorm")
	for i := range d.Layers {
		at := fmt.Sprintf("encoder.layer.%d.", i)
		for _, name := range []string{"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"} {
			dense(at+name, hidden, hidden)
		}
		norm(at + "attention.output.LayerNorm")
		dense(at+"intermediate.dense", inner, hidden)
		dense(at+"output.dense", hidden, inner)
		norm(at + "output.LayerNorm")
	}
	if labels := int64(d.Encoder.Labels); labels > 0 {
		first, last := d.HeadPaths()
		dense(first, hidden, hidden)
		dense(last, labels, hidden)
	}
	return out, nil
}

// HeadPaths returns the paths of the two layers of the scoring head, which
// reads the state of a pair's first token.
func (d Dimensions) HeadPaths() (first, last string) {
	if d.Architecture == "xlm-roberta" {
		return "classifier.dense", "classifier.out_proj"
	}
	return "pooler.dense", "classifier"
}
