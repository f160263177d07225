//go:build goexperiment.simd && amd64

package ref

import (
	"simd/archsimd"
	"unsafe"

	"metalfleet.dev/metalfleet/metal/quant"
)

// hasVectors reports whether this processor can.
func hasVectors() bool { return archsimd.X86.AVX2() }

// hasWideVectors reports whether it has them twice as long.
func hasWideVectors() bool { return archsimd.X86.AVX512() }

func wordsAt(p unsafe.Pointer, at int) archsimd.Uint32x8 {
	return archsimd.LoadUint32x8((*[8]uint32)(unsafe.Add(p, at)))
}

// vectorDots sums one plane of rows [lo, hi), whole lanes of them, for every
// token. other is true if the plane is not as wide as the first one. Eight rows
// are split into a byte for every element, one row a lane of four bytes.
// The bytes stand in eight variables and not in an array: that would be kept
// in memory.
func vectorDots(v *vector, words []byte, bits, lo, hi, plane int, other bool) {
	words = words[:(hi-lo)*4*bits]
	if bits == 4 && !other && v.wide {
		n := (hi - lo) &^ (wideLanes - 1)
		wideDots(v, words, lo, lo+n, plane)
		words, lo = words[n*4*bits:], lo+n
	}
	p := unsafe.Pointer(unsafe.SliceData(words))
	ones, up := archsimd.BroadcastInt16x16(1), archsimd.BroadcastInt16x16(256)
	mask, order := archsimd.BroadcastUint8x32(1<<bits-1), archsimd.LoadUint32x8(&orders[bits])
	all := v.digits > 1
	first := &v.spread[0].low
	if other {
		first = &v.spread[0].high
	}
	for at := lo; at < hi; at += lanes {
		var a, b, c, d, e, f, g, h archsimd.Uint8x32
		switch bits {
		case 4: // 16 bytes a row: four words, which hold elements of even and of odd number
			w0, w1, w2, w3 := transposed(wordsAt(p, 0), wordsAt(p, 32), wordsAt(p, 64), wordsAt(p, 96))
			a, b, c, d = w0.AsUint8x32(), right(w0, 4), w1.AsUint8x32(), right(w1, 4)
			e, f, g, h = w2.AsUint8x32(), right(w2, 4), w3.AsUint8x32(), right(w3, 4)
		case 2: // 8 bytes a row
			r0123, r4567 := wordsAt(p, 0), wordsAt(p, 32)
			w0, w1 := r0123.SelectFromPairGrouped(0, 2, 4, 6, r4567).AsInt16x16(), r0123.SelectFromPairGrouped(1, 3, 5, 7, r4567).AsInt16x16()
			a, b, c, d = w0.AsUint8x32(), right(w0, 2), right(w0, 4), right(w0, 6)
			e, f, g, h = w1.AsUint8x32(), right(w1, 2), right(w1, 4), right(w1, 6)
		default: // 4 bytes a row
			w := wordsAt(p, 0).AsInt16x16()
			a, b, c, d = w.AsUint8x32(), right(w, 1), right(w, 2), right(w, 3)
			e, f, g, h = right(w, 4), right(w, 5), right(w, 6), right(w, 7)
		}
		a, b, c, d, e, f, g, h = a.And(mask), b.And(mask), c.And(mask), d.And(mask), e.And(mask), f.And(mask), g.And(mask), h.And(mask)
		p = unsafe.Add(p, lanes*4*bits)
		s, to := unsafe.Pointer(first), unsafe.Pointer(&v.dots[plane][0][at])
		for range v.n {
			x := (*[digits]repeated)(s)
			dot := times(&x[0], a, b, c, d, e, f, g, h).DotProductPairs(ones)
			if all {
				middle := times(&x[1], a, b, c, d, e, f, g, h).DotProductPairs(ones)
				top := times(&x[2], a, b, c, d, e, f, g, h).DotProductPairs(up)
				dot = dot.Add(middle.Add(top).ShiftAllLeft(8))
			}
			dot.Permute(order).Store((*[8]int32)(to))
			s, to = unsafe.Add(s, unsafe.Sizeof(v.spread[0])), unsafe.Add(to, unsafe.Sizeof(v.dots[0][0]))
		}
	}
	archsimd.ClearAVXUpperBits()
}

// transposed gathers the words of eight rows, two of which lie in each vector:
// those that come first in every row, then those that come second, and so on.
// Rows come to stand in the order 0 2 4 6 1 3 5 7.
func transposed(r01, r23, r45, r67 archsimd.Uint32x8) (w0, w1, w2, w3 archsimd.Int16x16) {
	low0, low1 := r01.InterleaveLoGrouped(r23).AsUint64x4(), r45.InterleaveLoGrouped(r67).AsUint64x4()
	high0, high1 := r01.InterleaveHiGrouped(r23).AsUint64x4(), r45.InterleaveHiGrouped(r67).AsUint64x4()
	return low0.InterleaveLoGrouped(low1).AsInt16x16(), low0.InterleaveHiGrouped(low1).AsInt16x16(),
		high0.InterleaveLoGrouped(high1).AsInt16x16(), high0.InterleaveHiGrouped(high1).AsInt16x16()
}

// right shifts every lane right by a constant. The shift is a signed one, of which
// the caller masks what it carries down: Go 1.26 does not fold the constant of an
// unsigned one but moves it into a register with an instruction of legacy SSE.
func right(w archsimd.Int16x16, bits uint64) archsimd.Uint8x32 {
	return w.ShiftAllRight(bits).AsUint8x32()
}

// times multiplies by one digit. A lane of 16 bits sums 16 products of at most
// 15*128 and cannot overflow.
func times(s *repeated, a, b, c, d, e, f, g, h archsimd.Uint8x32) archsimd.Int16x16 {
	x := a.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[0]))).Add(b.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[1]))))
	x = x.Add(c.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[2])))).Add(d.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[3]))))
	x = x.Add(e.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[4])))).Add(f.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[5]))))
	return x.Add(g.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[6])))).Add(h.DotProductPairsSaturated(archsimd.LoadInt8x32(half(&s[7]))))
}

func half(x *[wideLanes * 4]int8) *[lanes * 4]int8 { return (*[lanes * 4]int8)(x[:]) }

// wideDots is vectorDots for planes of 4 bits, sixteen rows at once.
func wideDots(v *vector, words []byte, lo, hi, plane int) {
	ones, up := archsimd.BroadcastInt16x32(1), archsimd.BroadcastInt16x32(256)
	mask, order := archsimd.BroadcastUint8x64(0x0f), archsimd.LoadUint32x16(&wideOrder)
	all := v.digits > 1
	p := unsafe.Pointer(unsafe.SliceData(words))
	for at := lo; at < hi; at += wideLanes {
		w0, w1, w2, w3 := wideTransposed(wideAt(p, 0), wideAt(p, 64), wideAt(p, 128), wideAt(p, 192))
		p = unsafe.Add(p, wideLanes*16)
		a, b, c, d := w0.AsUint8x64().And(mask), wideRight(w0, 4).And(mask), w1.AsUint8x64().And(mask), wideRight(w1, 4).And(mask)
		e, f, g, h := w2.AsUint8x64().And(mask), wideRight(w2, 4).And(mask), w3.AsUint8x64().And(mask), wideRight(w3, 4).And(mask)
		s, to := unsafe.Pointer(v.spread), unsafe.Pointer(&v.dots[plane][0][at])
		for range v.n {
			x := (*[digits]repeated)(s)
			dot := wideTimes(&x[0], a, b, c, d, e, f, g, h).DotProductPairs(ones)
			if all {
				middle := wideTimes(&x[1], a, b, c, d, e, f, g, h).DotProductPairs(ones)
				top := wideTimes(&x[2], a, b, c, d, e, f, g, h).DotProductPairs(up)
				dot = dot.Add(middle.Add(top).ShiftAllLeft(8))
			}
			dot.Permute(order).Store((*[16]int32)(to))
			s, to = unsafe.Add(s, unsafe.Sizeof(v.spread[0])), unsafe.Add(to, unsafe.Sizeof(v.dots[0][0]))
		}
	}
}

func wideAt(p unsafe.Pointer, at int) archsimd.Uint32x16 {
	return archsimd.LoadUint32x16((*[16]uint32)(unsafe.Add(p, at)))
}

// wideTransposed is transposed for sixteen rows, four in each vector.
func wideTransposed(r0, r4, r8, r12 archsimd.Uint32x16) (w0, w1, w2, w3 archsimd.Int16x32) {
	low0, low1 := r0.InterleaveLoGrouped(r4).AsUint64x8(), r8.InterleaveLoGrouped(r12).AsUint64x8()
	high0, high1 := r0.InterleaveHiGrouped(r4).AsUint64x8(), r8.InterleaveHiGrouped(r12).AsUint64x8()
	return low0.InterleaveLoGrouped(low1).AsInt16x32(), low0.InterleaveHiGrouped(low1).AsInt16x32(),
		high0.InterleaveLoGrouped(high1).AsInt16x32(), high0.InterleaveHiGrouped(high1).AsInt16x32()
}

// wideRight is right for sixteen rows.
func wideRight(w archsimd.Int16x32, bits uint64) archsimd.Uint8x64 {
	return w.ShiftAllRight(bits).AsUint8x64()
}

// wideTimes is times for sixteen rows.
func wideTimes(s *repeated, a, b, c, d, e, f, g, h archsimd.Uint8x64) archsimd.Int16x32 {
	x := a.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[0])).Add(b.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[1])))
	x = x.Add(c.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[2]))).Add(d.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[3])))
	x = x.Add(e.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[4]))).Add(f.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[5])))
	return x.Add(g.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[6]))).Add(h.DotProductPairsSaturated(archsimd.LoadInt8x64(&s[7])))
}

// wideOrder puts sixteen rows back.
var wideOrder = [16]uint32{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}

// vectorSpread is spread for planes of 4 bits: of eight elements, those of
// even number make one word and those of odd number another.
func vectorSpread(to *[digits]repeated, values *[groupSize]int32, n int) {
	order := archsimd.LoadInt8x32(&evenFirst)
	for i := range groupSize / lanes {
		x := archsimd.LoadInt32x8((*[8]int32)(values[i*lanes:]))
		for d := range n {
			bytes := x.AsInt8x32().PermuteOrZeroGrouped(order).AsUint32x8()
			low, high := bytes.GetLo().GetElem(0), bytes.GetHi().GetElem(0)
			even, odd := archsimd.BroadcastUint32x8(low&0xffff|high<<16), archsimd.BroadcastUint32x8(low>>16|high&0xffff0000)
			for side := 0; side < wideLanes*4; side += lanes * 4 {
				even.AsInt8x32().Store((*[32]int8)(to[d][2*i][side:]))
				odd.AsInt8x32().Store((*[32]int8)(to[d][2*i+1][side:]))
			}
			// Each digit is the nearest one; the next digit gets the remainder.
			x = x.Sub(x.ShiftAllLeft(24).ShiftAllRight(24)).ShiftAllRight(8)
		}
	}
	archsimd.ClearAVXUpperBits()
}

// evenFirst gathers the lowest bytes of each four words: the first, the third,
// the second and the fourth.
var evenFirst = [32]int8{0: 0, 1: 8, 2: 4, 3: 12, 16: 0, 17: 8, 18: 4, 19: 12}

// orders put rows back, by the bits of a plane: at each place, the lane in
// which the row stands. Rows of pairs stand in the order 0 1 4 5 2 3 6 7.
var orders = [5][8]uint32{
	1: {0, 1, 2, 3, 4, 5, 6, 7},
	2: {0, 1, 4, 5, 2, 3, 6, 7},
	4: {0, 4, 1, 5, 2, 6, 3, 7},
}

// vectorScales widens the scales and biases of n rows, whole lanes of them.
func vectorScales(v *vector, c *column, n int) {
	p := unsafe.Pointer(unsafe.SliceData(c.scales))
	for r := 0; r < n; r += lanes {
		scale, shift := scalesAt(unsafe.Add(p, r*c.step), c.kind, c.bias > 0)
		scale.Store((*[8]float32)(v.scale[r:]))
		shift.Store((*[8]float32)(v.shift[r:]))
	}
	archsimd.ClearAVXUpperBits()
}

func scalesAt(p unsafe.Pointer, kind quant.Type, both bool) (scale, shift archsimd.Float32x8) {
	words := func(at int) archsimd.Int32x8 { return archsimd.LoadInt32x8((*[8]int32)(unsafe.Add(p, at))) }
	if kind == quant.Float32 {
		first := words(0).AsFloat32x8()
		if !both {
			return first, first
		}
		second := words(32).AsFloat32x8()
		order := archsimd.LoadUint32x8(&orders[2])
		return first.SelectFromPairGrouped(0, 2, 4, 6, second).Permute(order), first.SelectFromPairGrouped(1, 3, 5, 7, second).Permute(order)
	}
	// The number of interest in the upper half of a word.
	var low, high archsimd.Int32x8
	if both {
		high = words(0)
		low = high.ShiftAllLeft(16)
	} else {
		low = archsimd.LoadInt16x8((*[8]int16)(p)).ExtendToInt32().ShiftAllLeft(16)
		high = low
	}
	if kind == quant.BFloat16 {
		return low.AsFloat32x8(), high.And(archsimd.BroadcastInt32x8(-1 << 16)).AsFloat32x8()
	}
	// As halfFinite does it.
	mask, exponent := archsimd.BroadcastInt32x8(-0x70002000), archsimd.BroadcastFloat32x8(0x1p112)
	return low.ShiftAllRight(3).And(mask).AsFloat32x8().Mul(exponent), high.ShiftAllRight(3).And(mask).AsFloat32x8().Mul(exponent)
}

// vectorScaled is acc += scale*((dot-zero)*factor) + shift*sum, each step rounded.
func vectorScaled(acc []float32, dots []int32, scale, shift []float32, factor, sum float32, zero int32, wide bool) {
	f, s, z := archsimd.BroadcastFloat32x8(factor), archsimd.BroadcastFloat32x8(sum), archsimd.BroadcastInt32x8(zero)
	dots, scale, shift = dots[:len(acc)], scale[:len(acc)], shift[:len(acc)]
	r := 0
	if wide {
		f, s, z := archsimd.BroadcastFloat32x16(factor), archsimd.BroadcastFloat32x16(sum), archsimd.BroadcastInt32x16(zero)
		for ; r+wideLanes <= len(acc); r += wideLanes {
			dot := archsimd.LoadInt32x16((*[16]int32)(dots[r:])).Sub(z).ConvertToFloat32().Mul(f)
			sum := archsimd.LoadFloat32x16((*[16]float32)(scale[r:])).Mul(dot).Add(archsimd.LoadFloat32x16((*[16]float32)(shift[r:])).Mul(s))
			to := (*[16]float32)(acc[r:])
			archsimd.LoadFloat32x16(to).Add(sum).Store(to)
		}
	}
	for ; r+lanes <= len(acc); r += lanes {
		dot := archsimd.LoadInt32x8((*[8]int32)(dots[r:])).Sub(z).ConvertToFloat32().Mul(f)
		sum := archsimd.LoadFloat32x8((*[8]float32)(scale[r:])).Mul(dot).Add(archsimd.LoadFloat32x8((*[8]float32)(shift[r:])).Mul(s))
		to := (*[8]float32)(acc[r:])
		archsimd.LoadFloat32x8(to).Add(sum).Store(to)
	}
	archsimd.ClearAVXUpperBits()
}

// vectorScaledPlanes is the same for two planes, the second of which counts
// above times: float64 holds their sum, which is rounded once.
func vectorScaledPlanes(acc []float32, low, high []int32, scale, shift []float32, factor, sum float32, zero int32, above float64) {
	z := archsimd.BroadcastInt32x4(zero)
	f, s, up := archsimd.BroadcastFloat32x4(factor), archsimd.BroadcastFloat32x4(sum), archsimd.BroadcastFloat64x4(above)
	low, high, scale, shift = low[:len(acc)], high[:len(acc)], scale[:len(acc)], shift[:len(acc)]
	for r := 0; r+4 <= len(acc); r += 4 {
		dot := archsimd.LoadInt32x4((*[4]int32)(high[r:])).Sub(z).ConvertToFloat64().Mul(up)
		dot = dot.Add(archsimd.LoadInt32x4((*[4]int32)(low[r:])).ConvertToFloat64())
		sum := archsimd.LoadFloat32x4((*[4]float32)(scale[r:])).Mul(dot.ConvertToFloat32().Mul(f))
		sum = sum.Add(archsimd.LoadFloat32x4((*[4]float32)(shift[r:])).Mul(s))
		to := (*[4]float32)(acc[r:])
		archsimd.LoadFloat32x4(to).Add(sum).Store(to)
	}
	archsimd.ClearAVXUpperBits()
}
