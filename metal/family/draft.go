package family

import "encoding/json"

// DraftPrefix is the prefix of the tensors of a draft head. It reads the normed state of a
// token and the embedding of the next one, and predicts the token after that with the
// output head of the model (multi-token prediction, https://arxiv.org/abs/2412.19437).
const DraftPrefix = "mtp."

// CanDraft reports whether the family has a draft head that is loaded where the files have
// its tensors.
func (d Dimensions) CanDraft() bool { return d.family().Draft != nil }

// CommonDraft reports whether config.json describes a draft head as published ones are: of
// one layer, with the embedding of the model (mlx-vlm 0.7.10,
// speculative/drafters/qwen3_5_mtp). Others are not loaded.
func CommonDraft(c *Config) bool {
	layers, own := c.value("mtp_num_hidden_layers"), c.value("mtp_use_dedicated_embeddings")
	return (layers == nil || layers == json.Number("1")) && (own == nil || own == false)
}

// DraftBlock is the only layer of the draft head. Its keys and values are those of one more
// layer after the last.
func (d Dimensions) DraftBlock() Block { return d.family().Draft(d) }

// DraftNorms are those of the embedding, of the state, and of the result.
func DraftNorms() (embedding, state, result Norm) {
	return rms(DraftPrefix + "pre_fc_norm_embedding"), rms(DraftPrefix + "pre_fc_norm_hidden"), rms(DraftPrefix + "norm")
}

// DraftSlots lists the tensors of the draft head.
func (d Dimensions) DraftSlots() []Slot {
	var out slots
	embedding, state, result := DraftNorms()
	for _, n := range []Norm{embedding, state, result} {
		out.norm(n, d.Hidden)
	}
	out.linear(DraftPrefix+"fc", d.Hidden, 2*d.Hidden, false)
	for _, s := range d.tensors(d.family(), d.DraftBlock()) {
		s.Path = DraftPrefix + "layers.0." + s.Path
		out = append(out, s)
	}
	return out
}
