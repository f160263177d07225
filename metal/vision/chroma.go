package vision

import "image"

// jpegRGB converts decoded JPEG planes as libjpeg-turbo does by default: chroma is
// interpolated ("fancy upsampling", jdsample.c), and converted in 16 bits of
// fractions (jdcolor.c).
func jpegRGB(out *RGB, m *image.YCbCr) {
	w, h := out.Width, out.Height
	cb, cr := make([]byte, w+2), make([]byte, w+2) // a pair more, for odd widths
	for y := range h {
		jpegChroma(cb, m.Cb, m, y, w, h)
		jpegChroma(cr, m.Cr, m, y, w, h)
		to := out.row(y)
		for x, v := range m.Y[y*m.YStride:][:w] {
			luma, b, r := int32(v), int32(cb[x])-128, int32(cr[x])-128
			to[3*x] = clampByte(luma + (91881*r+1<<15)>>16)
			to[3*x+1] = clampByte(luma + (-22554*b-46802*r+1<<15)>>16)
			to[3*x+2] = clampByte(luma + (116130*b+1<<15)>>16)
		}
	}
}

// jpegChroma interpolates one row of a chroma plane of an image of w x h pixels.
func jpegChroma(to, plane []byte, m *image.YCbCr, y, w, h int) {
	across, down := 1, 1
	switch m.SubsampleRatio {
	case image.YCbCrSubsampleRatio422:
		across = 2
	case image.YCbCrSubsampleRatio420:
		across, down = 2, 2
	case image.YCbCrSubsampleRatio440:
		down = 2
	case image.YCbCrSubsampleRatio411:
		across = 4
	case image.YCbCrSubsampleRatio410:
		across, down = 4, 2
	}
	width, height := (w+across-1)/across, (h+down-1)/down
	near := plane[y/down*m.CStride:][:width]
	if down == 2 && across <= 2 && (width > 2 || across == 1) {
		other := y/2 - 1 + y%2*2 // the row before for even rows, after for odd ones
		far := plane[min(height-1, max(0, other))*m.CStride:][:width]
		if across == 1 {
			for x, v := range near {
				to[x] = byte((3*int(v) + int(far[x]) + 1 + y%2) >> 2)
			}
			return
		}
		interpolate2D(to, near, far)
		return
	}
	if across == 2 && width > 2 {
		interpolate(to, near)
		return
	}
	for x := range w {
		to[x] = near[x/across]
	}
}

// interpolate doubles a row: each value is 3/4 of the nearer one and 1/4 of the other.
func interpolate(to, row []byte) {
	last := len(row) - 1
	for i, v := range row {
		before, after := row[max(0, i-1)], row[min(last, i+1)]
		to[2*i] = byte((3*int(v) + int(before) + 1) >> 2)
		to[2*i+1] = byte((3*int(v) + int(after) + 2) >> 2)
	}
	to[0], to[2*last+1] = row[0], row[last]
}

// interpolate2D doubles a row that lies between near and far, a quarter of the way.
func interpolate2D(to, near, far []byte) {
	last := len(near) - 1
	sum := func(i int) int { return 3*int(near[i]) + int(far[i]) }
	for i := range near {
		v := sum(i)
		to[2*i] = byte((3*v + sum(max(0, i-1)) + 8) >> 4)
		to[2*i+1] = byte((3*v + sum(min(last, i+1)) + 7) >> 4)
	}
}

// webpRGB converts decoded WebP planes as libwebp does by default: chroma of a
// quarter of the pixels is interpolated (src/dsp/upsampling.c), and luma and chroma have
// the reduced range of BT.601 (src/dsp/yuv.h).
func webpRGB(out *RGB, m *image.YCbCr) {
	w, h := out.Width, out.Height
	for y := range h {
		near := y / 2
		far := min((h+1)/2-1, max(0, near-1+y%2*2))
		to := out.row(y)
		for x, v := range m.Y[y*m.YStride:][:w] {
			u := webpChroma(m.Cb[near*m.CStride:], m.Cb[far*m.CStride:], x, w)
			v2 := webpChroma(m.Cr[near*m.CStride:], m.Cr[far*m.CStride:], x, w)
			webpPixel(to[3*x:][:3], int32(v), u, v2)
		}
	}
}

// webpChroma interpolates one value of a row that lies between near and far, a
// quarter of the way: 9/16, 3/16, 3/16 and 1/16 of the nearest four, with the
// roundings of libwebp.
func webpChroma(near, far []byte, x, w int) int32 {
	at := x / 2
	other := at - 1 + x%2*2
	if other < 0 || other > (w+1)/2-1 {
		return (3*int32(near[at]) + int32(far[at]) + 2) >> 2
	}
	a, b := int32(near[at]), int32(near[other])
	c, d := int32(far[at]), int32(far[other])
	// libwebp weighs a diagonal twice, then averages it with the nearest one.
	diagonal := (a + b + c + d + 8 + 2*(b+c)) >> 3
	return (diagonal + a) >> 1
}

// webpPixel converts one pixel.
func webpPixel(to []byte, y, u, v int32) {
	high := func(v, by int32) int32 { return v * by >> 8 }
	clip := func(v int32) byte { return clampByte(v >> 6) }
	to[0] = clip(high(y, 19077) + high(v, 26149) - 14234)
	to[1] = clip(high(y, 19077) - high(u, 6419) - high(v, 13320) + 8708)
	to[2] = clip(high(y, 19077) + high(u, 33050) - 17685)
}

// cmykRGB converts as Pillow does.
func cmykRGB(out *RGB, m *image.CMYK) {
	for y := range out.Height {
		to := out.row(y)
		for x := range out.Width {
			p := m.Pix[y*m.Stride+4*x:][:4]
			white := int32(255 - p[3])
			for c := range 3 {
				t := int32(p[c])*white + 128
				to[3*x+c] = clampByte(white - (t>>8+t)>>8)
			}
		}
	}
}
