package weights

import (
	"encoding/binary"
	"math"
)

// The kinds of metadata values, by their number in GGUF.
const (
	kindUint8 uint32 = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

func kindBytes(kind uint32) int {
	switch kind {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	}
	return 0
}

func (d *decoder) value(key string, kind uint32) (any, error) {
	switch kind {
	case kindString:
		return d.str(key, maxStringBytes)
	case kindArray:
		return d.array(key)
	}
	n := kindBytes(kind)
	if n == 0 {
		return nil, d.invalid("metadata key %q has unknown type %d", key, kind)
	}
	b := d.scratch[:8]
	clear(b)
	if err := d.fill(b[:n], key); err != nil {
		return nil, err
	}
	u := binary.LittleEndian.Uint64(b)
	switch kind {
	case kindInt8:
		return int64(int8(u)), nil
	case kindInt16:
		return int64(int16(u)), nil
	case kindInt32:
		return int64(int32(u)), nil
	case kindInt64:
		return int64(u), nil
	case kindFloat32:
		return float64(math.Float32frombits(uint32(u))), nil
	case kindFloat64:
		return math.Float64frombits(u), nil
	case kindBool:
		if u > 1 {
			return nil, d.invalid("metadata key %q: %d is not a boolean", key, u)
		}
		return u == 1, nil
	}
	return u, nil
}

func (d *decoder) array(key string) (any, error) {
	kind, err := d.u32("element type of " + key)
	if err != nil {
		return nil, err
	}
	n, err := d.u64("length of " + key)
	if err != nil {
		return nil, err
	}
	if kind == kindString {
		return d.strings(key, n)
	}
	size := kindBytes(kind)
	if size == 0 {
		return nil, d.invalid("metadata key %q is an array of unsupported type %d", key, kind)
	}
	if n > maxHeaderBytes {
		return nil, d.invalid("metadata key %q has %d elements", key, n)
	}
	if err := d.need(n*uint64(size), key); err != nil {
		return nil, err
	}
	if err := d.take(int64(n) * int64(size)); err != nil { // converted, besides the bytes
		return nil, err
	}
	b, err := d.bytes(int(n)*size, key)
	if err != nil {
		return nil, err
	}
	return d.elements(key, kind, b)
}

func (d *decoder) elements(key string, kind uint32, b []byte) (any, error) {
	le := binary.LittleEndian
	switch kind {
	case kindUint8:
		return b, nil
	case kindInt8:
		return convert(b, 1, func(b []byte) int8 { return int8(b[0]) }), nil
	case kindUint16:
		return convert(b, 2, le.Uint16), nil
	case kindInt16:
		return convert(b, 2, func(b []byte) int16 { return int16(le.Uint16(b)) }), nil
	case kindUint32:
		return convert(b, 4, le.Uint32), nil
	case kindInt32:
		return convert(b, 4, func(b []byte) int32 { return int32(le.Uint32(b)) }), nil
	case kindFloat32:
		return convert(b, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }), nil
	case kindUint64:
		return convert(b, 8, le.Uint64), nil
	case kindInt64:
		return convert(b, 8, func(b []byte) int64 { return int64(le.Uint64(b)) }), nil
	case kindFloat64:
		return convert(b, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }), nil
	}
	out := make([]bool, len(b))
	for i, v := range b {
		if v > 1 {
			return nil, d.invalid("metadata key %q: %d is not a boolean", key, v)
		}
		out[i] = v == 1
	}
	return out, nil
}

func convert[T any](b []byte, size int, get func([]byte) T) []T {
	out := make([]T, len(b)/size)
	for i := range out {
		out[i] = get(b[i*size:])
	}
	return out
}

func (d *decoder) strings(key string, n uint64) ([]string, error) {
	if n > maxHeaderBytes {
		return nil, d.invalid("metadata key %q has %d elements", key, n)
	}
	if err := d.need(n*8, key); err != nil { // each has at least its length
		return nil, err
	}
	if err := d.take(stringMemory * int64(n)); err != nil {
		return nil, err
	}
	out := make([]string, n)
	for i := range out {
		s, err := d.str(key, maxStringBytes)
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// Text returns a string value.
func (h *Header) Text(key string) (string, bool) {
	s, ok := h.Metadata[key].(string)
	return s, ok
}

// Integer returns a whole number of any kind.
func (h *Header) Integer(key string) (int64, bool) {
	switch v := h.Metadata[key].(type) {
	case uint64:
		return int64(v), v <= math.MaxInt64
	case int64:
		return v, true
	}
	return 0, false
}

// Float returns a floating-point value.
func (h *Header) Float(key string) (float64, bool) {
	f, ok := h.Metadata[key].(float64)
	return f, ok
}
