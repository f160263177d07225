package family

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// supportedScalings lists the kinds of rope scaling.
func supportedScalings() []string {
	return []string{"default", "dynamic", "linear", "llama3", "none", "proportional", "yarn"}
}

// ropeKeys are the keys allowed in an object that describes a rotary embedding
// of any type; others are refused by name. mrope sections (time, height, width)
// have no effect on text.
func ropeKeys() []string {
	return []string{
		"alpha", "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "llama_4_scaling_beta", "long_factor", "low_freq_factor", "max_position_embeddings",
		"mrope_interleaved", "mrope_section", "mscale", "mscale_all_dim", "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type", "short_factor", "truncate", "type",
	}
}

// rope reads the rotary embedding: rope_theta and rope_scaling, or both inside
// rope_parameters as transformers 5 writes them. rope_scaling wins over rope_parameters, as
// in transformers (modeling_rope_utils.py, convert_rope_params_to_dict).
func (c *Config) rope(f Family, d Dimensions) Rope {
	params, key := c.rotation("full_attention")
	return c.ropeOf(f, d, params, key)
}

// ropeOf is rope with another object in place of rope_parameters.
func (c *Config) ropeOf(f Family, d Dimensions, params any, key string) Rope {
	r := ropeReader{c: c, key: "rope_scaling", family: f, context: d.Context, head: d.HeadSize}
	r.out = Rope{Size: d.HeadSize, Linear: 1, Magnitude: 1, Interleaved: f.Interleaved}
	r.objects = []ropeObject{{"rope_scaling", c.value("rope_scaling")}, {key, params}}
	scaling := c.value("rope_scaling")
	if scaling == nil {
		r.key, scaling = key, params
	}
	r.theta()
	r.partial()
	if scaling == nil || c.err != nil {
		return r.out
	}
	for _, o := range r.objects {
		r.known(o)
	}
	var ok bool
	if r.values, ok = scaling.(map[string]any); !ok {
		c.fail(Invalidf("%s%s is %s, want an object", c.inside, r.key, Shown(scaling)))
	}
	if c.err == nil {
		r.scale()
	}
	return r.out
}

// known refuses by name the keys of an object that no rotation has.
func (r *ropeReader) known(o ropeObject) {
	values, _ := o.value.(map[string]any)
	keys := ropeKeys()
	if r.family.Name == "phimoe" {
		keys = append(keys, "long_mscale", "short_mscale")
	}
	var others []string
	for name, v := range values {
		if !slices.Contains(keys, name) && !neutral(v) {
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		name := slices.Min(others)
		r.c.fail(fmt.Errorf("%s%s.%s: %w", r.c.inside, o.key, name, &UnsupportedError{"key of a rotation", name, keys}))
	}
}

// rotation returns the object that describes the rotary embedding of layers of
// a kind, and its key: rope_parameters may have one object per kind.
func (c *Config) rotation(kind string) (params any, key string) {
	key, params = "rope_parameters", c.value("rope_parameters")
	all, ok := params.(map[string]any)
	if !ok {
		return params, key
	}
	for _, k := range []string{"full_attention", "sliding_attention"} {
		if _, apart := all[k].(map[string]any); apart {
			return all[kind], key + "." + kind
		}
	}
	return params, key
}

// ropeReader reads one object that describes the scaling.
type ropeReader struct {
	c      *Config
	key    string
	values map[string]any
	// objects may describe the rotation, the first of them before the others.
	objects []ropeObject
	out     Rope
	family  Family
	// context is the model's context length in positions, head the size of a head.
	context, head int
}

// ropeObject is an object that may describe the rotary embedding, and its key.
type ropeObject struct {
	key   string
	value any
}

// find returns a value that may be next to the objects or inside them, and where it is.
// mlx-lm reads one place and transformers another, so that two values must agree.
func (r *ropeReader) find(name string) (where string, v any) {
	where, v = name, r.c.value(name)
	for _, o := range r.objects {
		values, _ := o.value.(map[string]any)
		inside := values[name]
		switch {
		case inside == nil:
		case v == nil, where == name && r.family.Nested:
			where, v = o.key+"."+name, inside
		case !sameNumber(v, inside):
			r.c.fail(Invalidf("%s%s is %s, but %s in %s", r.c.inside, where, Shown(v), Shown(inside), o.key))
		}
	}
	return where, v
}

func sameNumber(a, b any) bool {
	x, isX := floatNumber(a)
	y, isY := floatNumber(b)
	return isX && isY && x == y
}

// theta reads the base of the rotary embedding.
func (r *ropeReader) theta() {
	c := r.c
	where, v := r.find("rope_theta")
	if v == nil {
		if r.out.Theta = cmp.Or(r.family.Theta, 10000); r.family.Theta == 0 {
			c.fail(fmt.Errorf("%srope_theta: %w", c.inside, ErrMissing))
		}
		return
	}
	n, ok := floatNumber(v)
	if !ok || n <= 1 || n > 1e12 {
		c.fail(Invalidf("%s%s is %s, want a number above 1 and up to 1e12", c.inside, where, Shown(v)))
	}
	r.out.Theta = n
}

// partial reads how many elements of a head are rotated.
func (r *ropeReader) partial() {
	c, f := r.c, r.family
	where, v := r.find("partial_rotary_factor")
	factor := cmp.Or(f.Partial, 1)
	if v != nil {
		var ok bool
		if factor, ok = floatNumber(v); !ok || !(factor > 0 && factor <= 1) {
			c.fail(Invalidf("%s%s is %s, want a number above 0 and up to 1", c.inside, where, Shown(v)))
			factor = 1
		}
		if f.Partial == 0 && factor != 1 {
			c.fail(fmt.Errorf("%s%s: %w", c.inside, where, &UnsupportedError{"value", Shown(v), []string{"1"}}))
		}
	}
	r.out.Size = int(factor * float64(r.out.Size))
	if f.Rotary != "" {
		r.out.Size = c.integer(2, 1<<12, f.Rotary)
	}
	if f.Partial > 0 && c.value("rotary_dim") != nil {
		r.out.Size = c.integer(2, 1<<12, "rotary_dim")
	}
}

func (r *ropeReader) scale() {
	kind := "default"
	for _, key := range []string{"rope_type", "type"} { // the older name wins, as in mlx-lm
		switch v := r.values[key].(type) {
		case string:
			if v != "" {
				kind = v
			}
		case nil:
		default:
			r.c.fail(Invalidf("%s%s.%s is %s, want a string", r.c.inside, r.key, key, Shown(v)))
			return
		}
	}
	switch kind {
	case "default", "none", "mrope": // sections have no effect on text
	case "linear":
		r.out.Linear = r.number("factor", nil, 1, 1e6)
	case "llama3":
		r.llama3()
	case "yarn", "deepseek_yarn", "telechat3-yarn":
		r.yarn()
	case "longrope", "su":
		r.longrope()
	case "dynamic":
		r.dynamic()
	case "proportional":
		r.proportional()
	default:
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, r.key, &UnsupportedError{"rope scaling", Quoted(kind), supportedScalings()}))
	}
}

// number reads a number of the scaling; a nil absent means that the number is
// required.
func (r *ropeReader) number(name string, absent *float64, low, high float64) float64 {
	v := r.values[name]
	if v == nil && absent != nil {
		return *absent
	}
	if v == nil {
		r.c.fail(fmt.Errorf("%s%s.%s: %w", r.c.inside, r.key, name, ErrMissing))
		return low
	}
	f, ok := floatNumber(v)
	if !ok || f < low || f > high {
		r.c.fail(Invalidf("%s%s.%s is %s, want a number from %v to %v", r.c.inside, r.key, name, Shown(v), low, high))
		return low
	}
	return f
}

func (r *ropeReader) llama3() {
	one, four, before := 1.0, 4.0, 8192.0 // mlx-lm's defaults; every Llama 3 has its own
	s := Llama3Scaling{
		Factor: r.number("factor", nil, 1, 1e6),
		Low:    r.number("low_freq_factor", &one, 1e-6, 1e6), High: r.number("high_freq_factor", &four, 1e-6, 1e6),
		Context: r.original(before),
	}
	if s.Low >= s.High {
		r.c.fail(Invalidf("%s%s: low_freq_factor %v is not less than high_freq_factor %v", r.c.inside, r.key, s.Low, s.High))
		return
	}
	if r.c.err == nil {
		r.out.Factors = s.Factors(r.out)
	}
}

// original reads the context before it was extended. It may be outside of the object, where
// transformers prefers it.
func (r *ropeReader) original(absent float64) float64 {
	const name = "original_max_position_embeddings"
	outside, inside := r.c.value(name), r.values[name]
	if outside == nil {
		return r.number(name, &absent, 1, 1<<30)
	}
	if inside != nil && !sameNumber(outside, inside) {
		r.c.fail(Invalidf("%s%s is %s, but %s in %s", r.c.inside, name, Shown(outside), Shown(inside), r.key))
	}
	return float64(r.c.integer(1, 1<<30, name))
}

// yarn reads the scaling of that name. Without the original context, transformers 5 takes
// max_position_embeddings for it (standardize_rope_params) and mlx-lm 4096, regardless of what the
// model was trained with: transformers is right, since its configurations leave the key
// out where both are equal.
func (r *ropeReader) yarn() {
	zero, one, fast := 0.0, 1.0, 32.0 // defaults of both
	s := yarnScaling{
		factor:  r.number("factor", nil, 1, 1e6),
		context: r.original(float64(r.context)),
		fast:    r.number("beta_fast", &fast, 1e-6, 1e6), slow: r.number("beta_slow", &one, 1e-6, 1e6),
		truncate: true,
	}
	mscale, all := r.number("mscale", &one, 0, 1e3), r.number("mscale_all_dim", &zero, 0, 1e3)
	if mscale == 0 || mscale != 1 && all == 0 || all != 0 && r.values["mscale"] == nil {
		// mlx-lm and transformers disagree here.
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, r.key, &UnsupportedError{"yarn", "one of mscale and mscale_all_dim", []string{"both", "neither"}}))
		return
	}
	if v, ok := r.values["truncate"].(bool); ok {
		s.truncate = v
	} else if r.values["truncate"] != nil {
		r.c.fail(Invalidf("%s%s.truncate is %s, want true or false", r.c.inside, r.key, Shown(r.values["truncate"])))
	}
	magnitude := yarnMagnitude(s.factor, mscale) / yarnMagnitude(s.factor, all)
	r.out.Magnitude = r.number("attention_factor", &magnitude, 1e-6, 1e6)
	if r.c.err == nil {
		r.out.Factors = s.factors(r.out)
	}
}

// dynamic reads scaling that begins past max_position_embeddings, which no request
// exceeds, or that does not depend on the length of the text: with alpha.
func (r *ropeReader) dynamic() {
	switch {
	case r.values["alpha"] == nil:
	case r.family.Name == "hunyuan_v1_dense":
		r.alpha()
	default:
		r.c.fail(fmt.Errorf("%s%s.alpha: %w", r.c.inside, r.key, &UnsupportedError{"value", Shown(r.values["alpha"]), []string{"none"}}))
	}
}

// proportional rotates the first part of the pairs of a whole head, and the others not
// at all.
func (r *ropeReader) proportional() {
	one := 1.0
	factor := float32(r.number("factor", &one, 1, 1e6))
	rotated := r.out.Size / 2
	r.out.Size = r.head
	for i := range r.head / 2 {
		if i < rotated {
			r.out.Factors = append(r.out.Factors, factor)
		} else {
			r.out.Factors = append(r.out.Factors, float32(math.Inf(1)))
		}
	}
}

// longrope divides frequencies by the long factors, and scales the rotated part
// by how far the context was extended.
func (r *ropeReader) longrope() {
	if !slices.Contains([]string{"minicpm", "phi3", "phimoe"}, r.family.Name) {
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, r.key, &UnsupportedError{"rope scaling", "longrope", supportedScalings()}))
		return
	}
	list, _ := r.values["long_factor"].([]any)
	if len(list) != r.out.Size/2 {
		r.c.fail(Invalidf("%s%s.long_factor has %d numbers, want %d", r.c.inside, r.key, len(list), r.out.Size/2))
		return
	}
	for _, v := range list {
		f, ok := floatNumber(v)
		if !ok || f < 1e-6 || f > 1e6 {
			r.c.fail(Invalidf("%s%s.long_factor contains %s, want numbers from 1e-06 to 1e+06", r.c.inside, r.key, Shown(v)))
			return
		}
		r.out.Factors = append(r.out.Factors, float32(f))
	}
	if r.family.Name == "phimoe" { // whose files state how much
		r.out.Magnitude = r.number("long_mscale", nil, 1e-6, 1e6)
		return
	}
	before := float64(r.c.integerOr(0, 1, 1<<30, "original_max_position_embeddings"))
	if before == 0 {
		before = r.number("original_max_position_embeddings", nil, 1, 1<<30)
	}
	if by := float64(r.context) / before; by > 1 {
		r.out.Magnitude = math.Sqrt(1 + math.Log(by)/math.Log(before))
	} else if !reflect.DeepEqual(r.values["short_factor"], r.values["long_factor"]) {
		r.c.fail(fmt.Errorf("%s%s.short_factor: %w", r.c.inside, r.key, &UnsupportedError{"value", "other than long_factor", []string{"the same, as the context is not extended"}}))
	}
}

// Llama3Scaling is transformers' _compute_llama3_parameters
// (modeling_rope_utils.py, version 5) and mlx-lm's Llama3RoPE
// (models/rope_utils.py, 0.32.2): wavelengths longer than the original context
// are divided by Factor, much shorter ones are kept, and those between are
// interpolated.
type Llama3Scaling struct{ Factor, Low, High, Context float64 }

// Factors returns the divisors of frequencies for Rope.Factors.
func (s Llama3Scaling) Factors(r Rope) []float32 {
	out := make([]float32, r.Size/2)
	for i := range out {
		wave := 2 * math.Pi * math.Pow(r.Theta, 2*float64(i)/float64(r.Size))
		switch {
		case wave > s.Context/s.Low:
			out[i] = float32(s.Factor)
		case wave < s.Context/s.High:
			out[i] = 1
		default:
			smooth := (s.Context/wave - s.Low) / (s.High - s.Low)
			out[i] = float32(1 / ((1-smooth)/s.Factor + smooth))
		}
	}
	return out
}

// Llama3 finds the scaling that yields these factors: GGUF files of Llama 3
// only store the factors. Its models differ in Factor and share the other
// parameters.
func (r Rope) Llama3(factors []float32) (Llama3Scaling, bool) {
	s := Llama3Scaling{Factor: 1, Low: 1, High: 4, Context: 8192}
	for _, f := range factors {
		s.Factor = max(s.Factor, float64(f))
	}
	want := s.Factors(r)
	for i := range want {
		if len(factors) != len(want) || !(math.Abs(float64(factors[i]-want[i])) <= 1e-4*float64(want[i])) { // also refuses NaN
			return s, false
		}
	}
	return s, true
}

// yarnScaling is transformers' _compute_yarn_parameters and mlx-lm's YarnRoPE,
// which agree, from https://arxiv.org/abs/2309.00071: pairs that turn more than
// fast times within the original context are kept, those that turn less than
// slow times are divided by factor, and those between are interpolated.
type yarnScaling struct {
	factor, context, fast, slow float64
	truncate                    bool
}

func (s yarnScaling) factors(r Rope) []float32 {
	dim := float64(r.Size)
	turns := func(n float64) float64 { // the pair that turns n times within the old context
		return dim * math.Log(s.context/(n*2*math.Pi)) / (2 * math.Log(r.Theta))
	}
	low, high := turns(s.fast), turns(s.slow)
	if s.truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001 // as both references do
	}
	out := make([]float32, r.Size/2)
	for i := range out {
		stays := 1 - min(max((float64(i)-low)/(high-low), 0), 1)
		out[i] = float32(1 / (stays + (1-stays)/s.factor))
	}
	return out
}

// yarnMagnitude is get_mscale of both references.
func yarnMagnitude(factor, mscale float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*mscale*math.Log(factor) + 1
}
