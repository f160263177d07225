package convert

import (
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/weights"
)

// factorsPath is a tensor of GGUF files that says in numbers what config.json
// says in words.
const factorsPath = "model.rope_freqs.weight"

// isRouter says whether a tensor scores experts: mlx-lm gives those 8 bits in
// groups of 64 wherever it quantises (models/qwen3_moe.py and models/gpt_oss.py,
// quant_predicate).
func isRouter(path string) bool {
	return strings.HasSuffix(path, ".mlp.gate.weight") || strings.HasSuffix(path, ".mlp.router.weight") || strings.HasSuffix(path, sharedPath)
}

// pairedPath ends the path of gate and up of experts in one tensor.
const pairedPath = ".mlp.experts.gate_up_proj.weight"

// sharedPath ends that of what scores the expert of every token, a router too
// (models/qwen3_next.py).
const sharedPath = ".mlp.shared_expert_gate.weight"

// kernelPath ends that of a convolution's taps, which mlx-lm stores as
// [channels, taps, 1] and never quantises.
const kernelPath = ".linear_attn.conv1d.weight"

// plan is what will be written.
type plan struct {
	tensors []tensor
	shards  []shard
	bytes   int64
	// dense is the type of most dense bytes.
	dense quant.Type
}

// tensor is one of the model's and what becomes of it.
type tensor struct {
	entry  weights.Entry
	format quant.Format
	// cast is the type that values are rounded to before they are quantised.
	cast quant.Type
	// less is subtracted from every value.
	less float32
	// parts are the words or floats, and for affine formats scales and biases.
	parts []part
}

// part is one array of a file.
type part struct {
	name, kind string
	shape      []int64
	row        int64 // bytes of a row
	rows       int64
	file       int
	offset     int64 // in the data of the file
}

func (p part) bytes() int64 { return p.row * p.rows }

// shard is one file of weights.
type shard struct {
	name  string
	parts []part
	bytes int64
}

func newPlan(f *weights.File, o Options) (*plan, error) {
	p, limit := &plan{}, o.shard
	if limit == 0 {
		limit = shardBytes
	}
	dense, used := map[quant.Type]int64{}, map[int]bool{}
	for _, e := range f.Entries() {
		if e.Path == factorsPath {
			continue
		}
		if strings.HasSuffix(e.Path, pairedPath) {
			return nil, fmt.Errorf("%w: the gate and up projections of its experts are one tensor, as published by OpenAI; this engine and mlx-lm load it unchanged", ErrOptions)
		}
		if _, made := e.Made(); made || e.Turned() { // rows are written as they lie
			return nil, fmt.Errorf("tensor %s: %w", e.Name, &weights.UnsupportedError{Subject: "conversion of family", Value: f.Dim.Architecture, Supported: []string{"quantisation by mlx-lm"}})
		}
		to, rule, err := o.Plan.of(e)
		if err != nil {
			return nil, err
		}
		used[rule] = true
		t := tensor{entry: e, less: less(f, e)}
		t.format, t.cast = targetOf(f, e, o, to)
		sizes, err := t.format.Sizes(e.Columns())
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", e.Path, err)
		}
		if !t.format.Quantized() {
			dense[t.format.Type] += int64(sizes.Raw) * int64(e.Rows())
		}
		for _, part := range t.newParts(sizes) {
			p.place(&part, limit)
			t.parts = append(t.parts, part)
			p.bytes += part.bytes()
		}
		p.tensors = append(p.tensors, t)
	}
	if err := o.Plan.unused(used); err != nil {
		return nil, err
	}
	p.name()
	for _, t := range []quant.Type{quant.Float16, quant.BFloat16} {
		if dense[t] > dense[p.dense] {
			p.dense = t
		}
	}
	return p, nil
}

// less is what is subtracted from a tensor: from the norms of a Gemma, which
// folders hold less one and GGUF files do not. To the norms of a recurrent
// hybrid that Hugging Face stored, which are less one, one is added: mlx-lm takes
// them for what they are where convolutions lie as it stores them.
func less(f *weights.File, e weights.Entry) float32 {
	switch {
	case !strings.HasSuffix(e.Path, "norm.weight"):
	case f.Header() != nil && f.Dim.NormsLessOne():
		return 1
	case f.Dim.Hybrid.Interval > 0 && f.NormsLessOne() && !strings.Contains(e.Path, ".linear_attn."):
		return -1
	}
	return 0
}

// targetOf is the format a tensor gets, and the type that its values are rounded
// to before. Everything in GGUF is meant as float32.
func targetOf(f *weights.File, e weights.Entry, o Options, to Target) (quant.Format, quant.Type) {
	kind := e.Format.Type
	if f.Header() != nil && (e.Format.Quantized() || o.Plan.quantizes()) {
		kind = quant.Float32
	}
	if o.Type != nil {
		kind = *o.Type
	}
	switch {
	case !to.keeps():
		return to.format(kind), kind
	case e.Format.BlockFloat():
		return e.Format, kind
	case e.Format.Quantized():
		return quant.AffineOf(e.Format.Bits, e.Format.Group, kind), kind
	}
	return quant.DenseOf(kind), kind
}

func (t tensor) layer() string { return strings.TrimSuffix(t.entry.Path, ".weight") }

func (t tensor) newParts(s quant.Sizes) []part {
	rows := int64(t.entry.Rows())
	if !t.format.Quantized() {
		shape := t.entry.Shape
		if strings.HasSuffix(t.entry.Path, kernelPath) {
			shape = append(slices.Clone(shape), 1)
		}
		return []part{{name: t.entry.Path, kind: kindOf(t.format.Type), shape: shape, row: int64(s.Raw), rows: rows}}
	}
	kind, width := kindOf(t.format.Type), int64(t.format.Type.Bytes())
	shape := func(columns int64) []int64 {
		leading := t.entry.Shape[:len(t.entry.Shape)-1]
		return append(slices.Clone(leading), columns)
	}
	words := part{name: t.entry.Path, kind: "U32", shape: shape(int64(s.Raw) / 4), row: int64(s.Raw), rows: rows}
	if t.format.BlockFloat() {
		return []part{words, {name: t.layer() + ".scales", kind: "U8", shape: shape(int64(s.Scales)), row: int64(s.Scales), rows: rows}}
	}
	return []part{
		words,
		{name: t.layer() + ".scales", kind: kind, shape: shape(int64(s.Scales) / width), row: int64(s.Scales), rows: rows},
		{name: t.layer() + ".biases", kind: kind, shape: shape(int64(s.Biases) / width), row: int64(s.Biases), rows: rows},
	}
}

// kindOf is the name of a float type in safetensors.
func kindOf(t quant.Type) string {
	switch t {
	case quant.Float16:
		return "F16"
	case quant.BFloat16:
		return "BF16"
	}
	return "F32"
}

// place appends a part to the current file, or to a new one if it no longer
// fits.
func (p *plan) place(part *part, limit int64) {
	if n := len(p.shards); n == 0 || p.shards[n-1].bytes > 0 && p.shards[n-1].bytes+part.bytes() > limit {
		p.shards = append(p.shards, shard{})
	}
	part.file = len(p.shards) - 1
	s := &p.shards[part.file]
	part.offset = s.bytes
	s.parts = append(s.parts, *part)
	s.bytes += part.bytes()
}

// name names the files as mlx-lm and transformers do.
func (p *plan) name() {
	for i := range p.shards {
		p.shards[i].name = "model.safetensors"
		if len(p.shards) > 1 {
			p.shards[i].name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(p.shards))
		}
	}
}

func (p *plan) report() Report {
	r := Report{Files: len(p.shards), Bytes: p.bytes, Tensors: len(p.tensors), Formats: map[string]int64{}}
	for _, t := range p.tensors {
		r.Weights += int64(t.entry.Rows()) * int64(t.entry.Columns())
		for _, part := range t.parts {
			r.Formats[t.format.String()] += part.bytes()
		}
	}
	return r
}
