package tinymodel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/weights"
)

const alignment = 32

// header collects metadata in the order it is written.
type header struct {
	keys int
	buf  bytes.Buffer
}

func (h *header) put(v any) { _ = binary.Write(&h.buf, binary.LittleEndian, v) } // a Buffer takes everything

func (h *header) str(s string) {
	h.put(uint64(len(s)))
	h.buf.WriteString(s)
}

func (h *header) key(k string, kind uint32) {
	h.keys++
	h.str(k)
	h.put(kind)
}

func (h *header) text(k, v string)          { h.key(k, 8); h.str(v) }
func (h *header) number(k string, v uint32) { h.key(k, 4); h.put(v) }
func (h *header) float(k string, v float32) { h.key(k, 6); h.put(v) }
func (h *header) flag(k string, v bool)     { h.key(k, 7); h.put(v) }
func (h *header) array(k string, e uint32, n int) {
	h.key(k, 9)
	h.put(e)
	h.put(uint64(n))
}

func (h *header) texts(k string, v []string) {
	h.array(k, 8, len(v))
	for _, s := range v {
		h.str(s)
	}
}

func (h *header) numbers(k string, v []int32) {
	h.array(k, 5, len(v))
	h.put(v)
}

// bytes is everything before the data.
func (h *header) bytes(tensors []block) []byte {
	var out header
	out.buf.WriteString("GGUF")
	out.put(uint32(3))
	out.put(uint64(len(tensors)))
	out.put(uint64(h.keys))
	out.buf.Write(h.buf.Bytes())
	offset := int64(0)
	for _, t := range tensors {
		out.str(t.name)
		var dims []uint64
		for _, d := range slices.Backward(t.shape(t.cols)) {
			dims = append(dims, uint64(d))
		}
		out.put(uint32(len(dims)))
		out.put(dims)
		out.put(uint32(t.kind))
		out.put(uint64(offset))
		offset += t.bytes() + t.padding()
	}
	for out.buf.Len()%alignment != 0 {
		out.buf.WriteByte(0)
	}
	return out.buf.Bytes()
}

func (c Config) metadata(h *header, v *vocabulary) error {
	if err := c.fitsGGUF(); err != nil {
		return err
	}
	family, pre := strings.ReplaceAll(strings.TrimSuffix(string(c.Family), "_text"), "_", ""), "smollm"
	if c.Family.qwen() {
		pre = "qwen2"
	}
	if c.Family == GPTOSS {
		family = "gpt-oss"
	}
	h.text("general.architecture", family)
	h.text("general.name", c.Name)
	h.text("general.license", "apache-2.0")
	for _, kv := range []struct {
		key string
		v   int
	}{
		{"block_count", c.Layers}, {"context_length", c.Context}, {"embedding_length", c.Hidden},
		{"feed_forward_length", c.FeedForward}, {"attention.head_count", c.QueryHeads},
		{"attention.head_count_kv", c.KVHeads}, {"attention.key_length", c.HeadSize},
		{"attention.value_length", c.HeadSize}, {"rope.dimension_count", c.HeadSize}, {"vocab_size", c.Vocabulary},
	} {
		h.number(family+"."+kv.key, uint32(kv.v))
	}
	if x := c.Experts; x.Count > 0 {
		h.number(family+".expert_count", uint32(x.Count))
		h.number(family+".expert_used_count", uint32(x.PerToken))
		h.number(family+".expert_feed_forward_length", uint32(x.FeedForward))
	}
	if c.Window > 0 {
		h.number(family+".attention.sliding_window", uint32(c.Window))
	}
	if c.Family == Gemma3 {
		h.number(family+".attention.sliding_window_pattern", uint32(c.Pattern))
		h.float(family+".rope.freq_base_swa", float32(c.LocalTheta))
	}
	h.float(family+".rope.freq_base", float32(c.Theta))
	h.float(family+".attention.layer_norm_rms_epsilon", float32(c.NormEps))
	if c.Scaling.Kind != "" {
		h.text(family+".rope.scaling.type", c.Scaling.Kind)
		h.float(family+".rope.scaling.factor", float32(c.Scaling.Factor))
	}
	if c.Scaling.Kind == "yarn" {
		h.number(family+".rope.scaling.original_context_length", uint32(c.Scaling.Original))
		h.float(family+".rope.scaling.yarn_beta_fast", 32)
		h.float(family+".rope.scaling.yarn_beta_slow", 1)
	}
	c.vocabularyMetadata(h, v, pre)
	return nil
}

// fitsGGUF refuses what a GGUF file cannot say.
func (c Config) fitsGGUF() error {
	if c.Family == Mistral || c.Scaling.Kind != "" && c.Scaling.Kind != "linear" && c.Family != GPTOSS {
		return errors.New("tiny model: a GGUF file knows linear scaling and RopeFactors, and no window")
	}
	if c.Family == GPTOSS && (c.Scaling.Kind != "yarn" || c.Scaling.Fractional) {
		return errors.New("tiny model: the yarn of a GGUF file has rounded edges, and a GPT-OSS has yarn")
	}
	if x := c.Experts; x.Unnormalized || x.Step > 1 || len(x.Dense) > 0 {
		return errors.New("tiny model: a GGUF file has experts in every layer, of shares that add up to one")
	}
	if c.Family == Gemma3 && c.QueryScalar != c.HeadSize {
		return errors.New("tiny model: a GGUF file divides scores by the root of the head size")
	}
	return nil
}

// vocabularyMetadata is the tokenizer's part.
func (c Config) vocabularyMetadata(h *header, v *vocabulary, pre string) {
	h.text("tokenizer.ggml.model", "gpt2")
	h.text("tokenizer.ggml.pre", pre)
	h.texts("tokenizer.ggml.tokens", v.tokens)
	h.numbers("tokenizer.ggml.token_type", v.kinds)
	h.texts("tokenizer.ggml.merges", v.merges)
	h.number("tokenizer.ggml.bos_token_id", 1)
	h.number("tokenizer.ggml.eos_token_id", uint32(c.endOfTurn()))
	h.number("tokenizer.ggml.unknown_token_id", 0)
	h.number("tokenizer.ggml.padding_token_id", 2)
	h.flag("tokenizer.ggml.add_bos_token", false)
	h.text("tokenizer.chat_template", c.template())
}

// block is a tensor as GGUF stores it.
type block struct {
	tensor
	name string
	kind weights.Type
}

// block is how a tensor is stored: vectors as F32, matrices in c.Type.
func (t tensor) block(c Config) (block, error) {
	b := block{tensor: t, name: t.gguf + t.suffix(), kind: c.Type}
	if t.bare {
		b.name += ".weight"
	}
	if c.Family == GPTOSS && t.stack > 0 { // experts are in the blocks that they were published in
		b.kind = weights.MXFP4
	}
	if t.rows == 0 || strings.HasSuffix(t.gguf, "ffn_gate_inp") { // as llama.cpp writes routers
		b.kind = weights.F32
	} else if c.Finer != 0 && (t.gguf == "token_embd" || strings.HasSuffix(t.gguf, "attn_v") || strings.Contains(t.gguf, "ffn_down")) {
		b.kind = c.Finer
	}
	if _, ok := b.kind.RowBytes(int64(t.cols)); !ok {
		return b, fmt.Errorf("tiny model: tensor %s of %d columns cannot be %v", b.name, t.cols, b.kind)
	}
	return b, nil
}

func (b block) rowBytes() int {
	n, _ := b.kind.RowBytes(int64(b.cols))
	return int(n)
}

func (b block) count() int     { return max(1, b.all(), b.table) }
func (b block) bytes() int64   { return int64(b.rowBytes()) * int64(b.count()) }
func (b block) padding() int64 { return (alignment - b.bytes()%alignment) % alignment }

// write streams the data.
func (b block) write(w io.Writer, seed uint64) error {
	rng := newRandom(seed, b.name)
	fill := func(rows []byte) { b.groups(rows, &rng) }
	if b.kind == weights.MXFP4 {
		f, err := b.kind.Format()
		if err != nil {
			return err
		}
		powers := b.powers(f)
		fill = func(rows []byte) {
			for at := 0; at < len(rows); at += 17 {
				rows[at] = powers[rng.next()>>60]
				rng.words(rows[at+1 : at+17])
			}
		}
	}
	if _, ok := recipes()[b.kind]; ok {
		fill = func(rows []byte) { b.blocks(rows, &rng) }
	}
	if !b.kind.Quantized() {
		f, err := b.kind.Format()
		if err != nil {
			return err
		}
		fill = b.values.floats(f.Type, &rng)
	}
	if b.ones != nil {
		fill = b.among(fill)
	}
	err := stream(w, b.count(), b.rowBytes(), b.silent, fill)
	if err != nil {
		return err
	}
	_, err = w.Write(make([]byte, b.padding()))
	return err
}

// groups writes uniform words; scales vary by a quarter from group to group.
func (b block) groups(rows []byte, rng *random) {
	le := binary.LittleEndian
	levels, head := 16.0, 2
	switch b.kind {
	case weights.Q4_1:
		head = 4
	case weights.Q8_0:
		levels = 256
	}
	scale := b.values.std / math.Sqrt((levels*levels-1)/12)
	size := head + 16
	if b.kind == weights.Q8_0 {
		size = head + 32
	}
	for at := 0; at < len(rows); at += size {
		d := float32(scale * (0.75 + float64(rng.next()>>60)/32))
		le.PutUint16(rows[at:], float16.FromFloat32(d))
		if b.kind == weights.Q4_1 {
			le.PutUint16(rows[at+2:], float16.FromFloat32(-7.5*d))
		}
		rng.words(rows[at+head : at+size])
	}
}

// recipe describes the two halves of a block's scales: deviation is that of
// values whose first half is 1, and the second half is a multiple of the first
// so that values are centred around zero.
type recipe struct {
	bytes             int
	halves            []int
	deviation, second float64
}

func recipes() map[weights.Type]recipe {
	return map[weights.Type]recipe{
		weights.Q5_0: {22, []int{0}, 9.23, 0},
		weights.Q5_1: {24, []int{0, 2}, 9.23, -15.5},
		weights.Q2_K: {84, []int{80, 82}, 13.9, 1.5},
		weights.Q3_K: {110, []int{108}, 43, 0},
		weights.Q4_K: {144, []int{0, 2}, 257, 7.5},
		weights.Q5_K: {176, []int{0, 2}, 526, 15.5},
		weights.Q6_K: {210, []int{208}, 1365, 0},
	}
}

// blocks writes uniform words, scales of groups among them; the scale of a
// block varies by a quarter.
func (b block) blocks(rows []byte, rng *random) {
	r := recipes()[b.kind]
	for at := 0; at < len(rows); at += r.bytes {
		for i := at; i < at+r.bytes; i += 2 {
			binary.LittleEndian.PutUint16(rows[i:], uint16(rng.next()>>48))
		}
		d := b.values.std / r.deviation * (0.75 + float64(rng.next()>>60)/32)
		for i, half := range r.halves {
			if i > 0 {
				d *= r.second
			}
			binary.LittleEndian.PutUint16(rows[at+half:], float16.FromFloat32(float32(d)))
		}
	}
}
