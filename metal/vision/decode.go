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
	"runtime"
	"slices"

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
		if !partitionsEnd(data) {
			return f, 0, 0, fmt.Errorf("%w: it ends before its pixels do", ErrCorrupt)
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
	n, codes := pixelBytes(f, data), codeBytes(f, data, c.Width, c.Height)
	if n*float64(c.Width*c.Height)+codes > BytesPerPixel*float64(l.Pixels) {
		return f, c.Width, c.Height, fmt.Errorf("%w: %d x %d pixels of this kind take %.1f bytes each while they are decoded, and its codes %.0f bytes, want at most %d bytes in all",
			ErrTooLarge, c.Width, c.Height, n, codes, BytesPerPixel*l.Pixels)
	}
	return f, c.Width, c.Height, nil
}

// collectPixels is the size from which garbage is collected before an image is decoded: with
// that of the image before it, it would take more memory than is counted.
const collectPixels = 1 << 20

// Decode decodes an image within the limits, turns it upright as its EXIF
// orientation states, and puts transparent pixels on a white background. It ends
// with the context.
func Decode(ctx context.Context, data []byte, l Limits) (*RGB, error) {
	f, width, height, err := measure(data, l)
	if err != nil {
		return nil, err
	}
	if width*height > collectPixels {
		runtime.GC()
	}
	r := cancellable{bytes.NewReader(data), ctx}
	var m image.Image
	switch f {
	case PNG:
		if m, err = png.Decode(r); err == nil && grayOf16(data) {
			saturate(m)
		}
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
// image; the rest has the transparent color of its palette or, as in Pillow, the first.
func toRGB(m image.Image, f Format, width, height int) *RGB {
	out := newRGB(width, height)
	b := m.Bounds()
	if p, ok := m.(*image.Paletted); ok && (b.Dx() < width || b.Dy() < height) {
		rest := max(0, slices.IndexFunc(p.Palette, func(c color.Color) bool { _, _, _, alpha := c.RGBA(); return alpha == 0 }))
		paletteRow(out.Pix, bytes.Repeat([]byte{byte(rest)}, width*height), p.Palette)
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
	case *image.Paletted:
		for y := range b.Dy() {
			paletteRow(out.row(b.Min.Y + y)[3*b.Min.X:], m.Pix[y*m.Stride:][:b.Dx()], m.Palette)
		}
	default:
		pix, stride, of := packedOf(m)
		for y := range b.Dy() {
			of.row(out.row(b.Min.Y + y)[3*b.Min.X:], pix[y*stride:][:of.size*b.Dx()])
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
