// Package vision turns encoded images into the patches that a vision tower reads.
//
// It owns three steps. Decode checks an image against Limits before any pixel is
// decoded, and returns upright RGB pixels with the values that Pillow decodes.
// Resize scales pixels as Pillow does, bit for bit. A Processor, which is data of
// a model's preprocessor_config.json, chooses the size, normalizes the pixels and
// cuts them into patches, in the order that its tower expects.
//
// It refuses unknown formats, images that exceed the limits, and processor
// settings that would change the result and are not supported. It computes on the
// host and holds no tensor: package nn runs the tower.
//
// Start reading at Decode, then Processor.
package vision

import (
	"errors"
	"fmt"
)

// Sentinels that callers branch on.
var (
	// ErrFormat means that the bytes are not an image in a supported format.
	ErrFormat = errors.New("not an image in a supported format (PNG, JPEG, WebP, GIF)")
	// ErrTooLarge means that an image exceeds the limits.
	ErrTooLarge = errors.New("the image is too large")
	// ErrCorrupt means that an image of a known format cannot be decoded.
	ErrCorrupt = errors.New("the image is damaged")
	// ErrShape means that the processor has no size for an image of such a shape.
	ErrShape = errors.New("the image has an unsupported shape")
)

// Limits of one encoded image. All are checked before pixels are decoded.
type Limits struct {
	// Bytes of the encoded image.
	Bytes int
	// Pixels of the decoded image, and Side its longest side.
	Pixels, Side int
}

// DefaultLimits accept photos of current cameras. Decoding takes at most BytesPerPixel for
// each of Pixels for a moment: 175 MiB.
func DefaultLimits() Limits { return Limits{Bytes: 20 << 20, Pixels: 25 << 20, Side: 16 << 10} }

// check refuses an image by its header alone.
func (l Limits) check(width, height int) error {
	switch {
	case width < 1 || height < 1:
		return fmt.Errorf("%w: its header states %d x %d pixels", ErrCorrupt, width, height)
	case width > l.Side || height > l.Side:
		return fmt.Errorf("%w: %d x %d pixels, want at most %d on each side", ErrTooLarge, width, height, l.Side)
	case width*height > l.Pixels:
		return fmt.Errorf("%w: %d x %d pixels, want at most %d in total", ErrTooLarge, width, height, l.Pixels)
	}
	return nil
}

// RGB is a decoded image: rows of pixels from the top, each pixel as red, green
// and blue.
type RGB struct {
	Width, Height int
	Pix           []byte
}

func newRGB(width, height int) *RGB {
	return &RGB{Width: width, Height: height, Pix: make([]byte, 3*width*height)}
}

// row is one row of pixels.
func (m *RGB) row(y int) []byte { return m.Pix[3*y*m.Width:][:3*m.Width] }
