//go:build goexperiment.simd && amd64

package ref

import (
	"math"
	"simd/archsimd"
	"unsafe"
)

// Kernels of float32. Each lane is rounded as the scalar code rounds it, and
// sums are joined in its order.

func floatsAt(p unsafe.Pointer, i int) archsimd.Float32x8 {
	return archsimd.LoadFloat32x8((*[8]float32)(unsafe.Add(p, 4*i)))
}

// vectorDotRows is dot for len(out) rows, scaled. The rows are as long as q, which
// is whole lanes, and one begins every stride elements.
func vectorDotRows(out, q, rows []float32, stride int, scale float32) {
	if len(out) == 0 {
		return
	}
	size := len(q)
	_, _ = q[:size-size%lanes], rows[:(len(out)-1)*stride+size]
	p, x := unsafe.Pointer(unsafe.SliceData(rows)), unsafe.Pointer(unsafe.SliceData(q))
	by := archsimd.BroadcastFloat32x4(scale)
	r := 0
	for ; r+4 <= len(out); r += 4 {
		var a, b, c, d archsimd.Float32x8
		for i := 0; i < size; i += lanes {
			y := floatsAt(x, i)
			a, b = a.Add(floatsAt(p, i).Mul(y)), b.Add(floatsAt(p, stride+i).Mul(y))
			c, d = c.Add(floatsAt(p, 2*stride+i).Mul(y)), d.Add(floatsAt(p, 3*stride+i).Mul(y))
		}
		p = unsafe.Add(p, 16*stride)
		pairs := a.AddPairsGrouped(b).AddPairsGrouped(c.AddPairsGrouped(d))
		pairs.GetLo().Add(pairs.GetHi()).Mul(by).Store((*[4]float32)(out[r:]))
	}
	for ; r < len(out); r++ {
		var a archsimd.Float32x8
		for i := 0; i < size; i += lanes {
			a = a.Add(floatsAt(p, i).Mul(floatsAt(x, i)))
		}
		p = unsafe.Add(p, 4*stride)
		pairs := a.AddPairsGrouped(a)
		pairs = pairs.AddPairsGrouped(pairs)
		// As an integer: a float32 is stored with legacy SSE.
		bits := (*uint32)(unsafe.Pointer(&out[r]))
		*bits = pairs.GetLo().Add(pairs.GetHi()).Mul(by).AsUint32x4().GetElem(0)
	}
	archsimd.ClearAVXUpperBits()
}

// vectorAddRows is addRows where out is whole lanes.
func vectorAddRows(out, rows, p []float32, stride int) {
	if len(p) == 0 {
		return
	}
	n := len(out)
	_, _ = out[:n-n%lanes], rows[:(len(p)-1)*stride+n]
	for i := 0; i < n; i += lanes {
		to, at := (*[lanes]float32)(out[i:]), unsafe.Pointer(unsafe.SliceData(rows[i:]))
		sum := archsimd.LoadFloat32x8(to)
		for _, w := range p {
			sum = sum.Add(floatsAt(at, 0).Mul(archsimd.BroadcastFloat32x8(w)))
			at = unsafe.Add(at, 4*stride)
		}
		sum.Store(to)
	}
	archsimd.ClearAVXUpperBits()
}

// vectorAccumulate is accumulate where out is whole lanes: four vectors of it at
// a time, so that four sums are under way and a weight is read once for them.
func vectorAccumulate(out, v, p []float32) {
	n := len(out)
	_, _ = out[:n-n%lanes], v[:n*len(p)]
	if len(p) == 0 {
		return
	}
	i := 0
	for ; i+4*lanes <= n; i += 4 * lanes {
		accumulateFour(out[i:], v[i:], p, n)
	}
	for ; i < n; i += lanes {
		accumulateOne(out[i:], v[i:], p, n)
	}
	archsimd.ClearAVXUpperBits()
}

// accumulateFour is accumulate for 32 elements of rows of n.
func accumulateFour(out, v, p []float32, n int) {
	to, at := unsafe.Pointer((*[4 * lanes]float32)(out)), unsafe.Pointer(unsafe.SliceData(v))
	a, b, c, d := floatsAt(to, 0), floatsAt(to, 8), floatsAt(to, 16), floatsAt(to, 24)
	j := 0
	for ; j+4 <= len(p); j += 4 {
		f := (*[4]float32)(p[j:])
		w, x, y, z := archsimd.BroadcastFloat32x8(f[0]), archsimd.BroadcastFloat32x8(f[1]), archsimd.BroadcastFloat32x8(f[2]), archsimd.BroadcastFloat32x8(f[3])
		second, third, fourth := unsafe.Add(at, 4*n), unsafe.Add(at, 8*n), unsafe.Add(at, 12*n)
		a = a.Add(floatsAt(at, 0).Mul(w).Add(floatsAt(second, 0).Mul(x)).Add(floatsAt(third, 0).Mul(y).Add(floatsAt(fourth, 0).Mul(z))))
		b = b.Add(floatsAt(at, 8).Mul(w).Add(floatsAt(second, 8).Mul(x)).Add(floatsAt(third, 8).Mul(y).Add(floatsAt(fourth, 8).Mul(z))))
		c = c.Add(floatsAt(at, 16).Mul(w).Add(floatsAt(second, 16).Mul(x)).Add(floatsAt(third, 16).Mul(y).Add(floatsAt(fourth, 16).Mul(z))))
		d = d.Add(floatsAt(at, 24).Mul(w).Add(floatsAt(second, 24).Mul(x)).Add(floatsAt(third, 24).Mul(y).Add(floatsAt(fourth, 24).Mul(z))))
		at = unsafe.Add(at, 16*n)
	}
	for ; j < len(p); j++ {
		w := archsimd.BroadcastFloat32x8(p[j])
		a, b = a.Add(floatsAt(at, 0).Mul(w)), b.Add(floatsAt(at, 8).Mul(w))
		c, d = c.Add(floatsAt(at, 16).Mul(w)), d.Add(floatsAt(at, 24).Mul(w))
		at = unsafe.Add(at, 4*n)
	}
	a.Store((*[8]float32)(out))
	b.Store((*[8]float32)(out[8:]))
	c.Store((*[8]float32)(out[16:]))
	d.Store((*[8]float32)(out[24:]))
}

// accumulateOne is accumulate for 8 elements of rows of n.
func accumulateOne(out, v, p []float32, n int) {
	at, to := unsafe.Pointer(unsafe.SliceData(v)), (*[8]float32)(out)
	sum := archsimd.LoadFloat32x8(to)
	j := 0
	for ; j+4 <= len(p); j += 4 {
		f := (*[4]float32)(p[j:])
		a, b := floatsAt(at, 0).Mul(archsimd.BroadcastFloat32x8(f[0])), floatsAt(at, n).Mul(archsimd.BroadcastFloat32x8(f[1]))
		c, d := floatsAt(at, 2*n).Mul(archsimd.BroadcastFloat32x8(f[2])), floatsAt(at, 3*n).Mul(archsimd.BroadcastFloat32x8(f[3]))
		sum = sum.Add(a.Add(b).Add(c.Add(d)))
		at = unsafe.Add(at, 16*n)
	}
	for ; j < len(p); j++ {
		sum = sum.Add(floatsAt(at, 0).Mul(archsimd.BroadcastFloat32x8(p[j])))
		at = unsafe.Add(at, 4*n)
	}
	sum.Store(to)
}

// vectorMax is the largest of x and top; where one is not a number, what comes
// of them is none in any case.
func vectorMax(x []float32, top float32) float32 {
	most := archsimd.BroadcastFloat32x8(top)
	i := 0
	for ; i+lanes <= len(x); i += lanes {
		most = most.Max(archsimd.LoadFloat32x8((*[8]float32)(x[i:])))
	}
	var each [lanes]float32
	most.Store(&each)
	archsimd.ClearAVXUpperBits()
	for _, v := range each {
		top = max(top, v)
	}
	for _, v := range x[i:] {
		top = max(top, v)
	}
	return top
}

// exps is exp in every lane. It is not ok if a lane is NaN, or so large that exp
// computes it in another way.
func exps(x archsimd.Float32x8) (e archsimd.Float32x8, ok bool) {
	one, magic := archsimd.BroadcastFloat32x8(1), archsimd.BroadcastFloat32x8(0x1.8p23)
	n := x.Mul(archsimd.BroadcastFloat32x8(1.44269504)).Add(magic).Sub(magic)
	r := x.Sub(n.Mul(archsimd.BroadcastFloat32x8(0.693359375)))
	r = r.Sub(n.Mul(archsimd.BroadcastFloat32x8(-2.12194440e-4)))
	p := archsimd.BroadcastFloat32x8(1.9875691500e-4)
	p = p.Mul(r).Add(archsimd.BroadcastFloat32x8(1.3981999507e-3))
	p = p.Mul(r).Add(archsimd.BroadcastFloat32x8(8.3334519073e-3))
	p = p.Mul(r).Add(archsimd.BroadcastFloat32x8(4.1665795894e-2))
	p = p.Mul(r).Add(archsimd.BroadcastFloat32x8(1.6666665459e-1))
	p = p.Mul(r).Add(archsimd.BroadcastFloat32x8(5.0000001201e-1))
	p = p.Mul(r).Mul(r).Add(r).Add(one)
	e = p.Mul(powers(n)).Masked(x.GreaterEqual(archsimd.BroadcastFloat32x8(leastExp)))
	return e, x.LessEqual(archsimd.BroadcastFloat32x8(plainExp)).ToBits() == 0xff
}

// vectorExp makes every x exp(x - top).
func vectorExp(x []float32, top float32) {
	for {
		x = x[expsFirst(x, top):]
		if len(x) < lanes {
			exponentials(x, top)
			return
		}
		exponentials(x[:lanes], top)
		x = x[lanes:]
	}
}

// expsFirst makes x exp(x - top) from its first element on, in whole vectors, up to
// the first one of which exps is not ok, and returns how many elements it changed.
func expsFirst(x []float32, top float32) int {
	i, from := 0, archsimd.BroadcastFloat32x8(top)
	for i+4*lanes <= len(x) && expFour((*[4 * lanes]float32)(x[i:]), from) {
		i += 4 * lanes
	}
	for ; i+lanes <= len(x); i += lanes {
		to := (*[lanes]float32)(x[i:])
		e, ok := exps(archsimd.LoadFloat32x8(to).Sub(from))
		if !ok {
			break
		}
		e.Store(to)
	}
	archsimd.ClearAVXUpperBits()
	return i
}

// expFour is exps of four vectors at once, of which none waits for another, and whose
// constants are read once; it changes nothing where one is not ok.
func expFour(to *[4 * lanes]float32, from archsimd.Float32x8) bool {
	p := unsafe.Pointer(to)
	a, b, c, d := floatsAt(p, 0).Sub(from), floatsAt(p, 8).Sub(from), floatsAt(p, 16).Sub(from), floatsAt(p, 24).Sub(from)
	plain := archsimd.BroadcastFloat32x8(plainExp)
	if a.LessEqual(plain).And(b.LessEqual(plain)).And(c.LessEqual(plain).And(d.LessEqual(plain))).ToBits() != 0xff {
		return false
	}
	k, magic := archsimd.BroadcastFloat32x8(1.44269504), archsimd.BroadcastFloat32x8(0x1.8p23)
	nA, nB, nC, nD := a.Mul(k).Add(magic).Sub(magic), b.Mul(k).Add(magic).Sub(magic), c.Mul(k).Add(magic).Sub(magic), d.Mul(k).Add(magic).Sub(magic)
	k = archsimd.BroadcastFloat32x8(0.693359375)
	a, b, c, d = a.Sub(nA.Mul(k)), b.Sub(nB.Mul(k)), c.Sub(nC.Mul(k)), d.Sub(nD.Mul(k))
	k = archsimd.BroadcastFloat32x8(-2.12194440e-4)
	a, b, c, d = a.Sub(nA.Mul(k)), b.Sub(nB.Mul(k)), c.Sub(nC.Mul(k)), d.Sub(nD.Mul(k))
	pA := archsimd.BroadcastFloat32x8(1.9875691500e-4)
	pB, pC, pD := pA, pA, pA
	k = archsimd.BroadcastFloat32x8(1.3981999507e-3)
	pA, pB, pC, pD = pA.Mul(a).Add(k), pB.Mul(b).Add(k), pC.Mul(c).Add(k), pD.Mul(d).Add(k)
	k = archsimd.BroadcastFloat32x8(8.3334519073e-3)
	pA, pB, pC, pD = pA.Mul(a).Add(k), pB.Mul(b).Add(k), pC.Mul(c).Add(k), pD.Mul(d).Add(k)
	k = archsimd.BroadcastFloat32x8(4.1665795894e-2)
	pA, pB, pC, pD = pA.Mul(a).Add(k), pB.Mul(b).Add(k), pC.Mul(c).Add(k), pD.Mul(d).Add(k)
	k = archsimd.BroadcastFloat32x8(1.6666665459e-1)
	pA, pB, pC, pD = pA.Mul(a).Add(k), pB.Mul(b).Add(k), pC.Mul(c).Add(k), pD.Mul(d).Add(k)
	k = archsimd.BroadcastFloat32x8(5.0000001201e-1)
	pA, pB, pC, pD = pA.Mul(a).Add(k), pB.Mul(b).Add(k), pC.Mul(c).Add(k), pD.Mul(d).Add(k)
	k = archsimd.BroadcastFloat32x8(1)
	pA, pB, pC, pD = pA.Mul(a).Mul(a).Add(a).Add(k), pB.Mul(b).Mul(b).Add(b).Add(k), pC.Mul(c).Mul(c).Add(c).Add(k), pD.Mul(d).Mul(d).Add(d).Add(k)
	least := archsimd.BroadcastFloat32x8(leastExp)
	pA.Mul(powers(nA)).Masked(floatsAt(p, 0).Sub(from).GreaterEqual(least)).Store((*[8]float32)(to[:]))
	pB.Mul(powers(nB)).Masked(floatsAt(p, 8).Sub(from).GreaterEqual(least)).Store((*[8]float32)(to[8:]))
	pC.Mul(powers(nC)).Masked(floatsAt(p, 16).Sub(from).GreaterEqual(least)).Store((*[8]float32)(to[16:]))
	pD.Mul(powers(nD)).Masked(floatsAt(p, 24).Sub(from).GreaterEqual(least)).Store((*[8]float32)(to[24:]))
	return true
}

// powers are 2 to the n of each lane, which is whole.
func powers(n archsimd.Float32x8) archsimd.Float32x8 {
	return n.ConvertToInt32().Add(archsimd.BroadcastInt32x8(127)).ShiftAllLeft(23).AsFloat32x8()
}

// vectorSwiGLU is swiglu.
func vectorSwiGLU(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	one, sign := archsimd.BroadcastFloat32x8(1), archsimd.BroadcastInt32x8(math.MinInt32)
	i := 0
	for ; i+lanes <= len(dst); i += lanes {
		v := archsimd.LoadFloat32x8((*[8]float32)(gate[i:]))
		e, ok := exps(v.AsInt32x8().Xor(sign).AsFloat32x8())
		if !ok {
			archsimd.ClearAVXUpperBits()
			swiglu(dst[i:i+lanes], gate[i:i+lanes], up[i:i+lanes])
			continue
		}
		v.Div(one.Add(e)).Mul(archsimd.LoadFloat32x8((*[8]float32)(up[i:]))).Store((*[8]float32)(dst[i:]))
	}
	archsimd.ClearAVXUpperBits()
	swiglu(dst[i:], gate[i:], up[i:])
}

// vectorFixed rounds a group to fixed point: the values of x times inverse,
// and their sum.
func vectorFixed(to *[groupSize]int32, x []float32, inverse float32) int32 {
	from := (*[groupSize]float32)(x)
	by, magic := archsimd.BroadcastFloat32x8(inverse), archsimd.BroadcastFloat32x8(0x1.8p23)
	zero := archsimd.BroadcastInt32x8(0x4b400000)
	var sum archsimd.Int32x8
	for i := 0; i < groupSize; i += lanes {
		n := archsimd.LoadFloat32x8((*[8]float32)(from[i:])).Mul(by).Add(magic).AsInt32x8().Sub(zero)
		n.Store((*[8]int32)(to[i:]))
		sum = sum.Add(n)
	}
	var four [4]int32
	sum.GetLo().Add(sum.GetHi()).Store(&four)
	archsimd.ClearAVXUpperBits()
	return four[0] + four[1] + four[2] + four[3]
}

// vectorTop is the largest magnitude of a group; what is not a number is
// larger than all.
func vectorTop(x []float32) float32 {
	from, magnitude := (*[groupSize]float32)(x), archsimd.BroadcastInt32x8(math.MaxInt32)
	var top archsimd.Int32x8
	for i := 0; i < groupSize; i += lanes {
		top = top.Max(archsimd.LoadFloat32x8((*[8]float32)(from[i:])).AsInt32x8().And(magnitude))
	}
	var four [4]int32
	top.GetLo().Max(top.GetHi()).Store(&four)
	archsimd.ClearAVXUpperBits()
	return math.Float32frombits(uint32(max(four[0], four[1], four[2], four[3])))
}
