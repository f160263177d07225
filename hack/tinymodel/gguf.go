package tinymodel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"

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
func (h *header) bytes(tensors []tensorSpec) []byte {
	var out header
	out.buf.WriteString("GGUF")
	out.put(uint32(3))
	out.put(uint64(len(tensors)))
	out.put(uint64(h.keys))
	out.buf.Write(h.buf.Bytes())
	offset := int64(0)
	for _, t := range tensors {
		out.str(t.name)
		dims := []uint64{uint64(t.cols)}
		if t.rows > 0 {
			dims = append(dims, uint64(t.rows))
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

// tensorSpec is one tensor to write; rows 0 makes a vector.
type tensorSpec struct {
	name       string
	rows, cols int
	kind       weights.Type
	// std of the random values; 0 writes ones, ramp 1, 2, 3 and so on.
	std float64
	// silent makes the last row zeros.
	silent bool
}

// ramp marks a vector of rising values.
const ramp = -1

func (t tensorSpec) bytes() int64 {
	row, _ := t.kind.RowBytes(int64(t.cols))
	return row * int64(max(1, t.rows))
}

func (t tensorSpec) padding() int64 { return (alignment - t.bytes()%alignment) % alignment }

func (c Config) tensors() ([]tensorSpec, error) {
	matrix := func(name string, rows, cols int, gain float64) tensorSpec {
		return tensorSpec{name: name, rows: rows, cols: cols, kind: c.Type, std: gain / math.Sqrt(float64(cols))}
	}
	q, kv := c.QueryHeads*c.HeadSize, c.KVHeads*c.HeadSize
	embed := matrix("token_embd.weight", c.Vocabulary, c.Hidden, 3)
	embed.silent = c.Endless
	out := []tensorSpec{embed}
	if c.RopeFactors {
		out = append(out, tensorSpec{name: "rope_freqs.weight", cols: c.HeadSize / 2, kind: weights.F32, std: ramp})
	}
	for i := range c.Layers {
		blk := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		out = append(out,
			tensorSpec{name: blk("attn_norm"), cols: c.Hidden, kind: weights.F32},
			matrix(blk("attn_q"), q, c.Hidden, 2), matrix(blk("attn_k"), kv, c.Hidden, 2),
			matrix(blk("attn_v"), kv, c.Hidden, 1), matrix(blk("attn_output"), c.Hidden, q, 1),
			tensorSpec{name: blk("ffn_norm"), cols: c.Hidden, kind: weights.F32},
			matrix(blk("ffn_gate"), c.FeedForward, c.Hidden, 1), matrix(blk("ffn_up"), c.FeedForward, c.Hidden, 1),
			matrix(blk("ffn_down"), c.Hidden, c.FeedForward, 1))
	}
	out = append(out, tensorSpec{name: "output_norm.weight", cols: c.Hidden, kind: weights.F32})
	if c.Untied {
		out = append(out, matrix("output.weight", c.Vocabulary, c.Hidden, 3))
	}
	for _, t := range out {
		if _, ok := t.kind.RowBytes(int64(t.cols)); !ok {
			return nil, fmt.Errorf("tiny model: tensor %s of %d columns cannot be %v", t.name, t.cols, t.kind)
		}
	}
	return out, nil
}

// random is SplitMix64: small, fast, and the same everywhere.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// write streams the data; values depend on the seed and the name only.
func (t tensorSpec) write(w io.Writer, seed uint64) error {
	sum := fnv.New64a()
	sum.Write([]byte(t.name))
	rng := random(seed ^ sum.Sum64())
	rowBytes, _ := t.kind.RowBytes(int64(t.cols))
	row := make([]byte, rowBytes)
	for i := range max(1, t.rows) {
		t.fill(row, &rng)
		if t.silent && i == t.rows-1 {
			clear(row)
		}
		if _, err := w.Write(row); err != nil {
			return err
		}
	}
	_, err := w.Write(make([]byte, t.padding()))
	return err
}

func (t tensorSpec) fill(row []byte, rng *random) {
	le := binary.LittleEndian
	if t.kind.Quantized() {
		t.blocks(row, rng)
		return
	}
	for i := range t.cols {
		v := float32(1)
		if t.std == ramp {
			v = float32(i + 1)
		} else if t.std > 0 { // uniform with the wanted deviation
			v = float32((float64(rng.next()>>11)/(1<<52) - 1) * math.Sqrt(3) * t.std)
		}
		switch t.kind {
		case weights.F16:
			le.PutUint16(row[2*i:], float16.FromFloat32(v))
		case weights.BF16:
			le.PutUint16(row[2*i:], float16.ToBrain(v))
		default:
			le.PutUint32(row[4*i:], math.Float32bits(v))
		}
	}
}

// blocks writes uniform words; scales vary by a quarter from block to block.
func (t tensorSpec) blocks(row []byte, rng *random) {
	le := binary.LittleEndian
	levels, head := 16.0, 2
	switch t.kind {
	case weights.Q4_1:
		head = 4
	case weights.Q8_0:
		levels = 256
	}
	scale := t.std / math.Sqrt((levels*levels-1)/12)
	size := head + int(levels)/16*16 // 16 bytes at 4 bits
	if t.kind == weights.Q8_0 {
		size = head + 32
	}
	for at := 0; at < len(row); at += size {
		d := float32(scale * (0.75 + float64(rng.next()>>60)/32))
		le.PutUint16(row[at:], float16.FromFloat32(d))
		if t.kind == weights.Q4_1 {
			le.PutUint16(row[at+2:], float16.FromFloat32(-7.5*d))
		}
		for i := at + head; i < at+size; i += 8 {
			le.PutUint64(row[i:], rng.next())
		}
	}
}
