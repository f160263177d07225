package weights

import (
	"fmt"
	"slices"
	"strings"
)

// The families of encoders, by the names that Dimensions.Architecture takes.
const (
	familyBERT       = "bert"
	familyXLMRoberta = "xlm-roberta"
)

// Encoder is what a family has beside decoders whose tokens see one another all
// at once, and that stands at learned positions.
type Encoder struct {
	// Types of tokens that it tells apart.
	Types int
	// FirstPosition is where a text begins, and Padding the token that stands
	// at the place before it wherever it is; None where positions just count.
	FirstPosition int
	Padding       int32
	// TanhGELU says that GELU has the form of tanh.
	TanhGELU bool
	// Labels of the head that scores pairs of texts; 0 means that there is none.
	Labels int
	// Identity says that a score is the head's number itself, not its sigmoid.
	Identity bool
}

// NoPadding is an Encoder.Padding that no token is.
const NoPadding int32 = -1

// encoderFamilies are those of config.json's model_type.
func encoderFamilies() []string { return []string{familyBERT, familyXLMRoberta} }

// encoderClasses are the classes of transformers whose weights are of use, and
// whether they score.
func encoderClasses(family string) map[string]bool {
	if family == familyXLMRoberta {
		return map[string]bool{"XLMRobertaModel": false, "XLMRobertaForMaskedLM": false, "XLMRobertaForSequenceClassification": true}
	}
	return map[string]bool{"BertModel": false, "BertForMaskedLM": false, "BertForPreTraining": false, "BertForSequenceClassification": true}
}

// encoder reads the numbers of an encoder, with the defaults of transformers
// (BertConfig, XLMRobertaConfig, version 5).
func (c *config) encoder(family string) Dimensions {
	d := Dimensions{
		Architecture: family,
		Layers:       c.integer(1, 1<<12, "num_hidden_layers"),
		Hidden:       c.integer(1, 1<<20, "hidden_size"),
		FeedForward:  c.integer(1, 1<<22, "intermediate_size"),
		QueryHeads:   c.integer(1, 1<<12, "num_attention_heads"),
		Vocabulary:   c.integer(1, 1<<24, "vocab_size"),
		Context:      c.integerOr(512, 1, 1<<20, "max_position_embeddings"),
		NormEps:      1e-12,
	}
	if c.text["layer_norm_eps"] != nil {
		d.NormEps = c.number(0, 1, "layer_norm_eps")
	}
	x := &Encoder{Types: c.integerOr(2, 1, 1<<10, "type_vocab_size"), Padding: NoPadding}
	if family == familyXLMRoberta {
		x.Padding = int32(c.integerOr(1, 0, 1<<24, "pad_token_id"))
		x.FirstPosition = int(x.Padding) + 1
		d.Context -= x.FirstPosition
	}
	d.Encoder, d.KVHeads = x, d.QueryHeads
	if c.err == nil && (d.Hidden%d.QueryHeads != 0 || d.Context < 1) {
		c.fail(invalidf("a width of %d with %d heads, and %d positions for texts", d.Hidden, d.QueryHeads, d.Context))
	}
	if c.err == nil {
		d.HeadSize = d.Hidden / d.QueryHeads
	}
	c.encoderPlain(x)
	c.encoderHead(family, x)
	return d
}

// encoderPlain reads the activation, and refuses by name what these families
// have but the engine does not.
func (c *config) encoderPlain(x *Encoder) {
	switch act := c.text["hidden_act"]; act {
	case nil, "gelu":
	case "gelu_new", "gelu_pytorch_tanh":
		x.TanhGELU = true
	default:
		c.fail(fmt.Errorf("%shidden_act: %w", c.inside, &UnsupportedError{"activation", shown(act), []string{"gelu", "gelu_new", "gelu_pytorch_tanh"}}))
	}
	if v := c.text["position_embedding_type"]; v != nil && v != "absolute" {
		c.fail(fmt.Errorf("%sposition_embedding_type: %w", c.inside, &UnsupportedError{"positions", shown(v), []string{"absolute"}}))
	}
	for _, name := range []string{"is_decoder", "add_cross_attention"} {
		if c.flag(name) {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, name, &UnsupportedError{"value", "true", []string{"false"}}))
		}
	}
}

// encoderHead says whether the model scores pairs: its class does.
func (c *config) encoderHead(family string, x *Encoder) {
	classes := encoderClasses(family)
	list, _ := c.values["architectures"].([]any)
	if len(list) == 0 { // a bare encoder
		return
	}
	name, _ := list[0].(string)
	scores, ok := classes[name]
	if !ok {
		c.fail(fmt.Errorf("architectures: %w", &UnsupportedError{"class", strings.Trim(shown(list[0]), `"`), sortedKeys(classes)}))
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
	c.activation(x)
}

// activation is what sentence-transformers puts behind the head (CrossEncoder,
// get_default_activation_fn, 6.2): a sigmoid, unless the model says otherwise.
func (c *config) activation(x *Encoder) {
	v := c.values["sbert_ce_default_activation_function"]
	if s, ok := c.values["sentence_transformers"].(map[string]any); ok && s["activation_fn"] != nil {
		v = s["activation_fn"]
	}
	switch v {
	case nil, "torch.nn.modules.activation.Sigmoid":
	case "torch.nn.modules.linear.Identity":
		x.Identity = true
	default:
		c.fail(fmt.Errorf("activation_fn: %w", &UnsupportedError{"activation of scores", shown(v), []string{"torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"}}))
	}
}

// encoderSlots lists every tensor of an encoder; have is how many there are.
func (d Dimensions) encoderSlots(have int) ([]slot, error) {
	const perLayer = 16
	if d.Layers*perLayer > have {
		return nil, invalidf("%d layers need %d tensors, the model has %d", d.Layers, d.Layers*perLayer, have)
	}
	hidden, inner := int64(d.Hidden), int64(d.FeedForward)
	var out []slot
	add := func(path string, shape ...int64) { out = append(out, slot{path: path, shape: shape}) }
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

// HeadPaths are those of the two layers that score what the first token of a
// pair has become.
func (d Dimensions) HeadPaths() (first, last string) {
	if d.Architecture == familyXLMRoberta {
		return "classifier.dense", "classifier.out_proj"
	}
	return "pooler.dense", "classifier"
}

// encoderNames names the tensors of an encoder as if it stood alone, in the
// words of today, and leaves out what neither vectors nor scores are made with:
// counters, heads for training, and the pooler where nothing reads it.
func (c *collection) encoderNames(d Dimensions) error {
	named := make(map[string]shardTensor, len(c.tensors))
	for name, t := range c.tensors {
		for _, prefix := range []string{"bert.", "roberta."} {
			name = strings.TrimPrefix(name, prefix)
		}
		for old, now := range map[string]string{".gamma": ".weight", ".beta": ".bias"} {
			if s, ok := strings.CutSuffix(name, "LayerNorm"+old); ok {
				name = s + "LayerNorm" + now
			}
		}
		if d.unread(name) {
			continue
		}
		if _, twice := named[name]; twice {
			return invalidf("tensor %s exists under two names", quoted(name))
		}
		named[name] = t
	}
	c.tensors = named
	return nil
}

func (d Dimensions) unread(name string) bool {
	if slices.Contains([]string{"embeddings.position_ids", "embeddings.token_type_ids"}, name) {
		return true
	}
	if strings.HasPrefix(name, "pooler.") {
		return d.Encoder.Labels == 0 || d.Architecture == familyXLMRoberta
	}
	return strings.HasPrefix(name, "cls.") || strings.HasPrefix(name, "lm_head.")
}

// encoderPart says which part of an encoder a tensor belongs to.
func encoderPart(path string) string {
	switch {
	case strings.Contains(path, "LayerNorm"):
		return "norms"
	case strings.Contains(path, ".attention."):
		return "attention"
	case strings.HasPrefix(path, "encoder."):
		return "feed-forward"
	case strings.HasPrefix(path, "embeddings."):
		return "embedding"
	case strings.HasPrefix(path, "pooler."), strings.HasPrefix(path, "classifier."):
		return "head"
	}
	return ""
}
