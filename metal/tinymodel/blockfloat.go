package tinymodel

import (
	"io"
	"math"

	"metalfleet.dev/metalfleet/metal/quant"
)

// smallFloats returns the words and scales of a tensor: random elements that
// are numbers, and scales that vary from group to group and give all of them
// the wanted deviation.
func (t tensor) smallFloats(f quant.Format, sizes quant.Sizes, seed uint64) []part {
	name := t.path + ".weight"
	return []part{
		{name: name, dtype: "U32", shape: t.shape(sizes.Raw / 4), rows: t.all(), rowBytes: sizes.Raw, write: func(w io.Writer) error {
			rng := newRandom(seed, name)
			return stream(w, t.all(), sizes.Raw, t.silent, func(b []byte) {
				rng.words(b)
				for i := range b {
					if f.Mode == quant.MXFP8 && b[i]&127 == 127 {
						b[i]-- // all ones are no number
					}
				}
			})
		}},
		{name: t.path + ".scales", dtype: "U8", shape: t.shape(sizes.Scales), rows: t.all(), rowBytes: sizes.Scales, write: func(w io.Writer) error {
			rng := newRandom(seed, t.path+".scales")
			table := t.powers(f)
			return stream(w, t.all(), sizes.Scales, t.silent, func(b []byte) {
				for i := range b {
					b[i] = table[rng.next()>>60]
				}
			})
		}},
	}
}

// powers are sixteen scales around that which gives the wanted deviation.
func (t tensor) powers(f quant.Format) (out [16]byte) {
	elements, scales := f.Tables()
	var square float64
	n := 0
	for b := range 1 << f.Bits {
		if v := float64(elements[b]); v == v {
			square, n = square+v*v, n+1
		}
	}
	positive := 255 // all scales but what is no number
	if f.Mode == quant.NVFP4 {
		positive = 127 // larger codes are negative
	}
	for i := range out {
		wanted := t.values.std / math.Sqrt(square/float64(n)) * math.Exp2((float64(i)-7.5)/8)
		best := math.Inf(1)
		for b := range positive {
			if d := math.Abs(float64(scales[b]) - wanted); d < best {
				best, out[i] = d, byte(b)
			}
		}
	}
	return out
}

// blocks are words and scales under the names that OpenAI gave them: words are
// bytes in blocks of 16.
func (t tensor) blocks(parts []part) []part {
	words, scales := &parts[0], &parts[1]
	words.name, words.dtype = t.path+"_blocks", "U8"
	words.shape = append(t.shape(t.cols/32), 16)
	scales.name = t.path + "_scales"
	return parts
}
