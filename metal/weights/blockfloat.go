package weights

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// modes are those that config.json may name.
func modes() []string {
	out := []string{"affine"}
	for _, f := range quant.BlockFloats() {
		out = append(out, f.String())
	}
	return out
}

// checkMode refuses an unknown mode; an empty mode is affine.
func checkMode(mode, where string) error {
	if mode == "" || slices.Contains(modes(), mode) {
		return nil
	}
	if len(mode) > 32 {
		mode = mode[:32]
	}
	return fmt.Errorf("%s: %w", where, family.Unsupported("quantisation mode", mode, modes()))
}

// smallFloats are scales of a byte: what they scale are floats of 4 or 8 bits.
func smallFloats(scales shardTensor) bool { return scales.kind.name == "U8" }

// blockFloat is the format of a layer whose scales are of a byte. Which one it
// is, its shapes say (mlx-lm 0.32.2, infer_quant_config); what config.json says
// of it must agree.
func (g grouping) blockFloat(path string, in int64, weight, scales shardTensor) (quant.Format, error) {
	none := quant.Format{}
	layer, named, err := g.of(path)
	switch {
	case err != nil:
		return none, err
	case !g.present:
		return none, family.Invalidf("%s has scales, but config.json has no quantization", family.Quoted(path))
	case named && layer.bits == 0:
		return none, family.Invalidf("%s has scales, but config.json lists it as not quantised", family.Quoted(path))
	case weight.kind.name != "U32":
		return none, fmt.Errorf("%s: %w", family.Quoted(path), family.Unsupported("type of quantised words", weight.kind.name, []string{"U32"}))
	case weight.shape[1] == 0 || scales.shape[1] == 0 || weight.shape[1] > in:
		return none, family.Invalidf("%s has words of shape %v and scales of shape %v for %d columns", family.Quoted(path), weight.shape, scales.shape, in)
	}
	bits, group := weight.shape[1]*32/in, in/scales.shape[1]
	at := slices.IndexFunc(quant.BlockFloats(), func(f quant.Format) bool { return int64(f.Bits) == bits && int64(f.Group) == group })
	if at < 0 {
		return none, fmt.Errorf("%s: %w", family.Quoted(path), family.Unsupported("quantisation", fmt.Sprintf("%d bits in groups of %d with scales of one byte", bits, group), modes()[1:]))
	}
	f := quant.BlockFloats()[at]
	if g.only != "" && g.only != f.String() {
		return none, family.Invalidf("%s has the shapes of %v, but config.json specifies %s", family.Quoted(path), f, g.only)
	}
	if named && (layer.mode != f.String() || layer.bits != f.Bits || layer.group != f.Group) {
		return none, family.Invalidf("config.json lists %s with mode %q, %d bits and groups of %d, but its shapes and its one-byte scales match %v", family.Quoted(path), layer.mode, layer.bits, layer.group, f)
	}
	if in%group != 0 || weight.shape[1]*32 != in*bits || scales.shape[1]*group != in || weight.shape[0] != scales.shape[0] {
		return none, family.Invalidf("%s has words of shape %v and scales of shape %v for %d columns of %v", family.Quoted(path), weight.shape, scales.shape, in, f)
	}
	return f, nil
}

// blockEntry is a tensor of small floats.
func (c *collection) blockEntry(e Entry, groups grouping, t, scales shardTensor) (Entry, error) {
	layer, leading := layerOf(e.Path), len(e.Shape)-1
	for _, part := range []shardTensor{t, scales} {
		if leading < 1 || len(part.shape) != len(e.Shape) || !slices.Equal(part.shape[:leading], e.Shape[:leading]) {
			return Entry{}, family.Invalidf("%s has words of shape %v and scales of shape %v, want words of shape %v", family.Quoted(layer), t.shape, scales.shape, e.Shape)
		}
	}
	var err error
	if e.Format, err = groups.blockFloat(layer, e.Shape[leading], t.flat(), scales.flat()); err != nil {
		return Entry{}, err
	}
	e.scales = scales.span
	e.Bytes += scales.span.bytes
	e.stored = e.Format.String()
	return e, nil
}
