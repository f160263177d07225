package vision

import (
	"encoding/binary"
	"fmt"
)

// BytesPerPixel is what each pixel of the largest image takes while it is decoded. Images
// of other kinds, such as progressive ones, may have fewer pixels in the same memory.
const BytesPerPixel = 7

// pixelBytes returns what each pixel takes while it is decoded: what the decoder allocates
// for it, 3 bytes of RGB, and 3 more if the image is turned.
func pixelBytes(f Format, data []byte) float64 {
	n := 4.0
	switch f {
	case PNG:
		n = pngBytes(data)
	case JPEG:
		n = jpegBytes(data)
	case WebP:
		n = webpBytes(data)
	}
	n += 3
	if orientationOf(data) > 1 {
		n += 3
	}
	return n
}

// pngBytes returns what image/png allocates for a pixel. The passes of an interlaced image
// are images of their own, which are as large as the whole one together.
func pngBytes(data []byte) float64 {
	const depth, interlace = 24, 28 // offsets of bytes of IHDR
	n := 4.0
	if len(data) > depth && data[depth] == 16 {
		n = 8
	}
	if len(data) > interlace && data[interlace] != 0 {
		n *= 2
	}
	return n
}

// webpBytes returns what package webp allocates for a pixel: the planes of a lossy image, and
// of a transparent one the alpha plane, alone and as a lossless image. A lossless image takes
// 4 bytes, up to half as much again for indexes of a palette, and less than 1 for transforms.
func webpBytes(data []byte) float64 {
	const planes, lossless = 1.5, 4 + 2 + 1
	n := 0.0
	for c := range decodedChunks(data) {
		switch c.name {
		case "VP8 ":
			n += planes
		case "VP8L":
			n += lossless
		case "ALPH":
			n += 1 + lossless
		}
	}
	return max(n, planes)
}

// codeBytes returns what package webp allocates in addition to pixels: for Huffman codes, and
// for the partitions of a lossy image.
func codeBytes(f Format, data []byte, width, height int) (n float64) {
	if f != WebP {
		return 0
	}
	const header = 5 // of a lossless image; an alpha plane has one byte, with its compression
	for c := range decodedChunks(data) {
		switch {
		case c.name == "VP8 ":
			n += float64(len(c.data))
		case c.name == "VP8L" && len(c.data) > header:
			n += codesOf(c.data[header:], width, height).bytes()
		case c.name == "ALPH" && len(c.data) > 1 && c.data[0]&3 != 0:
			n += codesOf(c.data[1:], width, height).bytes()
		}
	}
	return n
}

// decodedChunks lists the chunks that package webp decodes: those up to the pixels, and of them one
// alpha plane, because it refuses an image that has a second one before it decodes that.
func decodedChunks(data []byte) func(yield func(chunk) bool) {
	return func(yield func(chunk) bool) {
		alpha := false
		for c := range chunks(data[12:], binary.LittleEndian, 0, 0) {
			if c.name == "ALPH" && alpha || !yield(c) || c.name == "VP8 " || c.name == "VP8L" {
				return
			}
			alpha = alpha || c.name == "ALPH"
		}
	}
}

// partitionsEnd reports whether a WebP has all of its lossy image. Package webp makes room for
// partitions before it reads them, up to 128 MiB, and fails if they are not there.
func partitionsEnd(data []byte) bool {
	for c := range decodedChunks(data) {
		if c.name == "VP8 " && c.cut {
			return false
		}
	}
	return true
}

// jpegBytes returns what image/jpeg allocates for a pixel: the planes of the components, and
// for a progressive image their coefficients of 4 bytes; 4 more where the components are not
// those of YCbCr.
func jpegBytes(data []byte) float64 {
	const baseline, progressive, app14 = 0xc0, 0xc2, 0xee
	n, found, rgb := 3.0, false, false
	segments(data, func(marker byte, body []byte) bool {
		if marker == app14 {
			const transform = 11 // its offset, 0 for none
			rgb = rgb || len(body) > transform && body[transform] == 0
		}
		if found || marker < baseline || marker > progressive {
			return true
		}
		found = true
		const header, ids = 6, 3 // precision, height, width, number of components; bytes of each
		var most, sum float64
		var names []byte
		for i := header; i+2 < len(body); i += ids {
			samples := float64(body[i+1]>>4) * float64(body[i+1]&15)
			most, sum = max(most, samples), sum+samples
			names = append(names, body[i])
		}
		n = sum / max(1, most)
		if marker == progressive {
			n *= 1 + 4
		}
		rgb = rgb || string(names) == "RGB" || len(names) == 4
		return true
	})
	if rgb {
		n += 4
	}
	return n
}

const (
	// maxScans bounds the scans of a progressive JPEG: usual files have about 10.
	maxScans = 64
	// maxScanned bounds the pixels of all scans together. A scan may be a few bytes, but
	// visits every pixel.
	maxScanned = 16 * 25 << 20
)

// checkScans bounds the work of decoding a JPEG of this many pixels.
func checkScans(data []byte, pixels int) error {
	n, again := scans(data)
	if again {
		return fmt.Errorf("%w: a JPEG that is not progressive, with a second scan of a component", ErrCorrupt)
	}
	if n > maxScans || n*pixels > maxScanned {
		return fmt.Errorf("%w: a JPEG of %d scans, want at most %d", ErrTooLarge, n, max(1, min(maxScans, maxScanned/max(1, pixels))))
	}
	return nil
}

// scans counts the scans of a JPEG: the segments that begin with a marker SOS. again is true if a
// component has two in one that is not progressive: image/jpeg computes all its pixels for each.
func scans(data []byte) (n int, again bool) {
	const sof0, sof2, sos = 0xc0, 0xc2, 0xda
	frame := byte(0)
	seen := map[byte]bool{}
	segments(data, func(marker byte, body []byte) bool {
		switch {
		case marker >= sof0 && marker <= sof2 && frame == 0:
			frame = marker
		case marker == sos:
			n++
			for i := 0; frame != sof2 && len(body) > 0 && i < int(body[0]) && 1+2*i < len(body); i++ {
				component := body[1+2*i]
				again = again || seen[component]
				seen[component] = true
			}
		}
		return true
	})
	return n, again
}

// segments calls a function for each segment of a JPEG until it returns false. What is
// between a scan's header and the next marker is its data, in which 0xff is followed by 0 or
// by a restart marker (ITU-T T.81, B.1.1).
func segments(data []byte, visit func(marker byte, body []byte) bool) {
	const restart0, restart7, eoi = 0xd0, 0xd7, 0xd9
	for i := 2; i+3 < len(data); {
		if data[i] != 0xff {
			i++
			continue
		}
		switch marker := data[i+1]; {
		case marker == 0xff:
			i++
		case marker == 0 || marker >= restart0 && marker <= restart7:
			i += 2
		case marker == eoi:
			return
		default:
			end := i + 2 + int(data[i+2])<<8 + int(data[i+3])
			if !visit(marker, data[i+4:max(i+4, min(end, len(data)))]) {
				return
			}
			i = max(end, i+2)
		}
	}
}
