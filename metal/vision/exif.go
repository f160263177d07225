package vision

import (
	"bytes"
	"encoding/binary"
)

// orientation is how an image is stored, as EXIF numbers it: 1 is upright, and 0
// means that the image does not contain one.
type orientation int

// swaps reports whether rows of the stored image are columns of the upright one.
func (o orientation) swaps() bool { return o >= 5 && o <= 8 }

// apply turns an image upright.
func (o orientation) apply(m *RGB) *RGB {
	if o < 2 || o > 8 {
		return m
	}
	w, h := m.Width, m.Height
	if o.swaps() {
		w, h = h, w
	}
	out := newRGB(w, h)
	for y := range h {
		row := out.row(y)
		for x := range w {
			fx, fy := o.source(x, y, m.Width, m.Height)
			copy(row[3*x:][:3], m.Pix[3*(fy*m.Width+fx):])
		}
	}
	return out
}

// source is the stored pixel of an upright one, in a stored image of w x h.
func (o orientation) source(x, y, w, h int) (int, int) {
	switch o {
	case 2:
		return w - 1 - x, y
	case 3:
		return w - 1 - x, h - 1 - y
	case 4:
		return x, h - 1 - y
	case 5:
		return y, x
	case 6:
		return y, h - 1 - x
	case 7:
		return w - 1 - y, h - 1 - x
	case 8:
		return w - 1 - y, x
	}
	return x, y
}

// orientationOf reads the orientation of an image; 0 if there is none.
func orientationOf(data []byte) orientation {
	f, _ := sniff(data)
	switch f {
	case JPEG:
		return jpegOrientation(data)
	case PNG:
		for c := range chunks(data[8:], binary.BigEndian, 4, 4) {
			switch c.name {
			case "eXIf":
				return tiffOrientation(c.data)
			case "IEND":
				return 0
			}
		}
	case WebP:
		for c := range chunks(data[12:], binary.LittleEndian, 0, 0) {
			if c.name == "EXIF" {
				return tiffOrientation(bytes.TrimPrefix(c.data, []byte("Exif\x00\x00")))
			}
		}
	}
	return 0
}

// animated reports whether a WebP file has several frames.
func animated(data []byte) bool {
	for c := range chunks(data[12:], binary.LittleEndian, 0, 0) {
		if c.name == "ANIM" || c.name == "ANMF" {
			return true
		}
	}
	return false
}

// chunk is a named part of a PNG or WebP file.
type chunk struct {
	name string
	data []byte
	// cut is true if the file ends before the chunk does.
	cut bool
}

// chunks lists the parts of a file: in PNG the length comes first and a checksum of
// trailer bytes last, in WebP the name comes first and data has an even length.
func chunks(data []byte, order binary.ByteOrder, nameAt, trailer int) func(yield func(chunk) bool) {
	return func(yield func(chunk) bool) {
		for len(data) >= 8 {
			length := uint64(order.Uint32(data[4-nameAt:]))
			c := chunk{name: string(data[nameAt : nameAt+4])}
			data = data[8:]
			if length > uint64(len(data)) {
				if nameAt != 0 {
					return
				}
				length, c.cut = uint64(len(data)), true // package webp reads what there is
			}
			c.data = data[:length]
			if !yield(c) {
				return
			}
			skip := length + uint64(trailer)
			if trailer == 0 {
				skip += length % 2
			}
			data = data[min(skip, uint64(len(data))):]
		}
	}
}

// jpegOrientation reads the first EXIF segment before the pixels.
func jpegOrientation(data []byte) orientation {
	const exif, scan, end = 0xe1, 0xda, 0xd9
	for at := 2; at+4 <= len(data) && data[at] == 0xff; {
		marker := data[at+1]
		if marker == 0xff { // padding
			at++
			continue
		}
		if marker == scan || marker == end {
			return 0
		}
		length := int(binary.BigEndian.Uint16(data[at+2:]))
		if length < 2 || at+2+length > len(data) {
			return 0
		}
		if body, ok := bytes.CutPrefix(data[at+4:at+2+length], []byte("Exif\x00\x00")); marker == exif && ok {
			return tiffOrientation(body)
		}
		at += 2 + length
	}
	return 0
}

// tiffOrientation reads tag 0x112 of the first directory.
func tiffOrientation(data []byte) orientation {
	if len(data) < 8 {
		return 0
	}
	var order binary.ByteOrder = binary.BigEndian
	if data[0] == 'I' {
		order = binary.LittleEndian
	}
	at := uint64(order.Uint32(data[4:]))
	if at+2 > uint64(len(data)) {
		return 0
	}
	entries := data[at+2:]
	for range order.Uint16(data[at:]) {
		if len(entries) < 12 {
			return 0
		}
		const tag, short = 0x112, 3
		if order.Uint16(entries) == tag && order.Uint16(entries[2:]) == short {
			return orientation(order.Uint16(entries[8:]))
		}
		entries = entries[12:]
	}
	return 0
}
