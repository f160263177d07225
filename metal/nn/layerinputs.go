package nn

import (
	"math"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// layerInputs is what every layer of a Gemma gets of each token besides: rows of an
// embedding of its own, and a projection of the embedding that all layers share.
type layerInputs struct {
	embed   embedding
	project Linear
	norm    RMSNorm
	layers  int
	width   int
	scale   float32
	// blank is the token whose rows the tokens of images have.
	blank int32
}

// newLayerInputs declares the embedding, the projection and its norm.
func newLayerInputs(l *Loader, d family.Dimensions) *layerInputs {
	e := &layerInputs{layers: d.Layers, width: d.Inner, scale: float32(1 / math.Sqrt(float64(d.Hidden)))}
	l.padded("model.embed_tokens_per_layer", d.Vocabulary, &e.embed)
	e.embed.Scale = float32(math.Sqrt(float64(d.Inner)))
	l.Linear("model.per_layer_model_projection", &e.project)
	l.RMSNorm("model.per_layer_projection_norm", d.NormEps, &e.norm)
	if d.Tower != nil {
		e.blank = d.Tower.Blank
	}
	return e
}

// of gives the input [T, width] of each layer for ids, whose embedding is x.
func (e *layerInputs) of(s tensor.Scope, ids, x tensor.Array, images []Sighted) []tensor.Array {
	inner := s.Child()
	defer inner.Close()
	own := e.embed.Lookup(inner, ids)
	for _, m := range images {
		blank := make([]int32, len(m.Rows))
		for i := range blank {
			blank[i] = e.blank
		}
		own = replaced(inner, own, m.Rows, e.embed.Lookup(inner, inner.IDs(blank)))
	}
	projected := e.norm.Apply(inner, inner.Map(e.project.Apply(inner, x), tensor.ScaleShift{Scale: e.scale}))
	all := inner.Map(inner.Add(projected, own), tensor.ScaleShift{Scale: math.Sqrt2 / 2})
	widths := make([]int, e.layers)
	for i := range widths {
		widths[i] = e.width
	}
	out := inner.Split(all, widths...)
	for i := range out {
		out[i] = inner.Keep(out[i])
	}
	return out
}

// layerInput is what a layer does with its input: a gate of the residual multiplies
// it, and what is projected of that is normed and added.
type layerInput struct {
	gate, project Linear
	norm          RMSNorm
}

// newLayerInput declares the input of the layer under path.
func newLayerInput(l *Loader, path string, d family.Dimensions) *layerInput {
	e := new(layerInput)
	l.Linear(path+".per_layer_input_gate", &e.gate)
	l.Linear(path+".per_layer_projection", &e.project)
	l.RMSNorm(path+".post_per_layer_input_norm", d.NormEps, &e.norm)
	return e
}

// apply gives what is added to x.
func (e *layerInput) apply(s tensor.Scope, x, input tensor.Array) tensor.Array {
	gate := e.gate.Apply(s, x)
	return e.norm.Apply(s, e.project.Apply(s, s.GLU(gate, input, tensor.GeGLU{})))
}
