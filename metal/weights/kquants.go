package weights

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"

	"metalfleet.dev/metalfleet/metal/float16"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Of the types with blocks of 256, Q4_K and Q5_K are affine in groups of 32:
// their scales are products of 17 bits, which float32 holds. Q3_K has scales
// for 16 elements, but each is a small whole number times the block's: value by
// value that is a whole number of 8 bits times one scale. Q6_K and Q2_K fit
// no layout: two groups of 16 that come to share a scale are quantised again,
// and what that moves is measured.
const (
	superSize = 256
	// mostWord is the largest word of what Q6_K and Q2_K become, in 8 bits: a
	// group's range is 64 steps of Q6_K's larger scale, so that values move by an
	// eighth of such a step at most.
	mostWord = 255
)

// Exact reports whether Format means the values of the file, bit by bit.
func (t Type) Exact() bool { return t != Q6_K && t != Q2_K }

// Conversion describes how the values of a type that no layout represents
// exactly were changed.
type Conversion struct {
	From Type
	To   quant.Format
	// Tensors of this type, and their Bytes in the file and Held in memory.
	Tensors     int
	Bytes, Held int64
	// Worst is the largest difference between a value of the file and the value
	// used instead, and Largest the largest value, over all rows read so far.
	// Read is false if none was.
	Worst, Largest float32
	Read           bool
}

func (c Conversion) String() string {
	s := fmt.Sprintf("%v is loaded as %v (%d tensors)", c.From, c.To, c.Tensors)
	if c.Read {
		s += fmt.Sprintf(", error at most %.2g for values up to %.2g", c.Worst, c.Largest)
	}
	return s
}

// drift is what a conversion moved, over all rows of a type. Numbers that are
// not negative are in the order of their bits.
type drift struct{ worst, largest, read atomic.Uint32 }

func raise(to *atomic.Uint32, v float32) {
	bits := math.Float32bits(v)
	for {
		before := to.Load()
		if before >= bits || to.CompareAndSwap(before, bits) {
			return
		}
	}
}

// moved is what the conversion of some rows changed.
type moved struct{ worst, largest float32 }

func (m *moved) add(was, is float32) {
	m.worst, m.largest = max(m.worst, abs32(is-was)), max(m.largest, abs32(was))
}

func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

func (d *drift) note(m moved) {
	raise(&d.worst, m.worst)
	raise(&d.largest, m.largest)
	d.read.Store(1)
}

// half reads a number of 16 bits.
func half(b []byte) float32 { return float16.Float32(binary.LittleEndian.Uint16(b)) }

// pack writes words of this many bits, eight at a time.
func pack(dst []byte, q []byte, bits int) {
	var bytes [8]byte
	for i := 0; i < len(q); i += 8 {
		var x uint64
		for j, v := range q[i : i+8] {
			x |= uint64(v) << (bits * j)
		}
		binary.LittleEndian.PutUint64(bytes[:], x)
		copy(dst[i/8*bits:], bytes[:bits])
	}
}

// splitSuper rewrites blocks of 256.
func (t Type) splitSuper(raw []byte, dst quant.Row) (m moved) {
	info, _ := t.info()
	f, err := t.Format()
	if err != nil {
		return m // the type was checked before
	}
	words, groups := superSize/8*f.Bits, superSize/f.Group*f.Type.Bytes()
	for i := range len(raw) / int(info.blockBytes) {
		b := raw[i*int(info.blockBytes):][:info.blockBytes]
		r := quant.Row{Raw: dst.Raw[i*words:][:words], Scales: dst.Scales[i*groups:][:groups], Biases: dst.Biases[i*groups:][:groups]}
		switch t {
		case Q2_K:
			splitQ2K(b, r, &m)
		case Q3_K:
			splitQ3K(b, r)
		case Q4_K:
			splitQ45K(b, r, nil, b[16:])
		case Q5_K:
			splitQ45K(b, r, b[16:48], b[48:])
		case Q6_K:
			splitQ6K(b, r, &m)
		}
	}
	return m
}

// splitQ45K: a half for the scales and one for the minima, eight of each in six
// bits, for Q5_K the fifth bits, then nibbles: of 64 elements the first 32 low.
func splitQ45K(b []byte, r quant.Row, fifth, nibbles []byte) {
	d, least := half(b), half(b[2:])
	var q [32]byte
	for g := range 8 {
		scale, low := sixBits(b[4:16], g)
		quant.Float32.Put(r.Scales, g, d*float32(scale))
		quant.Float32.Put(r.Biases, g, -(least * float32(low)))
		for i, v := range nibbles[g/2*32:][:32] {
			q[i] = v >> (g % 2 * 4) & 15
		}
		bits := 4
		for i, v := range fifth { // none in Q4_K
			q[i] |= v >> g & 1 << 4
		}
		if fifth != nil {
			bits = 5
		}
		pack(r.Raw[g*4*bits:], q[:], bits)
	}
}

// sixBits are scale and minimum of a group in Q4_K and Q5_K.
func sixBits(b []byte, g int) (scale, low byte) {
	if g < 4 {
		return b[g] & 63, b[g+4] & 63
	}
	return b[g+4]&15 | b[g-4]>>6<<4, b[g+4]>>4 | b[g]>>6<<4
}

// splitQ3K: third bits, pairs of bits, 16 scales of six bits around 32, and the
// half that they multiply. An element's whole number lies between -124 and 128
// (a scale of -32 times -4): with its sign turned, it is one of 8 bits around
// 128.
func splitQ3K(b []byte, r quant.Row) {
	d := half(b[108:])
	for g := range len(r.Scales) / 4 {
		quant.Float32.Put(r.Scales, g, -d)
		quant.Float32.Put(r.Biases, g, 128*d)
	}
	for i := range superSize {
		v := int(b[32+i/128*32+i%32])>>(i%128/32*2)&3 + int(b[i%32])>>(i/32)&1*4 - 4
		r.Raw[i] = byte(128 - v*scaleQ3K(b[96:108], i/16))
	}
}

func scaleQ3K(b []byte, g int) int {
	return int(b[g%8]>>(g/8*4)&15|b[8+g%4]>>(g/4*2)&3<<4) - 32
}

// splitQ6K: low nibbles, high pairs, 16 scales of eight bits, and the half that
// they multiply. In whole numbers times that half, a group of 32 is quantised
// again, with the step that both of its scales are multiples of if its range
// is short enough, which loses nothing, or with a 255th of its range.
func splitQ6K(b []byte, r quant.Row, m *moved) {
	d := half(b[208:])
	var v [32]int
	for g := range 8 {
		first, second := int(int8(b[192+2*g])), int(int8(b[193+2*g]))
		for i := range v {
			scale := first
			if i >= 16 {
				scale = second
			}
			low := b[g/4*64+g%2*32+i] >> (g / 2 % 2 * 4) & 15
			high := b[128+g/4*32+i] >> (g % 4 * 2) & 3
			v[i] = scale * (int(low|high<<4) - 32)
		}
		low, high := v[0], v[0]
		for _, x := range v {
			low, high = min(low, x), max(high, x)
		}
		words, step := r.Raw[g*32:][:32], divisor(first, second)
		bias, span := d*float32(low), high-low
		quant.Float32.Put(r.Biases, g, bias)
		if span <= mostWord*step {
			quant.Float32.Put(r.Scales, g, d*float32(step))
			for i, x := range v {
				words[i] = byte((x - low) / step)
			}
			m.largest = max(m.largest, abs32(bias), abs32(d*float32(high)))
			continue
		}
		scale := d * float32(span) / mostWord
		quant.Float32.Put(r.Scales, g, scale)
		for i, x := range v {
			q := (2*(x-low)*mostWord + span) / (2 * span)
			words[i] = byte(q)
			m.add(d*float32(x), float32(scale*float32(q))+bias)
		}
	}
}

// divisor is the greatest common one of two scales, or 1.
func divisor(a, b int) int {
	a, b = max(a, -a), max(b, -b)
	for b != 0 {
		a, b = b, a%b
	}
	return max(a, 1)
}

// splitQ2K: 16 bytes of a scale and a minimum each, pairs of bits, and the
// halves that they multiply.
func splitQ2K(b []byte, r quant.Row, m *moved) {
	d, least := half(b[80:]), half(b[82:])
	var v [32]float32
	for g := range 8 {
		for i := range v {
			both := b[2*g+i/16]
			pair := b[16+g/4*32+i] >> (g % 4 * 2) & 3
			v[i] = float32(d*float32(both&15)*float32(pair)) - float32(least*float32(both>>4))
		}
		low, high := v[0], v[0]
		for _, x := range v {
			low, high = min(low, x), max(high, x) // which keep what is not a number
		}
		scale := (high - low) / mostWord
		quant.Float32.Put(r.Scales, g, scale)
		quant.Float32.Put(r.Biases, g, low)
		words := r.Raw[g*32:][:32]
		for i, x := range v {
			words[i] = 0
			if scale > 0 {
				words[i] = byte(min(max((x-low)/scale+0.5, 0), mostWord))
			}
			m.add(x, float32(scale*float32(words[i]))+low)
		}
	}
}

// splitQ5 rewrites blocks of Q5_0 and Q5_1: a half, for Q5_1 a minimum, the
// fifth bits, then nibbles. Sixteen times a half is a half, up to the last four
// of its exponents; what goes beyond is refused as infinite.
func (t Type) splitQ5(raw []byte, dst quant.Row) {
	info, _ := t.info()
	var q [32]byte
	for g := range len(raw) / int(info.blockBytes) {
		b := raw[g*int(info.blockBytes):][:info.blockBytes]
		copy(dst.Scales[2*g:2*g+2], b)
		rest := b[2:]
		if t == Q5_1 {
			copy(dst.Biases[2*g:2*g+2], b[2:4])
			rest = b[4:]
		} else {
			quant.Float16.Put(dst.Biases, g, -16*half(b))
		}
		fifth := binary.LittleEndian.Uint32(rest)
		for i, v := range rest[4:] {
			q[i] = v&15 | byte(fifth>>i&1)<<4
			q[i+16] = v>>4 | byte(fifth>>(i+16)&1)<<4
		}
		pack(dst.Raw[g*20:], q[:], 5)
	}
}

// Conversions lists the types of the file that are held in another format, in
// the order of Types. Their errors are known once their rows were read
// (Measure).
func (f *File) Conversions() []Conversion {
	byType := map[Type]*Conversion{}
	for _, e := range f.entries {
		if e.drift == nil {
			continue
		}
		c := byType[e.block]
		if c == nil {
			c = &Conversion{From: e.block, To: e.Format, Read: e.drift.read.Load() != 0,
				Worst: math.Float32frombits(e.drift.worst.Load()), Largest: math.Float32frombits(e.drift.largest.Load())}
			byType[e.block] = c
		}
		c.Tensors++
		c.Bytes += e.Bytes
		c.Held += e.Held()
	}
	var out []Conversion
	for _, t := range Types() {
		if c := byType[t]; c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// Measure reads the converted tensors, so that Conversions includes their
// errors.
func (f *File) Measure(ctx context.Context) error {
	for _, e := range f.Entries() {
		if e.drift == nil {
			continue
		}
		if err := f.Place(ctx, e, func(_ int, r quant.Row) error {
			_, err := e.Format.CheckRows(e.Columns(), r)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
