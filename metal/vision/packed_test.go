//go:build !race

package vision_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/vision"
)

// TestGreyOf16BitsIsWhatPillowMakesOfIt: Pillow 12.0.0 made these of such files, by
// convert("RGB") and, with a transparent value, by transformers' convert_to_rgb.
func TestGreyOf16BitsIsWhatPillowMakesOfIt(t *testing.T) {
	values := []uint16{0, 1, 100, 254, 255, 256, 300, 4660, 65535}
	m := image.NewGray16(image.Rect(0, 0, len(values), 1))
	for x, v := range values {
		m.SetGray16(x, 0, color.Gray16{Y: v})
	}
	var file bytes.Buffer
	if err := png.Encode(&file, m); err != nil {
		t.Fatal(err)
	}
	const header = 8 + 4 + 4 + 13 + 4 // signature and IHDR
	key := append([]byte{0, 0, 0, 2}, "tRNS\x00\x64"...)
	key = binary.BigEndian.AppendUint32(key, crc32.ChecksumIEEE(key[4:]))
	for name, c := range map[string]struct{ file, want []byte }{
		"opaque":             {file.Bytes(), []byte{0, 1, 100, 254, 255, 255, 255, 255, 255}},
		"100 is transparent": {slices.Concat(file.Bytes()[:header], key, file.Bytes()[header:]), []byte{0, 1, 255, 254, 255, 255, 255, 255, 255}},
	} {
		got, err := vision.Decode(t.Context(), c.file, vision.DefaultLimits())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for x, v := range c.want {
			if pixel := got.Pix[3*x:][:3]; !bytes.Equal(pixel, []byte{v, v, v}) {
				t.Errorf("%s: %d became %v, want %d", name, values[x], pixel, v)
			}
		}
	}
}
