//go:build !race

package vision_test

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"runtime"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/vision"
)

// bitWriter writes numbers of a lossless WebP.
type bitWriter struct {
	out []byte
	n   int
}

func (w *bitWriter) write(v uint64, n int) {
	for i := range n {
		if w.n%8 == 0 {
			w.out = append(w.out, 0)
		}
		w.out[len(w.out)-1] |= byte(v>>i&1) << (w.n % 8)
		w.n++
	}
}

// code writes a code of which the first symbols have a length, which is at a place of the
// order in which lengths are written, and the others none.
func (w *bitWriter) code(place, first, all int) {
	w.write(0, 1)
	w.write(uint64(place+1-4), 4)
	for i := range place + 1 {
		v := uint64(0)
		if i == 2 || i == place {
			v = 1
		}
		w.write(v, 3)
	}
	w.write(0, 1)
	for i := range all {
		v := uint64(0)
		if i < first {
			v = 1
		}
		w.write(v, 1)
	}
}

// manyCodes is a black WebP with a group of codes for each tile of 4 x 4 pixels, up to as
// many. Its chunk states excess bytes more than there are.
func manyCodes(tiles, groups, excess int) []byte {
	w := &bitWriter{}
	w.write(0x2f, 8)
	w.write(uint64(4*tiles-1), 14)
	w.write(uint64(4*tiles-1), 14)
	w.write(0, 4)
	w.write(0, 1) // no transform
	w.write(1, 1) // a cache of 2048 colors
	w.write(11, 4)
	w.write(1, 1) // groups, of 4 x 4 pixels
	w.write(0, 3)
	w.write(0, 1) // no cache of colors
	w.code(11, 256, 280)
	w.code(11, 256, 256)
	for range 3 {
		w.write(1, 4)
	}
	for i := range tiles * tiles {
		g := min(i, groups-1)
		w.write(uint64(bits.Reverse8(byte(g))), 8)
		w.write(uint64(bits.Reverse8(byte(g>>8))), 8)
	}
	for range groups {
		w.code(14, 2048, 280+2048)
		for range 3 {
			w.code(11, 256, 256)
		}
		w.code(7, 32, 40)
	}
	for range 16 * tiles * tiles {
		w.write(0, 35)
	}
	w.write(0, 64)
	data := append(w.out, make([]byte, len(w.out)%2)...)
	out := binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(12+len(data)+excess))
	out = binary.LittleEndian.AppendUint32(append(out, "WEBPVP8L"...), uint32(len(data)+excess))
	return append(out, data...)
}

// TestAttackCodesOfALosslessWebP: the codes of a small image take more memory than its
// pixels. What they take is counted, also if a chunk states that it is longer than its file.
func TestAttackCodesOfALosslessWebP(t *testing.T) {
	for _, groups := range []int{1, 300, 2600} {
		for _, excess := range []int{0, 1000} {
			data := manyCodes(52, groups, excess)
			l := vision.DefaultLimits()
			for l.Pixels = 52 * 52 * 16; ; l.Pixels += l.Pixels/16 + 1 { // the least that admits the image
				if _, _, err := vision.Size(data, l); err == nil {
					break
				}
				if l.Pixels > 1<<30 {
					t.Fatalf("%d groups are refused", groups)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := vision.Decode(t.Context(), data, l)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatalf("%d groups: %v", groups, err)
			}
			const around = 1 << 20
			took, counted := after.TotalAlloc-before.TotalAlloc, vision.BytesPerPixel*uint64(l.Pixels)
			if took > counted+around || counted > 2*took+around {
				t.Errorf("%d groups, %d bytes too many stated: decoding allocated %d KiB, but %d are counted", groups, excess, took>>10, counted>>10)
			}
		}
	}
	if _, _, err := vision.Size(bytes.Clone(manyCodes(52, 2600, 0)), vision.DefaultLimits()); err == nil {
		t.Error("codes that take more than the largest image are accepted")
	}
}

// TestAttackManyPlanesOfAWebP: only the codes of what is decoded are read, the first transparent
// plane and the first image. Those of each plane have half a million tiles in ten bytes.
func TestAttackManyPlanesOfAWebP(t *testing.T) {
	const side, planes = 2880, 2000
	w := &bitWriter{}
	w.write(1, 6) // a transform by tiles of 4 x 4 pixels
	w.write(0, 1) // no cache of colors
	for range 5 {
		w.write(1, 4) // of one symbol each
	}
	w.write(0, 37)
	for name, plane := range map[string][]byte{
		"ALPH": append([]byte{1}, w.out...),
		"VP8L": append(binary.LittleEndian.AppendUint32([]byte{0x2f}, (side-1)|(side-1)<<14), w.out...),
	} {
		body := []byte("WEBP")
		add := func(name string, data []byte) {
			body = append(binary.LittleEndian.AppendUint32(append(body, name...), uint32(len(data))), data...)
			body = append(body, make([]byte, len(data)%2)...)
		}
		add("VP8X", []byte{16, 0, 0, 0, (side - 1) & 255, (side - 1) >> 8, 0, (side - 1) & 255, (side - 1) >> 8, 0})
		for range planes {
			add(name, plane)
		}
		data := append(binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(len(body))), body...)
		began := time.Now()
		_, _, err := vision.Size(data, vision.DefaultLimits())
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the size of %d bytes with %d planes %s took %v: %v", len(data), planes, name, took, err)
		}
	}
}

// Pixels that take no bits take no time either: a file of 60 bytes may have half a million of them
// in the image of a transform, and a request as many files as it likes.
func TestTheSizeOfATinyWebPTakesNoTime(t *testing.T) {
	for name, green := range map[string]uint64{"of one color": 0, "that repeat others": 1} {
		w := &bitWriter{}
		w.write(0x2f, 8)
		w.write(4096-1|(2040-1)<<14, 28)
		w.write(0, 4)
		w.write(1, 6) // a transform by tiles of 4 x 4 pixels
		w.write(0, 1) // no cache of colors
		if green == 0 {
			w.write(1, 4)
		} else {
			w.code(11, 0, 256) // of one symbol as well, the first that is no color
			w.write(1, 24)
		}
		for range 4 {
			w.write(1, 4) // of one symbol each
		}
		w.write(0, 64) // no other transform, no cache of colors and one group of codes
		data := append(w.out, make([]byte, len(w.out)%2)...)
		out := binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(12+len(data)))
		out = append(binary.LittleEndian.AppendUint32(append(out, "WEBPVP8L"...), uint32(len(data))), data...)
		began := time.Now()
		for range 400 {
			if width, height, err := vision.Size(out, vision.DefaultLimits()); err != nil || width != 4096 || height != 2040 {
				t.Fatalf("%d x %d: %v", width, height, err)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("400 sizes of %d bytes with pixels %s took %v", len(out), name, took)
		}
	}
}
