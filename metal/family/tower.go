package family

import (
	"fmt"
	"math"
	"slices"
)

// Tower describes a vision tower: an encoder that turns the patches of an image
// into tokens of a decoder. Its layers are attention and a plain feed-forward, each
// on the normed input (LayerNorm) and added to it, unless they are Gated.
type Tower struct {
	// Patch is the side of a patch in pixels, Merge the side of a block of patches that
	// become one token, and Frames how many frames a patch has: a still image is a
	// video of equal frames.
	Patch, Merge, Frames int
	Layers, Hidden       int
	FeedForward, Heads   int
	// Size is the width of a head; 0 means Hidden/Heads.
	Size       int
	Eps        float64
	Activation Activation
	// Gated is set for the layers of Gemma 4: what enters and what leaves each half is
	// normed (RMSNorm), and so are the heads of queries, keys and values; scores are not
	// scaled, the feed-forward has a gate, and nothing has a bias. Patches have values from
	// -1 to 1. If Clipped, the input and the output of each matrix have bounds of their own.
	Gated, Clipped bool
	// Side of the square table of learned places. Tables of another size than the image
	// are Interpolated; otherwise an image has as many patches as the table. If Crossed,
	// there are two tables, of Side columns and Side rows, which are added up.
	Side                  int
	Interpolated, Crossed bool
	// Theta is the base of the rotation of heads by row and column; 0 means that
	// they are not rotated.
	Theta float64
	// Joined is set where queries, keys and values are one matrix.
	Joined bool
	// FinalNorm is set where the last states are normed before they are merged.
	FinalNorm bool
	// Merger makes one token of a block. Standard is set where MergeScaled shifts and scales
	// each column of it.
	Merger   Merger
	Standard bool
	// Deep are the layers whose merged states are added to the image's tokens after the
	// first layers of the decoder, one after another (DeepStack). Those for which the
	// decoder has no layer change nothing.
	Deep []int
	// Out is the width of the decoder.
	Out int
	// Axes are what each pair of a decoder's rotated elements turns by: 0 for time, 1 for
	// the row, 2 for the column of a token in its image. nil means that tokens of images
	// turn as those of text do.
	Axes []int
	// Mutual is set where the tokens of an image see one another in all layers of the
	// decoder or, if Windowed, in those that have a window. All of an image then has to be
	// in one step.
	Mutual, Windowed bool
	// Image is the token that a prompt has for each token of an image. If Begin and End
	// are not 0, a chat template writes Begin alone for an image, and the processor makes
	// of it a blank line, Begin, the image, End and a blank line. If Bare, the template
	// writes Image, and the processor makes of it Begin, the image and End.
	Image, Begin, End int32
	Bare              bool
	// Blank is the token whose inputs of layers (Dimensions.Inner) those of images have.
	Blank int32
	// Prefixes are those that names of its tensors may have in folders, and Rename pairs
	// of parts of names, as Layout.Rename has them.
	Prefixes, Rename []string
}

// Merger is how a block of patches becomes a token.
type Merger int

const (
	// MergeMLP norms each patch, joins them, and runs a feed-forward with a GELU. Deep
	// layers are joined first and normed then.
	MergeMLP Merger = iota + 1
	// MergeMean takes the mean, norms it (RMSNorm, stored less one), and projects it with
	// a matrix that is stored with rows and columns exchanged.
	MergeMean
	// MergeScaled takes the mean times the root of the width, norms it (RMSNorm) without a
	// weight, and projects it.
	MergeScaled
)

// TowerPrefix is where the tensors of a tower lie among those of its model.
const TowerPrefix = "vision."

// HeadSize is the width of a head.
func (t Tower) HeadSize() int {
	if t.Size > 0 {
		return t.Size
	}
	return t.Hidden / t.Heads
}

// AttendedSize is the size to which heads are filled with zeros for attention, which change
// nothing: of these sizes MLX has kernels on Metal that never write scores
// (scaled_dot_product_attention.cpp, use_fallback). Those of 16 heads and 8,192 patches
// would take 4 GiB, which no reservation contains.
func (t Tower) AttendedSize() int {
	for _, size := range [...]int{64, 80, 128} {
		if t.HeadSize() <= size {
			return size
		}
	}
	return t.HeadSize()
}

// PatchWidth is the number of values of a patch.
func (t Tower) PatchWidth() int { return 3 * t.Frames * t.Patch * t.Patch }

// Block is the number of patches of a token.
func (t Tower) Block() int { return t.Merge * t.Merge }

// Elements is the number of values per patch that a layer holds until its end (package
// nn, Tower), and the patch itself: its input and result, two normed inputs, two sums,
// queries, keys and values, what comes of them, and the feed-forward. Heads that are
// rotated are cut and joined. Heads that are filled exist in both sizes. It is no less than
// queuedElements: facts have one figure for all back ends.
func (t Tower) Elements() int {
	// Patches exist as they are cut and in the back end, with what is made of them, before layers.
	return max(t.layerElements(), 2*t.PatchWidth()+t.Hidden)
}

func (t Tower) layerElements() int {
	if t.Gated {
		return t.gatedElements()
	}
	around := 11
	if t.Theta != 0 {
		around += 8
	}
	if t.Joined {
		around += 3
	}
	if len(t.Deep) > 0 {
		around += 5
	}
	filled := 0
	if size := t.AttendedSize(); size > t.HeadSize() {
		filled = 5 * t.Heads * size // with the zeros
	}
	return max(around*t.Hidden+2*t.FeedForward, t.queuedElements()) + filled + t.PatchWidth()
}

// queuedElements is the number of values per patch of a layer of a tower that is not Gated
// where a back end queues its operations ahead, apart from heads that are filled: those of
// norms and of GELU, which consist of small operations, exist while attention computes.
// Measured with MLX on a processor for widths of 128 to 432 and 4 to 16 times as much in the
// feed-forward: 15 widths and 3 of the feed-forward, or 20 where heads are rotated. Metal has
// a kernel for a norm, so that it should take less; it was not measured.
func (t Tower) queuedElements() int {
	around := 16
	if t.Theta != 0 {
		around += 4
	}
	return around*t.Hidden + 3*t.FeedForward
}

// maxTowerHead is the largest AttendedSize that has such kernels.
const maxTowerHead = 128

// consistent checks the numbers against one another.
func (t Tower) consistent(d Dimensions) error {
	switch {
	case t.Size == 0 && t.Hidden%t.Heads != 0:
		return Invalidf("vision_config: a width of %d with %d heads", t.Hidden, t.Heads)
	case t.Theta != 0 && t.HeadSize()%4 != 0:
		return Invalidf("vision_config: heads of %d elements, which cannot be rotated by row and column", t.HeadSize())
	case t.HeadSize() > maxTowerHead:
		return fmt.Errorf("vision_config: %w", &UnsupportedError{"size of heads", fmt.Sprint(t.HeadSize()), []string{fmt.Sprintf("up to %d", maxTowerHead)}})
	case max(t.Image, t.Begin, t.End, t.Blank) >= int32(d.Vocabulary):
		return Invalidf("the tokens of images are %d, %d, %d and %d, but the vocabulary has %d", t.Image, t.Begin, t.End, t.Blank, d.Vocabulary)
	case !t.Interpolated && !t.Crossed && t.Side%t.Merge != 0:
		return Invalidf("vision_config: %d patches on a side in blocks of %d", t.Side, t.Merge)
	}
	for i, n := range t.Deep {
		if n < 0 || n >= t.Layers {
			return Invalidf("vision_config.deepstack_visual_indexes contains %d, but there are %d layers", n, t.Layers)
		}
		if slices.Contains(t.Deep[:i], n) {
			return Invalidf("vision_config.deepstack_visual_indexes contains layer %d twice", n)
		}
	}
	return nil
}

// Slots lists the tensors of the tower.
func (t Tower) Slots() []Slot {
	var s slots
	if t.Gated {
		return t.gatedSlots()
	}
	norm := func(path string, width int) { s.norm(Norm{Path: TowerPrefix + path, Bias: true}, width) }
	dense := func(path string, rows, columns int) { s.linear(TowerPrefix+path, rows, columns, true) }
	dense("patch", t.Hidden, t.PatchWidth())
	s.add(TowerPrefix+"places.weight", int64(t.Side*t.Side), int64(t.Hidden))
	for i := range t.Layers {
		at := fmt.Sprintf("layers.%d.", i)
		norm(at+"before", t.Hidden)
		norm(at+"beforeFeed", t.Hidden)
		if t.Joined {
			dense(at+"qkv", 3*t.Hidden, t.Hidden)
		} else {
			dense(at+"q", t.Hidden, t.Hidden)
			dense(at+"k", t.Hidden, t.Hidden)
			dense(at+"v", t.Hidden, t.Hidden)
		}
		dense(at+"o", t.Hidden, t.Hidden)
		dense(at+"up", t.FeedForward, t.Hidden)
		dense(at+"down", t.Hidden, t.FeedForward)
	}
	if t.FinalNorm {
		norm("norm", t.Hidden)
	}
	if t.Merger == MergeMean {
		s.add(TowerPrefix+"merger.norm.weight", int64(t.Hidden))
		s.add(TowerPrefix+"merger.turned", int64(t.Out), int64(t.Hidden))
		return s
	}
	wide := t.Hidden * t.Block()
	merger := func(path string, normed int) {
		norm(path+".norm", normed)
		dense(path+".up", wide, wide)
		dense(path+".down", t.Out, wide)
	}
	merger("merger", t.Hidden)
	for i := range t.Deep {
		merger(fmt.Sprintf("deep.%d", i), wide)
	}
	return s
}

// visionSection is where a wrapper keeps the configuration of its tower.
const visionSection = "vision_config"

// tower reads the vision tower with read, of a model that has one. sections are those of a
// decoder whose rotation has axes and whose file has no mrope_section, else nil. A tower
// that is not supported leaves the model to text: the fault says why.
func (c *Config) tower(d *Dimensions, read func(c *Config) Tower, sections []int) {
	section, ok := c.values[visionSection].(map[string]any)
	if !ok {
		return
	}
	v := &Config{values: c.values, section: newSection(section, visionSection+".")}
	t := read(v)
	t.Out = d.Hidden
	if sections != nil {
		t.Axes = readAxes(c, v, d.Rope.Size/2, sections)
	}
	if v.err == nil {
		v.fail(t.consistent(*d))
	}
	if v.err != nil {
		d.TowerFault = fmt.Errorf("config.json: %w", v.err)
		return
	}
	d.Tower = &t
}

// qwenTower reads the tower of Qwen3-VL and Qwen3.5, with the defaults of
// transformers (Qwen3VLVisionConfig, 5.23).
func qwenTower(c *Config) Tower {
	t := Tower{
		Patch: c.integerOr(16, 4, 256, "patch_size"), Merge: c.integerOr(2, 1, 16, "spatial_merge_size"), Frames: c.integerOr(2, 1, 8, "temporal_patch_size"),
		Layers: c.integerOr(27, 1, 1<<10, "depth"), Hidden: c.integerOr(1152, 1, 1<<16, "hidden_size"),
		FeedForward: c.integerOr(4304, 1, 1<<20, "intermediate_size"), Heads: c.integerOr(16, 1, 1<<10, "num_heads"),
		Eps: 1e-6, Activation: GELUTanh, Interpolated: true, Theta: 1e4, Joined: true, Merger: MergeMLP,
		Prefixes: []string{"model.visual.", "visual.", "vision_tower."},
		Rename: []string{
			"patch_embed.proj.", "patch.", "pos_embed.", "places.", "blocks.", "layers.", "attn.qkv.", "qkv.", "attn.proj.", "o.",
			"norm1.", "before.", "norm2.", "beforeFeed.", "mlp.", "", "linear_fc1.", "up.", "linear_fc2.", "down.", "deepstack_merger_list.", "deep.",
		},
	}
	t.Image = int32(c.integerAt(151655, 0, 1<<24, "image_token_id"))
	t.Theta = c.axial(t.Theta)
	places := c.integerOr(2304, 1, 1<<20, "num_position_embeddings")
	if t.Side = int(math.Sqrt(float64(places))); t.Side*t.Side != places {
		c.fail(Invalidf("vision_config.num_position_embeddings is %d, want the square of a number", places))
	}
	c.only("in_channels", 3)
	c.gelu("hidden_act")
	list := c.list("deepstack_visual_indexes")
	for _, v := range list {
		n, ok := WholeNumber(v)
		if !ok {
			n = -1 // which no layer is
		}
		t.Deep = append(t.Deep, int(n))
	}
	return t
}

// axial reads the base of the rotation by row and column. transformers takes the type
// "default" of a tower for it (modeling_rope_utils.py, default_rope_type, 5.23).
func (c *Config) axial(theta float64) float64 {
	p, ok := c.value("rope_parameters").(map[string]any)
	if !ok {
		return theta
	}
	if kind := p["rope_type"]; kind != nil && kind != "axial" && kind != "default" {
		c.fail(fmt.Errorf("vision_config.rope_parameters: %w", &UnsupportedError{"rotation", Shown(kind), []string{"axial"}}))
	}
	if v, ok := floatNumber(p["rope_theta"]); ok && v > 1 {
		return v
	}
	return theta
}

// siglipTower reads the tower of Gemma 3, with the defaults of transformers
// (SiglipVisionConfig, Gemma3Config, 5.23).
func siglipTower(c *Config) Tower {
	t := Tower{
		Patch: c.integerOr(16, 4, 256, "patch_size"), Frames: 1,
		Layers: c.integerOr(12, 1, 1<<10, "num_hidden_layers"), Hidden: c.integerOr(768, 1, 1<<16, "hidden_size"),
		FeedForward: c.integerOr(3072, 1, 1<<20, "intermediate_size"), Heads: c.integerOr(12, 1, 1<<10, "num_attention_heads"),
		Eps: 1e-6, Activation: GELUTanh, FinalNorm: true, Merger: MergeMean, Mutual: true,
		Prefixes: []string{
			"model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower.", // the later ones since transformers 5
			"model.multi_modal_projector.", "multi_modal_projector.",
		},
		Rename: []string{
			"embeddings.patch_embedding.", "patch.", "embeddings.position_embedding.", "places.", "encoder.layers.", "layers.", "post_layernorm.", "norm.",
			"layer_norm1.", "before.", "layer_norm2.", "beforeFeed.", "self_attn.q_proj.", "q.", "self_attn.k_proj.", "k.", "self_attn.v_proj.", "v.", "self_attn.out_proj.", "o.",
			"mlp.fc1.", "up.", "mlp.fc2.", "down.", "mm_soft_emb_norm.", "merger.norm.", "mm_input_projection_weight", "merger.turned",
		},
	}
	if c.value("layer_norm_eps") != nil {
		t.Eps = c.number(0, 1, "layer_norm_eps")
	}
	t.Side = c.integerOr(224, 1, 1<<14, "image_size") / max(1, t.Patch)
	t.Image = int32(c.integerAt(c.integerAt(262144, 0, 1<<24, "image_token_id"), 0, 1<<24, "image_token_index"))
	t.Begin, t.End = int32(c.integerAt(255999, 1, 1<<24, "boi_token_index")), int32(c.integerAt(256000, 1, 1<<24, "eoi_token_index"))
	tokens := c.integerAt(256, 1, 1<<20, "mm_tokens_per_image")
	side := int(math.Sqrt(float64(tokens)))
	if side*side != tokens || t.Side%side != 0 || side > t.Side {
		c.fail(Invalidf("mm_tokens_per_image is %d, which %d patches on a side cannot become", tokens, t.Side))
		side = 1
	}
	t.Merge = max(1, t.Side/side)
	c.only("num_channels", 3)
	c.gelu("hidden_act")
	return t
}

// maxSection bounds the pairs that turn by one axis.
const maxSection = 1 << 16

// readAxes reads mrope_section: how many pairs turn by time, row and column. They take turns,
// as in transformers' Qwen3VLTextRotaryEmbedding (5.23): of each three pairs the second turns
// by row and the third by column, up to as many as there are. Sections may have more than
// all pairs. Faults are those of the tower.
func readAxes(c *Config, tower *Config, pairs int, sections []int) []int {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		params, _ := c.value(key).(map[string]any)
		list, ok := params["mrope_section"].([]any)
		if !ok {
			continue
		}
		if sections = make([]int, len(sections)); len(list) != len(sections) {
			tower.fail(Invalidf("%s%s.mrope_section has %d numbers, want %d", c.inside, key, len(list), len(sections)))
			return nil
		}
		for i, v := range list {
			n, ok := WholeNumber(v)
			if !ok || n < 0 || n > maxSection {
				tower.fail(Invalidf("%s%s.mrope_section contains %s, want whole numbers up to %d", c.inside, key, Shown(v), maxSection))
				return nil
			}
			sections[i] = int(n)
		}
		break
	}
	out := make([]int, pairs)
	for i := range out {
		if axis := i % 3; i < 3*sections[axis] {
			out[i] = axis
		}
	}
	return out
}

// integerAt reads a whole number of the top level.
func (c *Config) integerAt(absent int, low, high int64, name string) int {
	v := c.values[name]
	if v == nil {
		return absent
	}
	n, ok := WholeNumber(v)
	if !ok || n < low || n > high {
		c.fail(Invalidf("%s is %s, want a whole number from %d to %d", name, Shown(v), low, high))
		return absent
	}
	return int(n)
}
