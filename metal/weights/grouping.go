package weights

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// grouping is what config.json says about quantised layers.
type grouping struct {
	// present is false for models that are not quantised.
	present bool
	// whole is for layers that are named with true.
	whole layerGrouping
	// layers are the values by path: an object, or true or false.
	layers map[string]any
	// only is the mode that small floats must have; "" means any.
	only string
}

// layerGrouping is how one layer is quantised; 0 and "" mean not said.
type layerGrouping struct {
	bits, group int
	mode        string
}

// groupingOf reads "quantization", or "quantization_config", both of which
// mlx-lm writes. Formats of other tools are refused by name.
func groupingOf(c *family.Config) (grouping, error) {
	key, v := c.Quantization()
	if v == nil {
		return grouping{}, nil
	}
	layers, ok := v.(map[string]any)
	if !ok {
		return grouping{}, family.Invalidf("config.json: %s is %s, want an object", key, family.Shown(v))
	}
	if m := layers["quant_method"]; m == "mxfp4" && c.Is("gpt_oss") {
		f, _ := quant.BlockFloatNamed("mxfp4")
		return grouping{present: true, whole: layerGrouping{f.Bits, f.Group, f.String()}, only: f.String()}, nil
	} else if m != nil {
		return grouping{}, fmt.Errorf("config.json: %s: %w", key, family.Unsupported("quantisation method", family.Shown(m), []string{"MLX's own", "mxfp4 of a gpt_oss"}))
	}
	whole, err := readGrouping(layers, key)
	if err != nil {
		return grouping{}, err
	}
	if whole.bits == 0 || whole.group == 0 {
		return grouping{}, fmt.Errorf("config.json: %s.bits and %s.group_size: %w", key, key, ErrMissing)
	}
	return grouping{present: true, whole: whole, layers: layers}, nil
}

// layerKeys may describe the quantisation of one layer; mlx-lm refuses others.
func layerKeys() []string { return []string{"bits", "group_size", "mode"} }

func readGrouping(values map[string]any, where string) (layerGrouping, error) {
	var g layerGrouping
	if values["global_scale"] == true { // a scale per expert, of nvfp4
		return g, fmt.Errorf("config.json: %s: %w", where, family.Unsupported("key", "global_scale", layerKeys()))
	}
	for _, f := range []struct {
		key string
		to  *int
	}{{"bits", &g.bits}, {"group_size", &g.group}} {
		v := values[f.key]
		if v == nil {
			continue
		}
		n, ok := family.WholeNumber(v)
		if !ok || n < 1 || n > 1<<16 {
			return g, family.Invalidf("config.json: %s.%s is %s, want a whole number", where, f.key, family.Shown(v))
		}
		*f.to = int(n)
	}
	switch v := values["mode"].(type) {
	case nil:
	case string:
		g.mode = v
	default:
		return g, family.Invalidf("config.json: %s.mode is %s, want a string", where, family.Shown(v))
	}
	return g, checkMode(g.mode, "config.json: "+where)
}

// of returns how the layer at path is quantized; named is false if config.json
// does not name it. Such a layer is quantized if it has scales, in the way its
// shapes imply (mlx-lm 0.32.2, utils.py, load_model and infer_quant_config).
//
// The path of a decoder inside a larger model is the one in that model.
func (g grouping) of(path string) (layer layerGrouping, named bool, err error) {
	v := g.layers[path]
	if v == nil {
		v = g.layers["language_model."+path]
	}
	switch v := v.(type) {
	case nil:
		return layerGrouping{}, false, nil
	case bool:
		if !v {
			return layerGrouping{}, true, nil
		}
		return g.whole, true, nil
	case map[string]any:
		where := "quantization of " + family.Quoted(path)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !slices.Contains(layerKeys(), key) && v[key] != nil && v[key] != false {
				return layer, true, fmt.Errorf("config.json: %s: %w", where, family.Unsupported("key", key, layerKeys()))
			}
		}
		if layer, err = readGrouping(v, where); err != nil {
			return layer, true, err
		}
		usual, ok := quant.BlockFloatNamed(layer.mode)
		if !ok { // the defaults of MLX's to_quantized
			usual.Bits, usual.Group = 4, 64
		}
		layer.bits, layer.group = cmp.Or(layer.bits, usual.Bits), cmp.Or(layer.group, usual.Group)
		return layer, true, nil
	}
	return layerGrouping{}, true, family.Invalidf("config.json: quantization of %s is %s, want an object, true or false", family.Quoted(path), family.Shown(v))
}

// quantized is the format of the layer at path, whose weight means [rows, in],
// checked against the shapes of its words, scales and biases.
func (g grouping) quantized(path string, in int64, weight, scales, biases shardTensor) (quant.Format, error) {
	none := quant.Format{}
	layer, named, err := g.of(path)
	switch {
	case err != nil:
		return none, err
	case !g.present:
		return none, family.Invalidf("%s has scales, but config.json has no quantization", family.Quoted(path))
	case named && layer.bits == 0:
		return none, family.Invalidf("%s has scales, but config.json lists it as not quantised", family.Quoted(path))
	case named && layer.mode != "" && layer.mode != "affine":
		return none, family.Invalidf("config.json lists %s with mode %q, but its scales have type %s", family.Quoted(path), layer.mode, scales.kind.name)
	case weight.kind.name != "U32":
		return none, fmt.Errorf("%s: %w", family.Quoted(path), family.Unsupported("type of quantised words", weight.kind.name, []string{"U32"}))
	case len(weight.shape) != 2 || len(scales.shape) != 2 || weight.shape[1] == 0 || scales.shape[1] == 0 || weight.shape[1] > in:
		return none, family.Invalidf("%s has words of shape %v and scales of shape %v for %d columns", family.Quoted(path), weight.shape, scales.shape, in)
	}
	t, err := scales.kind.float()
	if err != nil {
		return none, fmt.Errorf("scales of %s: %w", family.Quoted(path), err)
	}
	if biases.kind != scales.kind {
		return none, family.Invalidf("%s has scales of type %s and biases of type %s", family.Quoted(path), scales.kind.name, biases.kind.name)
	}
	if !named {
		layer.bits, layer.group = int(weight.shape[1]*32/in), int(in/scales.shape[1])
	}
	f := quant.AffineOf(layer.bits, layer.group, t)
	if f.Check() != nil {
		return none, fmt.Errorf("%s: %w", family.Quoted(path), family.Unsupported("quantisation", f.String(), affineNames()))
	}
	rows := weight.shape[0]
	for _, part := range []struct {
		name        string
		shape, want []int64
	}{
		{"words", weight.shape, []int64{rows, in * int64(layer.bits) / 32}},
		{"scales", scales.shape, []int64{rows, in / int64(layer.group)}},
		{"biases", biases.shape, []int64{rows, in / int64(layer.group)}},
	} {
		if !slices.Equal(part.shape, part.want) || in%int64(layer.group) != 0 {
			return none, family.Invalidf("%s of %s have shape %v, want %v for %d columns of %v", part.name, family.Quoted(path), part.shape, part.want, in, f)
		}
	}
	return f, nil
}

func affineNames() []string {
	return []string{fmt.Sprintf("affine of %v bits in groups of %v", quant.Bits(), quant.Groups())}
}
