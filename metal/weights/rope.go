package weights

import (
	"fmt"
	"math"
)

// supportedScalings lists the kinds of rope scaling.
func supportedScalings() []string { return []string{"default", "linear", "llama3", "none", "yarn"} }

// rope reads how heads are turned: rope_theta and rope_scaling, or both inside
// rope_parameters as transformers 5 writes them. The older keys win, as in
// mlx-lm's qwen3.
func (c *config) rope(d Dimensions) Rope {
	r := ropeReader{c: c, key: "rope_scaling", d: d}
	r.out = Rope{Size: d.HeadSize, Linear: 1, Magnitude: 1}
	params, key := c.scalingOf(d.Architecture)
	scaling := c.text["rope_scaling"]
	if scaling == nil {
		r.key, scaling = key, params
	}
	r.theta(params)
	if isHybrid(d.Architecture) {
		r.out.Size = c.hybridRotary(d)
	} else if v := c.text["partial_rotary_factor"]; v != nil {
		r.partial("partial_rotary_factor", v)
	}
	if scaling == nil || c.err != nil {
		return r.out
	}
	var ok bool
	if r.values, ok = scaling.(map[string]any); !ok {
		c.fail(invalidf("%s%s is %s, want an object", c.inside, r.key, shown(scaling)))
		return r.out
	}
	r.scale()
	return r.out
}

// ropeReader reads one object that describes the scaling.
type ropeReader struct {
	c      *config
	d      Dimensions
	key    string
	values map[string]any
	out    Rope
}

// theta is 10000 where a Llama does not say (mlx-lm 0.32.2, models/llama.py);
// a Qwen3 says it.
func (r *ropeReader) theta(params any) {
	c := r.c
	where, v := "rope_theta", c.text["rope_theta"]
	if p, ok := params.(map[string]any); ok && v == nil {
		_, key := c.scalingOf(r.d.Architecture)
		where, v = key+".rope_theta", p["rope_theta"]
	}
	if v == nil && r.d.Architecture == familyGemma3 {
		r.out.Theta = 1e6 // as both references take it
		return
	}
	if v == nil {
		if r.out.Theta = 10000; r.d.Architecture != familyLlama {
			c.fail(fmt.Errorf("%srope_theta: %w", c.inside, ErrMissing))
		}
		return
	}
	f, ok := floatNumber(v)
	if !ok || f <= 1 || f > 1e12 {
		c.fail(invalidf("%s%s is %s, want a number above 1 and up to 1e12", c.inside, where, shown(v)))
	}
	r.out.Theta = f
}

func (r *ropeReader) partial(where string, v any) {
	if f, ok := floatNumber(v); !ok || f != 1 {
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, where, &UnsupportedError{"value", shown(v), []string{"1"}}))
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
			r.c.fail(invalidf("%s%s.%s is %s, want a string", r.c.inside, r.key, key, shown(v)))
			return
		}
	}
	if v := r.values["partial_rotary_factor"]; v != nil && !isHybrid(r.d.Architecture) {
		r.partial(r.key+".partial_rotary_factor", v)
	}
	switch kind {
	case "default", "none":
	case "linear":
		r.out.Linear = r.number("factor", nil, 1, 1e6)
	case "llama3":
		r.llama3()
	case "yarn":
		r.yarn()
	default:
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, r.key, &UnsupportedError{"rope scaling", quoted(kind), supportedScalings()}))
	}
}

// number reads a number of the scaling; nil absent means that it must be there.
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
		r.c.fail(invalidf("%s%s.%s is %s, want a number from %v to %v", r.c.inside, r.key, name, shown(v), low, high))
		return low
	}
	return f
}

func (r *ropeReader) llama3() {
	one, four, before := 1.0, 4.0, 8192.0 // mlx-lm's defaults
	s := Llama3Scaling{
		Factor: r.number("factor", nil, 1, 1e6),
		Low:    r.number("low_freq_factor", &one, 1e-6, 1e6), High: r.number("high_freq_factor", &four, 1e-6, 1e6),
		Context: r.number("original_max_position_embeddings", &before, 1, 1<<30),
	}
	if s.Low >= s.High {
		r.c.fail(invalidf("%s%s: low_freq_factor %v is not less than high_freq_factor %v", r.c.inside, r.key, s.Low, s.High))
		return
	}
	if r.c.err == nil {
		r.out.Factors = s.Factors(r.out)
	}
}

func (r *ropeReader) yarn() {
	zero, one, fast, before := 0.0, 1.0, 32.0, 4096.0 // mlx-lm's defaults
	s := yarnScaling{
		factor:  r.number("factor", nil, 1, 1e6),
		context: r.number("original_max_position_embeddings", &before, 1, 1<<30),
		fast:    r.number("beta_fast", &fast, 1e-6, 1e6), slow: r.number("beta_slow", &one, 1e-6, 1e6),
		truncate: true,
	}
	mscale, all := r.number("mscale", &one, 0, 1e3), r.number("mscale_all_dim", &zero, 0, 1e3)
	if mscale == 0 || mscale != 1 && all == 0 || all != 0 && r.values["mscale"] == nil {
		// Here mlx-lm and transformers compute different things.
		r.c.fail(fmt.Errorf("%s%s: %w", r.c.inside, r.key, &UnsupportedError{"yarn", "one of mscale and mscale_all_dim", []string{"both", "neither"}}))
		return
	}
	if v, ok := r.values["truncate"].(bool); ok {
		s.truncate = v
	} else if r.values["truncate"] != nil {
		r.c.fail(invalidf("%s%s.truncate is %s, want true or false", r.c.inside, r.key, shown(r.values["truncate"])))
	}
	magnitude := yarnMagnitude(s.factor, mscale) / yarnMagnitude(s.factor, all)
	r.out.Magnitude = r.number("attention_factor", &magnitude, 1e-6, 1e6)
	if r.c.err == nil {
		r.out.Factors = s.factors(r.out)
	}
}

// Llama3Scaling is transformers' _compute_llama3_parameters
// (modeling_rope_utils.py, version 5) and mlx-lm's Llama3RoPE
// (models/rope_utils.py, 0.32.2): wave lengths beyond the old context are
// divided by factor, those far inside it stay, those between are blended.
type Llama3Scaling struct{ Factor, Low, High, Context float64 }

// Factors are those of Rope.
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

// Llama3 finds the scaling whose factors these are: GGUF files of Llama 3 hold
// the factors alone. Its models differ in the factor and agree in the rest.
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
// fast times within the old context stay, those that turn less than slow times
// are divided by factor, those between are blended.
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

// temper reads how a Ministral's queries grow with their position; it is among
// rope_parameters.
func (c *config) temper() *Temper {
	params, _ := c.text["rope_parameters"].(map[string]any)
	r := ropeReader{c: c, key: "rope_parameters", values: params}
	return &Temper{
		Beta:  r.number("llama_4_scaling_beta", nil, 0, 1e3),
		Every: int(r.number("original_max_position_embeddings", nil, 1, 1<<30)),
	}
}
