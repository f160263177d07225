package tinymodel

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"math"

	"metalfleet.dev/metalfleet/metal/quant"
)

// random is SplitMix64: small, fast, and the same everywhere.
type random uint64

// newRandom depends on the seed and on the name of what is written, so that
// tensors can be written in any order.
func newRandom(seed uint64, name string) random {
	sum := fnv.New64a()
	sum.Write([]byte(name))
	return random(seed ^ sum.Sum64())
}

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// words fills b, whole words of 4 bytes, with random bits.
func (r *random) words(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.next())
	}
	if len(b) == 4 {
		binary.LittleEndian.PutUint32(b, uint32(r.next()))
	}
}

// floats returns what fills rows with numbers of type t: uniform ones of the
// wanted mean and deviation, each drawn from bits of one random word.
func (v values) floats(t quant.Type, rng *random) func(b []byte) {
	switch {
	case v.rising || v.std == 0:
		return func(b []byte) {
			for i := range len(b) / t.Bytes() {
				x := float32(v.mean)
				if v.rising {
					x = float32(i + 1)
				}
				t.Put(b, i, x)
			}
		}
	case t == quant.Float32:
		mean, scale := float32(v.mean), float32(v.std*math.Sqrt(3)/(1<<31))
		return func(b []byte) {
			for ; len(b) >= 4; b = b[4:] {
				x := float32(int32(rng.next()>>32)) * scale
				binary.LittleEndian.PutUint32(b, math.Float32bits(x+mean))
			}
		}
	}
	table := v.table(t)
	return func(b []byte) { table.fill(b, rng) }
}

// table lets numbers of 16 bits be drawn fast: there are few enough of them to
// round each only once.
type table [1 << 12]uint16

func (v values) table(t quant.Type) *table {
	var out table
	raw := make([]byte, 2)
	for i := range out {
		t.Put(raw, 0, float32(v.mean+(float64(i)/(1<<11)-1+1.0/(1<<12))*math.Sqrt(3)*v.std))
		out[i] = binary.LittleEndian.Uint16(raw)
	}
	return &out
}

// fill draws 4 numbers from each random word.
func (t *table) fill(b []byte, rng *random) {
	for ; len(b) >= 8; b = b[8:] {
		z := rng.next()
		w := uint64(t[z&0xfff]) | uint64(t[z>>16&0xfff])<<16 | uint64(t[z>>32&0xfff])<<32 | uint64(t[z>>48&0xfff])<<48
		binary.LittleEndian.PutUint64(b, w)
	}
	for z := rng.next(); len(b) >= 2; b, z = b[2:], z>>16 {
		binary.LittleEndian.PutUint16(b, t[z&0xfff])
	}
}

// stream writes rows of rowBytes, filled some at a time; silent makes the last
// one zeros.
func stream(w io.Writer, rows, rowBytes int, silent bool, fill func([]byte)) error {
	const target = 1 << 20
	at := max(1, target/rowBytes)
	buf := make([]byte, min(at, rows)*rowBytes)
	for done := 0; done < rows; {
		n := min(at, rows-done)
		piece := buf[:n*rowBytes]
		fill(piece)
		if done += n; silent && done == rows {
			clear(piece[(n-1)*rowBytes:])
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
