//go:build !race

package arch_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// oracle is all families once more, in float64, one token at a time, in the
// plainest words: it shares nothing with the network under test but the file.
type oracle struct {
	d family.Dimensions
	w map[string][][]float64
	// lessOne is 1 where norms are stored less one.
	lessOne float64
}

func openOracle(t *testing.T, path string) *oracle {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o := &oracle{d: f.Dim, w: map[string][][]float64{}}
	if o.gemma() && f.Header() == nil {
		o.lessOne = 1
	}
	for _, e := range f.Entries() {
		m := make([][]float64, e.Rows())
		err := f.Rows(context.Background(), e, func(row int, r quant.Row) error {
			v := make([]float32, e.Shape[len(e.Shape)-1])
			if err := e.Format.Dequantize(r, v); err != nil {
				return err
			}
			for _, x := range v {
				m[row] = append(m[row], float64(x))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		o.w[e.Path] = m
	}
	return o
}

func (o *oracle) gemma() bool { return o.d.Architecture == "gemma3_text" }

func add(to, x []float64) {
	for i, v := range x {
		to[i] += v
	}
}

func apply(m [][]float64, x []float64) []float64 {
	out := make([]float64, len(m))
	for r, row := range m {
		for i, w := range row {
			out[r] += w * x[i]
		}
	}
	return out
}

// project adds a bias where the family has one.
func (o *oracle) project(path string, x []float64) []float64 {
	out := apply(o.w[path+".weight"], x)
	if b := o.w[path+".bias"]; b != nil {
		for i := range out {
			out[i] += b[0][i]
		}
	}
	return out
}

func (o *oracle) norm(path string, x []float64) []float64 {
	var mean float64
	for _, v := range x {
		mean += v * v / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(mean+o.d.NormEps) * (o.w[path][0][i] + o.lessOne)
	}
	return out
}

// headNorm norms each head where the family does so.
func (o *oracle) headNorm(path string, x []float64) []float64 {
	if o.w[path] == nil {
		return x
	}
	var out []float64
	for h := 0; h < len(x); h += o.d.HeadSize {
		out = append(out, o.norm(path, x[h:h+o.d.HeadSize])...)
	}
	return out
}

func (o *oracle) rope(layer int, x []float64, pos int) {
	r := o.d.Rope
	if o.d.LocalRope != nil && o.d.WindowOf(layer) > 0 {
		r = *o.d.LocalRope
	}
	for h := 0; h < len(x); h += o.d.HeadSize {
		half := r.Size / 2
		for i := range half {
			angle := float64(pos) / r.Linear * math.Pow(r.Theta, -2*float64(i)/float64(r.Size))
			if f := o.w["model.rope_freqs.weight"]; f != nil {
				angle /= f[0][i]
			}
			a, b := x[h+i], x[h+half+i]
			x[h+i], x[h+half+i] = a*math.Cos(angle)-b*math.Sin(angle), b*math.Cos(angle)+a*math.Sin(angle)
		}
	}
}

// logits returns the scores after the last token.
func (o *oracle) logits(ids []int32) []float64 {
	keys, values := make([][][]float64, o.d.Layers), make([][][]float64, o.d.Layers)
	var x []float64
	for pos, id := range ids {
		x = append([]float64{}, o.w["model.embed_tokens.weight"][id]...)
		for i := range x {
			x[i] *= cmp.Or(o.d.EmbedScale, 1)
		}
		for l := range o.d.Layers {
			p := fmt.Sprintf("model.layers.%d.", l)
			n := o.norm(p+"input_layernorm.weight", x)
			q, k, v := o.project(p+"self_attn.q_proj", n), o.project(p+"self_attn.k_proj", n), o.project(p+"self_attn.v_proj", n)
			q, k = o.headNorm(p+"self_attn.q_norm.weight", q), o.headNorm(p+"self_attn.k_norm.weight", k)
			o.rope(l, q, pos)
			o.rope(l, k, pos)
			keys[l], values[l] = append(keys[l], k), append(values[l], v)
			first := 0
			if w := o.d.WindowOf(l); w > 0 {
				first = max(0, pos+1-w)
			}
			attended := apply(o.w[p+"self_attn.o_proj.weight"], o.attend(q, keys[l][first:], values[l][first:]))
			if !o.gemma() {
				add(x, attended)
				add(x, o.feedForward(l, p+"mlp.", o.norm(p+"post_attention_layernorm.weight", x)))
				continue
			}
			add(x, o.norm(p+"post_attention_layernorm.weight", attended))
			add(x, o.norm(p+"post_feedforward_layernorm.weight", o.feedForward(l, p+"mlp.", o.norm(p+"pre_feedforward_layernorm.weight", x))))
		}
	}
	head := o.w["lm_head.weight"]
	if head == nil {
		head = o.w["model.embed_tokens.weight"]
	}
	return apply(head, o.norm("model.norm.weight", x))
}

// feedForward is a dense one, or the experts that the router likes best.
func (o *oracle) feedForward(layer int, p string, x []float64) []float64 {
	e := o.d.Experts
	if !e.In(layer) {
		return gated(o.w[p+"gate_proj.weight"], o.w[p+"up_proj.weight"], o.w[p+"down_proj.weight"], x, o.gemma())
	}
	scores, sum := apply(o.w[p+"gate.weight"], x), 0.0
	order := make([]int, e.Count)
	for i := range scores {
		order[i], scores[i] = i, math.Exp(scores[i])
		sum += scores[i]
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	if e.Normalized {
		sum = 0
		for _, i := range order[:e.PerToken] {
			sum += scores[i]
		}
	}
	out := make([]float64, len(x))
	for _, i := range order[:e.PerToken] {
		of := func(name string, rows int) [][]float64 {
			return o.w[p+"switch_mlp."+name+".weight"][i*rows : (i+1)*rows]
		}
		for j, y := range gated(of("gate_proj", e.FeedForward), of("up_proj", e.FeedForward), of("down_proj", len(x)), x, false) {
			out[j] += scores[i] / sum * y
		}
	}
	return out
}

func gated(gate, up, down [][]float64, x []float64, gelu bool) []float64 {
	inner := apply(up, x)
	for i, g := range apply(gate, x) {
		if gelu {
			inner[i] *= g / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		} else {
			inner[i] *= g / (1 + math.Exp(-g))
		}
	}
	return apply(down, inner)
}

func (o *oracle) attend(q []float64, keys, values [][]float64) []float64 {
	out := make([]float64, len(q))
	size := o.d.HeadSize
	for h := range o.d.QueryHeads {
		kv := h / (o.d.QueryHeads / o.d.KVHeads) * size
		scores, sum := make([]float64, len(keys)), 0.0
		for p, k := range keys {
			for i := range size {
				scores[p] += q[h*size+i] * k[kv+i] / math.Sqrt(cmp.Or(o.d.QueryScalar, float64(size)))
			}
			scores[p] = math.Exp(scores[p])
			sum += scores[p]
		}
		for p, v := range values {
			for i := range size {
				out[h*size+i] += scores[p] / sum * v[kv+i]
			}
		}
	}
	return out
}

// TestLogitsEqualThePlainOracle covers every GGUF format, tied and untied
// heads, and rotary factors, beyond the first block of the cache.
func TestLogitsEqualThePlainOracle(t *testing.T) {
	const tolerance = 2e-5 // of the largest logit
	for _, family := range []tinymodel.Family{tinymodel.Llama, tinymodel.Qwen2, tinymodel.Qwen3, tinymodel.Qwen3MoE, tinymodel.Gemma3} {
		for _, kind := range []weights.Type{weights.F32, weights.F16, weights.BF16, weights.Q4_0, weights.Q4_1, weights.Q8_0} {
			t.Run(fmt.Sprintf("%s %v", family, kind), func(t *testing.T) {
				c := ofFamily(family)
				c.NormSpread = 0.5
				c.Type, c.Untied, c.RopeFactors = kind, kind != weights.Q4_1, kind == weights.Q8_0 && family != tinymodel.Gemma3
				path := write(t, c)
				ids := tokens(37, c.Vocabulary)
				if kind == weights.Q8_0 {
					ids = tokens(270, c.Vocabulary)
				}
				want := openOracle(t, path).logits(ids)
				n := load(t, path, ref.Options{Threads: 2})
				got := n.all(1, ids, 16)
				got = got[len(got)-n.vocab:]
				top := 0.0
				for _, v := range want {
					top = max(top, math.Abs(v))
				}
				for i, v := range want {
					if d := math.Abs(float64(got[i])-v) / top; !(d <= tolerance) {
						t.Fatalf("logit %d is %v, want %v (error %.2g of the largest)", i, got[i], v, d)
					}
				}
			})
		}
	}
}
