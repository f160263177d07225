package ref

import (
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
)

// Where the processor has vector instructions and the program was built with
// Go's experiment for them, the integer sums of a group are not looked up but
// multiplied: a fixed-point activation is three signed digits of 8 bits, and a
// digit times a plane is what one instruction multiplies and adds, 32 bytes at
// a time. A sum of integers is the same however it is made, and what follows it
// is rounded for several rows exactly as for one: the bits are those of the
// tables, which stay the oracle.

const (
	// digits of 8 bits make a fixed-point activation: 23 bits and a sign.
	digits = 3
	// lanes is how many rows are computed at once, wideLanes where vectors are
	// twice as long.
	lanes, wideLanes = 8, 16
	// spreads is how many vectors a group's activations fill for each digit:
	// each holds four of the 32, once for every lane.
	spreads = groupSize / 4
	// lineBytes is a line of the cache.
	lineBytes = 64
	// vectorRows is how many rows' sums are held before they are scaled.
	vectorRows = 256
)

// repeated is a digit of every activation of a group, in the order in which a
// plane's elements come out of its bytes, repeated for every lane.
type repeated [spreads][wideLanes * 4]int8

// wide is one token's digits: low and high serve the planes of a layout.
type wide struct{ low, high [digits]repeated }

// vector is what one worker needs to compute with vectors.
type vector struct {
	tokens [blockTokens]fixed
	// spread has the same tokens' digits, at whole lines of the cache.
	spread *[blockTokens]wide
	// n is the number of tokens, digits that of their digits.
	n, digits int
	// wide where vectors are as long as wideLanes.
	wide bool
	accs [blockTokens][]float32
	// dots are the sums of a tile: of both planes, token by token.
	dots         [2][blockTokens][vectorRows]int32
	scale, shift [vectorRows]float32
}

// begin empties the block of tokens.
func (v *vector) begin(digits int) {
	v.n, v.digits = 0, digits
	if v.spread == nil {
		room := make([]byte, unsafe.Sizeof(*v.spread)+lineBytes)
		first := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % lineBytes
		v.spread = (*[blockTokens]wide)(unsafe.Pointer(&room[first]))
	}
}

// read takes the group of one more token.
func (v *vector) read(x []float32, l layout, one float32) {
	t, s := &v.tokens[v.n], &v.spread[v.n]
	v.n++
	if top := vectorTop(x); t.begin(top, one) {
		t.total = vectorFixed(&t.values, x, one/top)
		t.sum = float32(t.total) * t.scale
	}
	t.spread(&s.low, l[0].bits, v.digits)
	if l[1].bits != 0 && l[1].bits != l[0].bits {
		t.spread(&s.high, l[1].bits, v.digits)
	}
}

// spread cuts activations into digits for a plane of bits bits: byte b of
// vector j meets the j-th element of those that lie b bytes up in a word of
// four bytes.
func (f *fixed) spread(to *[digits]repeated, bits, n int) {
	each := 8 / bits
	if bits == 4 {
		vectorSpread(to, &f.values, n)
		return
	}
	for j := range spreads {
		from := j/each*4*each + j%each
		var word [digits]uint32
		for b := range 4 {
			// Each digit is the nearest one; what it leaves goes up.
			x := f.values[from+b*each]
			for d := range n {
				word[d] |= uint32(uint8(x)) << (8 * b)
				x = (x - int32(int8(x))) >> 8
			}
		}
		for d := range n {
			repeat(&to[d][j], word[d])
		}
	}
}

// repeat fills a vector with one word.
func repeat(to *[wideLanes * 4]int8, word uint32) {
	x := uint64(word)<<32 | uint64(word)
	*(*[8]uint64)(unsafe.Pointer(to)) = [8]uint64{x, x, x, x, x, x, x, x}
}

// add gives the group at hand of all tokens to rows [lo, hi) of a matrix; accs
// has the rows' sums of every token.
func (v *vector) add(m *matrix, g, lo, hi int) {
	for at := lo; at < hi; at += vectorRows {
		n := min(vectorRows, hi-at)
		c := m.column(g, at, at+n)
		c.check(m.layout, n)
		v.planes(m, &c, n)
		v.widen(&c, n)
		for t := range v.n {
			v.scaled(t, v.accs[t][at-lo:][:n], m)
		}
	}
}

// planes sums both planes of n rows.
func (v *vector) planes(m *matrix, c *column, n int) {
	for i, p := range m.layout {
		if p.bits == 0 {
			return
		}
		words, full := c.low, n-n%lanes
		if i == 1 {
			words = c.high
		}
		other := i == 1 && p.bits != m.layout[0].bits
		vectorDots(v, words, p.bits, 0, full, i, other)
		if full < n {
			// The last rows may be fewer than lanes: nothing is read after
			// them.
			var last [lanes * groupSize / 2]byte
			copy(last[:], words[full*p.bytes():])
			vectorDots(v, last[:], p.bits, full, full+lanes, i, other)
		}
	}
}

// widen reads scales and biases of n rows; where there are none a bias is the
// scale again, and the sum that it is multiplied with is zero.
func (v *vector) widen(c *column, n int) {
	full := n - n%lanes
	vectorScales(v, c, full)
	for r := full; r < n; r++ {
		at := c.scales[r*c.step:]
		v.scale[r], v.shift[r] = c.kind.At(at, 0), c.kind.At(at, c.bias/c.kind.Bytes())
	}
}

// scaled adds a token's sums, scaled, to its outputs. A symmetric format takes
// from its plane with the high bits half its range times the sum of all
// activations, as group.zero does.
func (v *vector) scaled(t int, acc []float32, m *matrix) {
	f, high := &v.tokens[t], m.layout[1]
	factor, sum, zero := f.scale, f.sum, int32(0)
	if m.format.Mode == quant.Symmetric {
		sum, zero = 0, f.total<<(max(m.layout[0].bits, high.bits)-1)
	}
	n, full := len(acc), len(acc)-len(acc)%lanes
	low := v.dots[0][t][:n]
	if high.bits == 0 {
		vectorScaled(acc[:full], low, v.scale[:n], v.shift[:n], factor, sum, zero, v.wide)
		for r := full; r < n; r++ {
			acc[r] += float32(v.scale[r]*float32(float32(low[r]-zero)*factor)) + float32(v.shift[r]*sum)
		}
		return
	}
	top := v.dots[1][t][:n]
	vectorScaledPlanes(acc[:full], low, top, v.scale[:n], v.shift[:n], factor, sum, zero, float64(int(1)<<high.shift))
	for r := full; r < n; r++ {
		dot := int64(low[r]) + int64(top[r]-zero)<<high.shift
		acc[r] += float32(v.scale[r]*float32(float32(dot)*factor)) + float32(v.shift[r]*sum)
	}
}
