package family

import "fmt"

// gatedTower reads the tower of Gemma 4, with the defaults of transformers
// (Gemma4VisionConfig, Gemma4Config, 5.23). Large models let the tokens of an image see
// one another under the window (use_bidirectional_attention of the decoder).
func gatedTower(c *Config) Tower {
	t := Tower{
		Patch: c.integerOr(16, 4, 256, "patch_size"), Merge: c.integerOr(3, 1, 16, "pooling_kernel_size"), Frames: 1,
		Layers: c.integerOr(16, 1, 1<<10, "num_hidden_layers"), Hidden: c.integerOr(768, 1, 1<<16, "hidden_size"),
		FeedForward: c.integerOr(3072, 1, 1<<20, "intermediate_size"), Heads: c.integerOr(12, 1, 1<<10, "num_attention_heads"), Size: c.integerOr(64, 1, 1<<10, "head_dim"),
		Eps: c.numberOr(1e-6, 0, 1, "rms_norm_eps"), Activation: GELUTanh, Gated: true, Clipped: c.flag("use_clipped_linears"),
		Side: c.integerOr(10240, 1, 1<<20, "position_embedding_size"), Crossed: true, Theta: c.axial(100),
		Merger: MergeScaled, Standard: c.flag("standardize"), Windowed: true, Bare: true,
		Prefixes: []string{"model.vision_tower.", "vision_tower.", "model.embed_vision.", "embed_vision."},
		Rename: []string{
			"patch_embedder.input_proj.", "patch.", "patch_embedder.position_embedding_table", "places.weight", "encoder.layers.", "layers.",
			"input_layernorm.", "before.", "post_attention_layernorm.", "after.", "pre_feedforward_layernorm.", "beforeFeed.", "post_feedforward_layernorm.", "afterFeed.",
			"self_attn.q_norm.", "qNorm.", "self_attn.k_norm.", "kNorm.", "std_bias", "merger.offset", "std_scale", "merger.factor", "embedding_projection.", "merger.project.",
		},
	}
	for _, m := range [][2]string{{"self_attn", "q"}, {"self_attn", "k"}, {"self_attn", "v"}, {"self_attn", "o"}, {"mlp", "gate"}, {"mlp", "up"}, {"mlp", "down"}} {
		from, to := m[0]+"."+m[1]+"_proj.", m[1]+"."
		t.Rename = append(t.Rename, from+"linear.", to, from, to)
	}
	if kind := c.value("model_type"); kind != nil && kind != "gemma4_vision" {
		c.fail(fmt.Errorf("%smodel_type: %w", c.inside, &UnsupportedError{"vision tower", Shown(kind), []string{"gemma4_vision"}}))
	}
	t.Image = int32(c.integerAt(258880, 0, 1<<24, "image_token_id"))
	t.Begin, t.End = int32(c.integerAt(255999, 1, 1<<24, "boi_token_id")), int32(c.integerAt(258882, 1, 1<<24, "eoi_token_id"))
	c.only("num_key_value_heads", float64(t.Heads))
	c.gelu("hidden_activation")
	return t
}

// gatedSlots lists the tensors of a Gated tower.
func (t Tower) gatedSlots() []Slot {
	var s slots
	s.linear(TowerPrefix+"patch", t.Hidden, t.PatchWidth(), false)
	s.add(TowerPrefix+"places.weight", int64(2*t.Side), int64(t.Hidden))
	wide := t.Heads * t.HeadSize()
	for i := range t.Layers {
		at := fmt.Sprintf("%slayers.%d.", TowerPrefix, i)
		for _, m := range []struct {
			name          string
			rows, columns int
		}{{"q", wide, t.Hidden}, {"k", wide, t.Hidden}, {"v", wide, t.Hidden}, {"o", t.Hidden, wide}, {"gate", t.FeedForward, t.Hidden}, {"up", t.FeedForward, t.Hidden}, {"down", t.Hidden, t.FeedForward}} {
			s.linear(at+m.name, m.rows, m.columns, false)
			for _, bound := range TowerBounds() {
				if t.Clipped {
					s = append(s, Slot{Path: at + m.name + "." + bound, Shape: []int64{1}, AnyDims: true})
				}
			}
		}
		for _, name := range []string{"before", "after", "beforeFeed", "afterFeed"} {
			s.add(at+name+".weight", int64(t.Hidden))
		}
		s.add(at+"qNorm.weight", int64(t.HeadSize()))
		s.add(at+"kNorm.weight", int64(t.HeadSize()))
	}
	if t.Standard {
		s.add(TowerPrefix+"merger.offset", 1, int64(t.Hidden))
		s.add(TowerPrefix+"merger.factor", int64(t.Hidden))
	}
	s.linear(TowerPrefix+"merger.project", t.Out, t.Hidden, false)
	return s
}

// TowerBounds are the names of the bounds of a matrix in a Clipped tower: of its input, and
// of its output.
func TowerBounds() [4]string { return [4]string{"input_min", "input_max", "output_min", "output_max"} }

// gatedElements returns the Elements of a Gated tower: the input and result of a layer, four
// norms, two sums, the results of both halves; heads of queries and keys as projected, normed,
// split, rotated and joined; heads of values as projected and normed, and the result of
// attention; and the feed-forward: gate, up and their product, and either the clipped input
// of the last matrix or, where a back end queues its operations ahead, the gate's GELU. With
// MLX on a processor, a layer took 19 widths and 3.8 of the feed-forward, and less if it is
// clipped, which happens in place.
func (t Tower) gatedElements() int {
	const around, heads, wide = 9, 13, 4
	filled := 0
	if size := t.AttendedSize(); size > t.HeadSize() {
		filled = t.Heads * (6*size - 2*t.HeadSize()) // with the zeros
	}
	return around*t.Hidden + heads*t.Heads*t.HeadSize() + filled + wide*t.FeedForward + t.PatchWidth()
}
