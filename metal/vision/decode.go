package vision

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"

	"golang.org/x/image/webp"
)

// Format is how an image is encoded.
type Format string

// The formats. Of an animated GIF the first frame is read.
const (
	PNG  Format = "image/png"
	JPEG Format = "image/jpeg"
	WebP Format = "image/webp"
	GIF  Format = "image/gif"
)

// sniff recognizes a format by the first bytes of an image, not by what a client
// calls it.
func sniff(data []byte) (Format, bool) {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return PNG, true
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return JPEG, true
	case len(data) >= 12 && bytes.Equal(data[:4], []byte("RIFF")) && bytes.Equal(data[8:12], []byte("WEBP")):
		return WebP, true
	case bytes.HasPrefix(data, []byte("GIF87a")), bytes.HasPrefix(data, []byte("GIF89a")):
		return GIF, true
	}
	return "", false
}

// Size returns the width and height of an image as it will be decoded, from its
// header alone. Errors are those of Decode.
func Size(data []byte, l Limits) (width, height int, err error) {
	_, width, height, err = measure(data, l)
	if err == nil && orientationOf(data).swaps() {
		width, height = height, width
	}
	return width, height, err
}

// measure checks the header of an image against the limits.
func measure(data []byte, l Limits) (f Format, width, height int, err error) {
	if len(data) > l.Bytes {
		return "", 0, 0, fmt.Errorf("%w: %d bytes, want at most %d", ErrTooLarge, len(data), l.Bytes)
	}
	f, ok := sniff(data)
	if !ok {
		return "", 0, 0, ErrFormat
	}
	r := bytes.NewReader(data)
	var c image.Config
	switch f {
	case PNG:
		c, err = png.DecodeConfig(r)
	case JPEG:
		c, err = jpeg.DecodeConfig(r)
	case WebP:
		if animated(data) {
			return f, 0, 0, fmt.Errorf("%w: an animated WebP", ErrFormat)
		}
		c, err = webp.DecodeConfig(r)
	case GIF:
		c, err = gif.DecodeConfig(r)
	}
	if err != nil {
		return f, 0, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := l.check(c.Width, c.Height); err != nil {
		return f, c.Width, c.Height, err
	}
	if f == JPEG {
		if err := checkScans(data, c.Width*c.Height); err != nil {
			return f, c.Width, c.Height, err
		}
	}
	if n := pixelBytes(f, data); n*float64(c.Width*c.Height) > BytesPerPixel*float64(l.Pixels) {
		return f, c.Width, c.Height, fmt.Errorf("%w: %d x %d pixels of this kind take %.1f bytes each while they are decoded, want at most %d bytes in all",
			ErrTooLarge, c.Width, c.Height, n, BytesPerPixel*l.Pixels)
	}
	return f, c.Width, c.Height, nil
}

// BytesPerPixel is what each pixel of the largest image takes while it is decoded. Images
// of other kinds, such as progressive ones, may have fewer pixels in the same memory.
const BytesPerPixel = 7

// pixelBytes returns what each pixel takes while it is decoded: what the decoder makes of
// it, 3 bytes of RGB, and 3 more if the image is turned.
func pixelBytes(f Format, data []byte) float64 {
	n := 4.0
	switch f {
	case PNG:
		const depth = 24 // the offset of the bit depth in IHDR
		if len(data) > depth && data[depth] == 16 {
			n = 8
		}
	case JPEG:
		n = jpegBytes(data)
	}
	n += 3
	if orientationOf(data) > 1 {
		n += 3
	}
	return n
}

// jpegBytes returns what image/jpeg takes for a pixel: the planes of the components, and
// for a progressive image their coefficients of 4 bytes; 4 more for CMYK.
func jpegBytes(data []byte) float64 {
	const baseline, progressive = 0xc0, 0xc2
	n := 3.0
	segments(data, func(marker byte, body []byte) bool {
		if marker < baseline || marker > progressive {
			return true
		}
		const header = 6 // precision, height, width, number of components
		var most, sum float64
		for i := header; i+2 < len(body); i += 3 {
			samples := float64(body[i+1]>>4) * float64(body[i+1]&15)
			most, sum = max(most, samples), sum+samples
		}
		planes := sum / max(1, most)
		n = planes
		if marker == progressive {
			n += 4 * planes
		}
		if len(body) >= header && body[header-1] == 4 {
			n += 4
		}
		return false
	})
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
	if n := scans(data); n > maxScans || n*pixels > maxScanned {
		return fmt.Errorf("%w: a JPEG of %d scans, want at most %d", ErrTooLarge, n, max(1, min(maxScans, maxScanned/max(1, pixels))))
	}
	return nil
}

// scans counts the scans of a JPEG: the segments that begin with a marker SOS.
func scans(data []byte) (n int) {
	const sos = 0xda
	segments(data, func(marker byte, _ []byte) bool {
		if marker == sos {
			n++
		}
		return true
	})
	return n
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

// Decode decodes an image within the limits, turns it upright as its EXIF
// orientation states, and puts transparent pixels on a white background. It ends
// with the context.
func Decode(ctx context.Context, data []byte, l Limits) (*RGB, error) {
	f, width, height, err := measure(data, l)
	if err != nil {
		return nil, err
	}
	r := cancellable{bytes.NewReader(data), ctx}
	var m image.Image
	switch f {
	case PNG:
		m, err = png.Decode(r)
	case JPEG:
		m, err = jpeg.Decode(r)
	case WebP:
		m, err = webp.Decode(r)
	case GIF:
		m, err = gif.Decode(r) // the first frame alone
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	// A decoder that found other sizes later than in the header would exceed what
	// the limits allow.
	if b := m.Bounds(); b.Dx() > width || b.Dy() > height {
		return nil, fmt.Errorf("%w: its header states %d x %d pixels, but it has %d x %d", ErrCorrupt, width, height, b.Dx(), b.Dy())
	}
	return orientationOf(data).apply(toRGB(m, f, width, height)), nil
}

// cancellable ends reads with a context.
type cancellable struct {
	*bytes.Reader
	ctx context.Context
}

func (c cancellable) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, c.ctx.Err()
	}
	return c.Reader.Read(p)
}

// toRGB converts decoded pixels. A GIF's first frame may cover a part of the
// image; the rest is transparent.
func toRGB(m image.Image, f Format, width, height int) *RGB {
	out := newRGB(width, height)
	b := m.Bounds()
	if b.Dx() < width || b.Dy() < height {
		for i := range out.Pix {
			out.Pix[i] = 255
		}
	}
	switch m := m.(type) {
	case *image.YCbCr:
		if f == WebP {
			webpRGB(out, m)
		} else {
			jpegRGB(out, m)
		}
	case *image.NYCbCrA:
		webpRGB(out, &m.YCbCr)
		for y := range height {
			row := out.row(y)
			for x := range width {
				blend(row[3*x:][:3], m.A[y*m.AStride+x])
			}
		}
	case *image.CMYK:
		cmykRGB(out, m)
	case *image.RGBA: // which decoders use for opaque pixels
		for y := range b.Dy() {
			opaque(out.row(b.Min.Y + y)[3*b.Min.X:], m.Pix[y*m.Stride:][:4*b.Dx()])
		}
	default:
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				c := straight(m.At(x, y))
				to := out.row(y)[3*x:][:3]
				to[0], to[1], to[2] = c.R, c.G, c.B
				blend(to, c.A)
			}
		}
	}
	return out
}

// blend puts a pixel of an alpha on white, rounded as Pillow's alpha_composite
// rounds.
func blend(pixel []byte, alpha byte) {
	if alpha == 255 {
		return
	}
	const bits = 7 // of precision
	for i, v := range pixel {
		t := uint32(v)*uint32(alpha)<<bits + 255*uint32(255-alpha)<<bits + 0x80<<bits
		pixel[i] = byte((t>>8 + t) >> 8 >> bits)
	}
}

// opaque copies pixels without their alpha.
func opaque(to, from []byte) {
	for len(from) > 0 {
		to[0], to[1], to[2] = from[0], from[1], from[2]
		to, from = to[3:], from[4:]
	}
}

// straight is a color that is not multiplied by its alpha, in 8 bits: the upper
// ones of 16, as Pillow reads them.
func straight(c color.Color) color.NRGBA {
	if c, ok := c.(color.NRGBA64); ok {
		return color.NRGBA{R: byte(c.R >> 8), G: byte(c.G >> 8), B: byte(c.B >> 8), A: byte(c.A >> 8)}
	}
	return color.NRGBAModel.Convert(c).(color.NRGBA)
}
