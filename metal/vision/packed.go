package vision

import (
	"image"
	"image/color"
	"image/draw"
)

// packed is how an image has its pixels next to one another: the size of a pixel in bytes,
// and where in it the channels are. Of 16 bits the upper 8 are read, as Pillow does; saturate
// prepares grey. An opaque image has no alpha, which is -1.
type packed struct{ size, red, green, blue, alpha int }

// packedOf returns the pixels of what the decoders return besides planes and palettes. They
// use image.RGBA and image.RGBA64 for opaque pixels. Reading pixels by their interface would
// allocate each one.
func packedOf(m image.Image) (pix []byte, stride int, of packed) {
	switch m := m.(type) {
	case *image.Gray:
		return m.Pix, m.Stride, packed{1, 0, 0, 0, -1}
	case *image.Gray16:
		return m.Pix, m.Stride, packed{2, 0, 0, 0, -1}
	case *image.RGBA:
		return m.Pix, m.Stride, packed{4, 0, 1, 2, -1}
	case *image.RGBA64:
		return m.Pix, m.Stride, packed{8, 0, 2, 4, -1}
	case *image.NRGBA:
		return m.Pix, m.Stride, packed{4, 0, 1, 2, 3}
	case *image.NRGBA64:
		return m.Pix, m.Stride, packed{8, 0, 2, 4, 6}
	}
	other := image.NewNRGBA(m.Bounds())
	draw.Draw(other, other.Rect, m, other.Rect.Min, draw.Src)
	return packedOf(other)
}

// grayOf16 reports whether a PNG has one channel of 16 bits by its header, which measure checked.
func grayOf16(data []byte) bool { return data[24] == 16 && data[25] == 0 }

// saturate moves grey values of 16 bits to the upper 8, those above 255 as 255: Pillow does
// not scale them when it makes colors of them, and the reference processors with it.
func saturate(m image.Image) {
	var pix []byte
	var size, channels int
	switch m := m.(type) {
	case *image.Gray16:
		pix, size, channels = m.Pix, 2, 1
	case *image.NRGBA64: // one of its values means transparency
		pix, size, channels = m.Pix, 8, 3
	}
	for ; len(pix) > 0; pix = pix[size:] {
		for i := range channels {
			if pix[2*i] == 0 {
				pix[2*i] = pix[2*i+1]
			} else {
				pix[2*i] = 255
			}
		}
	}
}

// row converts a row of pixels.
func (p packed) row(to, from []byte) {
	for ; len(from) > 0; to, from = to[3:], from[p.size:] {
		to[0], to[1], to[2] = from[p.red], from[p.green], from[p.blue]
		if p.alpha >= 0 {
			blend(to[:3], from[p.alpha])
		}
	}
}

// paletteRow converts a row of indexes of a palette.
func paletteRow(to, from []byte, palette color.Palette) {
	var all [256]color.NRGBA
	for i, c := range palette[:min(len(palette), len(all))] {
		all[i] = color.NRGBAModel.Convert(c).(color.NRGBA)
	}
	for i, at := range from {
		c := all[at]
		pixel := to[3*i:][:3]
		pixel[0], pixel[1], pixel[2] = c.R, c.G, c.B
		blend(pixel, c.A)
	}
}
