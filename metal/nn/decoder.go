package nn

import (
	"context"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// blockTokens is the granularity of the KV cache.
const blockTokens = 256

// Decoder is a stack of blocks between an embedding and an output head.
type Decoder struct {
	loader *Loader
	cache  tensor.CacheSpec
	embed  embedding
	// inner adds an input per token to each layer; nil means none.
	inner *layerInputs
	// streams makes several residuals; nil means one.
	streams *streams
	blocks  []Block
	norm    *Norm
	head    Linear
	// draft predicts the token after the next; nil means none.
	draft *draft
	// scale multiplies logits, and limit then bounds them; 0 means neither.
	scale, limit float32
}

// LoadDecoder loads a decoder: embedding, final norm and head under Hugging
// Face's names, and the blocks that its family describes. A file without lm_head
// has a tied head. After an error nothing stays loaded.
func LoadDecoder(ctx context.Context, l *Loader, d family.Dimensions) (*Decoder, error) {
	m := &Decoder{loader: l, cache: cacheSpec(d), scale: float32(d.LogitScale), limit: float32(d.LogitCap)}
	if err := m.load(ctx, d); err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

// cacheSpec is the shape of the cache: layers that attend, what they see, and
// those that recur.
func cacheSpec(d family.Dimensions) tensor.CacheSpec {
	spec := tensor.CacheSpec{BlockTokens: blockTokens}
	for _, b := range blocksOf(d) {
		a := b.Attention
		if h := b.Recurrent; h != nil {
			spec.Recurrent = tensor.RecurrentSpec{Layers: spec.Recurrent.Layers + 1, KeyHeads: h.KeyHeads, KeySize: h.KeySize, ValueHeads: h.ValueHeads, ValueSize: h.ValueSize, Taps: h.Taps}
		}
		if a == nil || a.Shared {
			continue
		}
		spec.Layers++
		spec.Windows = append(spec.Windows, a.Window)
		heads := tensor.HeadSpec{KVHeads: a.KVHeads, HeadSize: a.HeadSize, ValueSize: a.ValueSize}
		if l := b.Latent; l != nil {
			heads = tensor.HeadSpec{KVHeads: 1, HeadSize: l.Stored(), ValueSize: l.Rank, Within: true}
		}
		if a.Window > 0 {
			spec.Local = heads
		} else {
			spec.KVHeads, spec.HeadSize, spec.ValueSize, spec.Within = heads.KVHeads, heads.HeadSize, heads.ValueSize, heads.Within
		}
	}
	if spec.KVHeads == 0 { // every layer has a window
		l := spec.Local
		spec.KVHeads, spec.HeadSize, spec.ValueSize, spec.Within = l.KVHeads, l.HeadSize, l.ValueSize, l.Within
	}
	return spec
}

// blocksOf are the layers, and that of the draft head after them.
func blocksOf(d family.Dimensions) (all []family.Block) {
	for i := range d.Layers {
		all = append(all, d.Block(i))
	}
	if d.Drafts {
		all = append(all, d.DraftBlock())
	}
	return all
}

// numbers count, for each layer, the layers before it that keep the same; for one that
// reads the keys of another it is the other's.
func numbers(d family.Dimensions) []int {
	out, attending, recurring := make([]int, d.Layers), 0, 0
	for i := range out {
		switch b := d.Block(i); {
		case b.Recurrent != nil:
			out[i] = recurring
			recurring++
		case b.Attention != nil && b.Attention.Shared:
			out[i] = out[b.Attention.Lender]
		case b.Attention != nil:
			out[i] = attending
			attending++
		}
	}
	return out
}

func (m *Decoder) load(ctx context.Context, d family.Dimensions) error {
	if err := m.loader.rotations(ctx); err != nil {
		return err
	}
	m.loader.table("model.embed_tokens", &m.embed)
	m.embed.Scale = float32(d.EmbedScale)
	if d.Inner > 0 {
		m.inner = newLayerInputs(m.loader, d)
	}
	for i, number := range numbers(d) {
		path := fmt.Sprintf("model.layers.%d", i)
		b := newBlock(m.loader, path, d, d.Block(i), i, number)
		if d.Streams == nil {
			m.blocks = append(m.blocks, b)
		} else {
			m.blocks = append(m.blocks, newAltUp(m.loader, path, b, d))
		}
	}
	if d.Streams != nil {
		m.streams = newStreams(m.loader, d)
	}
	m.norm = newNorm(m.loader, "", d.FinalNorm(), d)
	tied := !m.loader.Has("lm_head")
	if !tied {
		m.loader.Linear("lm_head", &m.head)
	}
	if d.HeadBias {
		m.loader.Bias("lm_head", &m.head)
	}
	if d.Drafts {
		m.draft = newDraft(m.loader, d, m.cache.Layers-1)
	}
	if err := m.loader.Load(ctx); err != nil {
		return err
	}
	if tied {
		m.head.Matrix = m.embed.Matrix
	}
	return nil
}

// Release frees the weights.
func (m *Decoder) Release() { m.loader.Release() }

// CacheSpec is the shape of the cache.
func (m *Decoder) CacheSpec() tensor.CacheSpec { return m.cache }

// Step runs flat tokens through the network: logits [len(rows), vocabulary],
// or nil for nil rows. The last block works on the wanted rows alone.
func (m *Decoder) Step(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int) tensor.Array {
	return m.StepSeeing(s, cache, ids, segments, rows, Sight{})
}

// Sight is what the tokens of a step are of images: none if it is zero.
type Sight struct {
	// Images of the step, in the order of their rows.
	Images []Sighted
	// Mutual are runs of their rows whose tokens see one another.
	Mutual []tensor.Run
	// Turns are where the tokens of all rows stand; nil means where they stand in their
	// requests.
	Turns *Turns
}

// Sighted are rows of a step, in ascending order, and the tokens of an image that they
// take.
type Sighted struct {
	Rows []int
	Seen
}

// StepSeeing is Step with tokens of images in place of rows of the embedding.
func (m *Decoder) StepSeeing(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int, sight Sight) tensor.Array {
	if m.draft != nil {
		logits, _ := m.StepDrafting(s, cache, ids, segments, rows, sight, Drafting{})
		return logits
	}
	if rows == nil {
		m.stack(s, cache, ids, segments, []int{}, sight)
		return nil
	}
	if inOrder(rows, tensor.Tokens(segments)) {
		rows = nil
	}
	x := m.stack(s, cache, ids, segments, rows, sight)
	if s.Err() != nil {
		return nil
	}
	return m.logits(s, m.head.Apply(only(s, rows), m.norm.apply(s, x)))
}

// logits scales and bounds what the head computed.
func (m *Decoder) logits(s tensor.Scope, x tensor.Array) tensor.Array {
	if m.scale != 0 && m.scale != 1 {
		x = s.Map(x, tensor.ScaleShift{Scale: m.scale})
	}
	if m.limit != 0 {
		x = s.Map(s.Map(s.Map(x, tensor.ScaleShift{Scale: 1 / m.limit}), tensor.Tanh{}), tensor.ScaleShift{Scale: m.limit})
	}
	return x
}

// inOrder reports whether rows are all n rows in their order.
func inOrder(rows []int, n int) bool {
	for i, r := range rows {
		if r != i {
			return false
		}
	}
	return len(rows) == n
}

// Hidden returns the normed states before the output head: [T, hidden].
func (m *Decoder) Hidden(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment) tensor.Array {
	return m.norm.apply(s, m.stack(s, cache, ids, segments, nil, Sight{}))
}

// stack runs embedding and blocks; rows are those wanted of the last one.
func (m *Decoder) stack(s tensor.Scope, cache tensor.Cache, ids tensor.Array, segments []tensor.Segment, rows []int, sight Sight) tensor.Array {
	x, pass := m.embed.Lookup(s, ids), Pass{Cache: cache, Segments: segments, Turns: sight.Turns, Mutual: sight.Mutual}
	for _, m := range sight.Images {
		x = replaced(s, x, m.Rows, m.States)
	}
	if m.inner != nil {
		pass.Inner = m.inner.of(s, ids, x, sight.Images)
	}
	if m.streams != nil {
		x = m.streams.spread(s, x)
	}
	// States of images that the last block's output is changed by need all of its rows.
	late := len(rows) > 0 && slices.ContainsFunc(sight.Images, func(image Sighted) bool { return len(image.Deep) >= len(m.blocks) })
	for i, b := range m.blocks {
		var want []int
		if i == len(m.blocks)-1 && !late {
			want = rows
		}
		inner := s.Child()
		next := b.Apply(inner, x, pass, want)
		if next != nil {
			next = inner.Keep(next)
		}
		inner.Close()
		s.Release(x)
		x = next
		if s.Err() != nil || x == nil {
			break
		}
		for _, m := range sight.Images {
			if i < len(m.Deep) {
				x = replaced(s, x, m.Rows, s.Add(s.Rows(x, m.Rows), m.Deep[i]))
			}
		}
	}
	if late && s.Err() == nil {
		all := x
		x = s.Rows(all, rows)
		s.Release(all)
	}
	if m.streams != nil && x != nil && s.Err() == nil {
		return m.streams.gather(only(s, rows), x)
	}
	return x
}

// replaced are the states x with other rows; x is released.
func replaced(s tensor.Scope, x tensor.Array, rows []int, y tensor.Array) tensor.Array {
	out := s.Place(x, rows, y)
	s.Release(x)
	return out
}
