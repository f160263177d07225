//go:build !race

package vision_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/vision"
)

const side = 1024

// pngBy is a PNG of a bit depth, a color type and that many bytes per pixel.
func pngBy(t *testing.T, depth, kind byte, size int, interlaced bool) []byte {
	t.Helper()
	var rows bytes.Buffer
	z := zlib.NewWriter(&rows)
	passes, method := [][4]int{{0, 0, 1, 1}}, byte(0) // column, row, and the distances to the next
	if interlaced {
		passes, method = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}, 1
	}
	for _, p := range passes {
		row := make([]byte, 1+size*((side-p[0]+p[2]-1)/p[2]))
		for range (side - p[1] + p[3] - 1) / p[3] {
			if _, err := z.Write(row); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	out := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(name string, data []byte) {
		out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
		body := append([]byte(name), data...)
		out = binary.BigEndian.AppendUint32(append(out, body...), crc32.ChecksumIEEE(body))
	}
	header := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, side), side)
	chunk("IHDR", append(header, depth, kind, 0, 0, method))
	chunk("IDAT", rows.Bytes())
	chunk("IEND", nil)
	return out
}

// losslessWebP is a WebP of one color, in a few bytes.
func losslessWebP() []byte {
	bits, n := uint64(0), 0
	write := func(v uint64, width int) { bits |= v << n; n += width }
	write(side-1, 14)
	write(side-1, 14)
	write(0, 1+3) // alpha, version
	head := binary.LittleEndian.AppendUint32([]byte{0x2f}, uint32(bits))
	bits, n = 0, 0
	write(0, 3) // no transform, no cache of colors, one group of codes
	for range 5 {
		write(1, 1) // a code of one symbol
		write(0, 3)
	}
	data := binary.LittleEndian.AppendUint64(head, bits)
	data = append(data, make([]byte, len(data)%2)...)
	out := binary.LittleEndian.AppendUint32([]byte("RIFF"), uint32(12+len(data)))
	out = binary.LittleEndian.AppendUint32(append(out, "WEBPVP8L"...), uint32(len(data)))
	return append(out, data...)
}

// What a tenant's image allocates while it is decoded is no more than what its header
// counts: the reservation of an engine contains no more.
func TestAttackDecodingTakesNoMoreThanIsCounted(t *testing.T) {
	noise := image.NewRGBA(image.Rect(0, 0, side, side))
	for i := range noise.Pix {
		noise.Pix[i] = byte(rand.Uint32())
	}
	colors := image.NewPaletted(noise.Rect, color.Palette{color.Black, color.White})
	var photo, animation bytes.Buffer
	if err := jpeg.Encode(&photo, noise, nil); err != nil {
		t.Fatal(err)
	}
	if err := gif.Encode(&animation, colors, nil); err != nil {
		t.Fatal(err)
	}
	// The components of a JPEG are called 1, 2 and 3, in its frame and its scan.
	rgb := bytes.Replace(photo.Bytes(), []byte{3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1}, []byte{3, 'R', 0x22, 0, 'G', 0x11, 1, 'B', 0x11, 1}, 1)
	rgb = bytes.Replace(rgb, []byte{3, 1, 0, 2, 0x11, 3, 0x11}, []byte{3, 'R', 0, 'G', 0x11, 'B', 0x11}, 1)
	if slices.Equal(rgb, photo.Bytes()) {
		t.Fatal("the encoder writes its components in another way")
	}
	for name, data := range map[string][]byte{
		"PNG":                         pngBy(t, 8, 2, 3, false),
		"gray PNG":                    pngBy(t, 8, 0, 1, false),
		"transparent PNG":             pngBy(t, 8, 6, 4, false),
		"PNG of 16 bits":              pngBy(t, 16, 2, 6, false),
		"transparent PNG of 16 bits":  pngBy(t, 16, 6, 8, false),
		"interlaced PNG":              pngBy(t, 8, 6, 4, true),
		"interlaced PNG of 16 bits":   pngBy(t, 16, 6, 8, true),
		"JPEG":                        photo.Bytes(),
		"JPEG of red, green and blue": rgb,
		"GIF":                         animation.Bytes(),
		"lossless WebP":               losslessWebP(),
	} {
		l := vision.DefaultLimits()
		for l.Pixels = side * side / 2; ; l.Pixels += side * side / 16 { // the least that admits the image
			if _, _, err := vision.Size(data, l); err == nil {
				break
			}
			if l.Pixels > 10*side*side {
				t.Fatalf("%s is refused", name)
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := vision.Decode(t.Context(), data, l); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		const around = 1 << 20 // buffers and tables
		counted := vision.BytesPerPixel*uint64(l.Pixels) + around
		if took := after.TotalAlloc - before.TotalAlloc; took > counted {
			t.Errorf("%s: decoding allocated %.1f MiB, but %.1f are counted", name, float64(took)/(1<<20), float64(counted)/(1<<20))
		}
	}
}

// TestAttackPartitionsThatAWebPDoesNotHave: its decoder makes room for what a chunk claims.
func TestAttackPartitionsThatAWebPDoesNotHave(t *testing.T) {
	const claimed, first = 120 << 20, 256
	frame := []byte{0x10, first >> 3, 0, 0x9d, 1, 0x2a, 16, 0, 16, 0} // a key frame of 16 x 16 pixels
	frame = append(append(frame, 0x20, 0, 0xe0, 0xff), make([]byte, first-4)...)
	frame = append(frame, bytes.Repeat([]byte{0xff}, 7*3)...) // the sizes of 7 of 8 partitions
	file := binary.LittleEndian.AppendUint32([]byte("RIFF"), 12+claimed)
	file = binary.LittleEndian.AppendUint32(append(file, "WEBPVP8 "...), claimed)
	file = append(file, frame...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := vision.Decode(t.Context(), file, vision.DefaultLimits())
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, vision.ErrCorrupt) || took > 1<<20 {
		t.Errorf("%d bytes are allocated for a file of %d: %v", took, len(file), err)
	}
}
