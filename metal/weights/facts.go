package weights

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Value returns the value of a metadata key; nil if absent.
func (h *Header) Value(key string) any { return h.Metadata[key] }

// Keys returns the metadata keys with a prefix, sorted.
func (h *Header) Keys(prefix string) []string {
	var out []string
	for key := range h.Metadata {
		if strings.HasPrefix(key, prefix) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// Dimensions reads and checks the numbers of the model's family.
func (h *Header) Dimensions() (family.Dimensions, error) {
	d, err := family.OfMetadata(h)
	if err != nil {
		return family.Dimensions{}, err
	}
	embed, ok := h.Tensor("token_embd.weight")
	if !ok || len(embed.Shape) != 2 {
		return family.Dimensions{}, fmt.Errorf("tensor token_embd.weight with two dimensions: %w", ErrMissing)
	}
	d.Vocabulary = int(embed.Shape[0])
	return d, nil
}

// Facts returns the numbers for placement and memory estimates. It also checks
// that every tensor that the family needs is present with the right shape, and
// that there are no others.
func (h *Header) Facts() (model.Facts, error) {
	d, err := h.Dimensions()
	if err != nil {
		return model.Facts{}, err
	}
	entries, err := h.inventory(d)
	if err != nil {
		return model.Facts{}, err
	}
	name, _ := h.Text("general.name")
	if len(name) > 256 {
		name = ""
	}
	kinds := map[string]int64{}
	for _, t := range h.Tensors {
		if !t.encodes() {
			kinds[t.Type.String()] += t.Bytes
		}
	}
	f, err := facts(d, name, largest(kinds), entries, quant.Float32)
	if err != nil {
		return f, err
	}
	f.SetTask(taskOfMetadata(h.Metadata, h))
	return f, checkUnread(h.Size, f.WeightBytes)
}

// The files of a model may have at most unreadFactor times the bytes of the weights that are
// loaded, and unreadBytes: those of encoders and draft layers that are left out.
const (
	unreadFactor = 3
	unreadBytes  = 1 << 30
)

// checkUnread refuses files of which little is loaded: a namespace is charged for memory, so that
// the rest would take the disks of Macs from others at no cost.
func checkUnread(files, loaded int64) error {
	if files > unreadBytes && (files-unreadBytes)/unreadFactor > loaded {
		return family.Invalidf("the files of weights have %d bytes, but only %d bytes of weights are loaded; remove tensors and padding that the model does not use", files, loaded)
	}
	return nil
}

// facts of a model whose numbers mean at least the given precision.
func facts(d family.Dimensions, name, quantization string, entries map[string]Entry, precise quant.Type) (model.Facts, error) {
	f := model.Facts{
		Architecture: d.Architecture, Name: name, Quantization: quantization,
		Layers: int64(d.Layers), GrowingLayers: int64(d.Layers),
		HiddenSize: int64(d.Hidden), FeedForwardSize: int64(d.FeedForward),
		QueryHeads: int64(d.QueryHeads), KeyValueHeads: int64(d.KVHeads), HeadSize: int64(d.HeadSize),
		VocabularySize: int64(d.Vocabulary), ContextTokens: int64(d.Context),
		KeyValueElementBytes: elementBytes(entries, precise),
	}
	if d.Encoder == nil {
		attending(&f, d)
	}
	if f.WindowLayers > 0 {
		f.WindowTokens = int64(d.Window)
	}
	if f.RecurrentLayers > 0 {
		f.RecurrentStateBytes, f.RecurrentSize = f.RecurrentLayers*d.Hybrid.StateBytes(), int64(d.Hybrid.Width())
		if d.Drafts {
			f.RecurrentStateBytes *= 2
		}
	}
	if d.Encoder != nil {
		f.GrowingLayers, f.EncoderLayers = 0, f.Layers
	}
	if sparse := d.Experts.Layers(d.Layers); sparse > 0 {
		f.Experts, f.ExpertsPerToken, f.ExpertFeedForwardSize = int64(d.Experts.Count), int64(d.Experts.PerToken), int64(d.Experts.FeedForward)
		if sparse == d.Layers { // no block has the width that the file states
			f.FeedForwardSize = max(f.ExpertFeedForwardSize, int64(d.Experts.Shared))
		}
	}
	for path, e := range entries {
		f.WeightBytes += e.Held()
		f.WideWeightBytes += e.wideBytes(precise)
		if d.Drafts && strings.HasPrefix(path, family.DraftPrefix) {
			f.DraftWeightBytes += e.Held()
		}
	}
	if f.WideWeightBytes <= f.WeightBytes {
		f.WideWeightBytes = 0
	}
	return f, f.Validate()
}

// attending enters what the layers of a decoder keep, that of a draft head too, and the
// widest of those that attend.
func attending(f *model.Facts, d family.Dimensions) {
	kinds := d.Kinds()
	f.GrowingLayers, f.WindowLayers, f.RecurrentLayers, f.StatelessLayers = int64(kinds.Growing), int64(kinds.Window), int64(kinds.Recurrent), int64(kinds.Stateless)
	if a := kinds.Widest; a != nil && d.Latent == nil {
		f.QueryHeads, f.KeyValueHeads, f.HeadSize = int64(a.Heads), int64(a.KVHeads), int64(a.HeadSize)
	}
	usual := 2 * f.KeyValueHeads * f.HeadSize
	if n := int64(kinds.Heads); n != usual {
		f.GrowingElements = n
	}
	if n := int64(kinds.Local); n != usual {
		f.WindowElements = n
	}
	if d.Drafts { // one more layer, and the states before a draft
		f.Layers, f.GrowingLayers = f.Layers+1, f.GrowingLayers+1
	}
	f.LayerInputSize = int64(d.Layers * d.Inner)
	if d.Streams != nil {
		f.LayerInputSize += int64(d.Streams.Count * d.Hidden)
	}
}

// elementBytes is the width of an activation, and so of a key or value, where
// the weights are as they are written: half precision only where all numbers
// are of one such type. Two types together are computed in float32.
func elementBytes(entries map[string]Entry, precise quant.Type) int64 {
	for _, e := range entries {
		if e.Format.Type != precise && !e.stateless() {
			return int64(quant.Float32.Bytes())
		}
	}
	return int64(precise.Bytes())
}

// wideBytes is the size of a tensor when every scale has a bias, and numbers
// are at least as precise as precise (see model.Facts).
func (e Entry) wideBytes(precise quant.Type) int64 {
	f, _ := e.Made()
	if f.Mode == quant.Symmetric {
		f.Mode = quant.Affine
	}
	if precise == quant.Float32 && !f.BlockFloat() {
		f.Type = quant.Float32
	}
	return e.heldAs(f)
}

// largest is the key with the largest value, the first among equals.
func largest(bytes map[string]int64) string {
	best := ""
	for _, name := range sortedKeys(bytes) {
		if best == "" || bytes[name] > bytes[best] {
			best = name
		}
	}
	return best
}
