package grammar

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// value of JSON: nil, bool, json.Number, string, []value or *members.
type value any

// members of an object, in their order.
type members struct {
	// offset of the object in its source; 0 where it has none.
	offset int64
	names  []string
	of     map[string]value
}

func (m *members) get(name string) (value, bool) {
	v, ok := m.of[name]
	return v, ok
}

const maxValueDepth = 128

// Bytes that values take, about, with the room that lists and maps have to grow.
const (
	valueBytes, objectBytes, memberBytes = 64, 96, 112
	// firstBytes are those of an object's first members, for eight of which a map has room.
	firstBytes = 320
)

// parseValue reads one JSON value.
func parseValue(m *meter, source string) (value, error) {
	dec := json.NewDecoder(strings.NewReader(source))
	dec.UseNumber()
	v, err := readValue(m, dec, 0)
	if err == nil {
		if _, more := dec.Token(); more != io.EOF {
			err = fmt.Errorf("there is trailing data after the value")
		}
	}
	return v, err
}

func readValue(m *meter, dec *json.Decoder, depth int) (value, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("it is nested more than %d levels deep", maxValueDepth)
	}
	if !m.spend(readWork) || !m.hold(valueBytes) {
		return nil, m.err
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	d, ok := tok.(json.Delim)
	if !ok {
		if text, isText := tok.(string); isText {
			m.hold(len(text))
		}
		return tok, nil
	}
	if d == '[' {
		out := []value{}
		for dec.More() {
			v, err := readValue(m, dec, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err := dec.Token()
		return out, err
	}
	m.hold(objectBytes)
	out := &members{offset: dec.InputOffset(), of: map[string]value{}}
	for dec.More() {
		if !m.spend(readWork) {
			return nil, m.err
		}
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string)
		if _, twice := out.of[key]; twice {
			return nil, fmt.Errorf("duplicate member %q", key)
		}
		if len(out.names) == 0 {
			m.hold(firstBytes)
		}
		if !m.hold(memberBytes + len(key)) {
			return nil, m.err
		}
		v, err := readValue(m, dec, depth+1)
		if err != nil {
			return nil, err
		}
		out.names = append(out.names, key)
		out.of[key] = v
	}
	_, err = dec.Token()
	return out, err
}

// written is the value as compact JSON.
func written(v value) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return fmt.Sprint(v)
	case json.Number:
		return v.String()
	case string:
		return quoted(v)
	case []value:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = written(e)
		}
		return "[" + strings.Join(parts, ",") + "]"
	case *members:
		parts := make([]string, len(v.names))
		for i, n := range v.names {
			parts[i] = quoted(n) + ":" + written(v.of[n])
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	panic(fmt.Sprintf("JSON value of type %T", v))
}

// quoted is a text as JSON has it, with nothing escaped that need not be.
func quoted(s string) string {
	var b strings.Builder
	b.Grow(len(s) + 2)
	b.WriteByte('"')
	for _, c := range s {
		if c >= 0x20 && c != '"' && c != '\\' {
			b.WriteRune(c)
		} else if short, ok := shortEscapes[c]; ok {
			b.WriteByte('\\')
			b.WriteByte(short)
		} else {
			const hex = "0123456789abcdef"
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&0xf])
		}
	}
	b.WriteByte('"')
	return b.String()
}

// maxExponent of numbers that schemas compare.
const maxExponent = 400

// exact is a number without rounding; ok is false where it is out of bounds.
func exact(n json.Number) (*big.Rat, bool) {
	if len(n) > 1000 {
		return nil, false
	}
	if at := strings.IndexAny(string(n), "eE"); at >= 0 {
		e, err := strconv.Atoi(strings.TrimPrefix(string(n)[at+1:], "+"))
		if err != nil || e > maxExponent || e < -maxExponent {
			return nil, false
		}
	}
	return new(big.Rat).SetString(string(n))
}

// weight is the work of comparing a value with another, about. Numbers are compared exactly.
func weight(v value) int {
	n := 1
	switch v := v.(type) {
	case json.Number:
		n += 32 + len(v)
		if strings.ContainsAny(string(v), "eE") {
			n += maxExponent // digits
		}
	case string:
		n += len(v) / 4
	case []value:
		for _, e := range v {
			n += weight(e)
		}
	case *members:
		for _, name := range v.names {
			n += 1 + len(name)/4 + weight(v.of[name])
		}
	}
	return n
}

// digest is the same for equal values, and another for others: numbers by value, objects in any
// order of their members. It is of their text, which is never there at once: a number of 5 bytes
// may have 400 digits.
func digest(v value) (sum [sha256.Size]byte) {
	hash := sha256.New()
	w := bufio.NewWriterSize(hash, 64)
	writeCanonical(w, v)
	w.Flush()
	hash.Sum(sum[:0])
	return sum
}

func writeCanonical(w *bufio.Writer, v value) {
	switch v := v.(type) {
	case json.Number:
		if r, ok := exact(v); ok {
			w.WriteString(r.RatString())
			return
		}
		w.WriteString("~" + string(v))
	case []value:
		w.WriteByte('[')
		for _, e := range v {
			writeCanonical(w, e)
			w.WriteByte(',')
		}
		w.WriteByte(']')
	case *members:
		w.WriteByte('{')
		for _, name := range slices.Sorted(slices.Values(v.names)) {
			w.WriteString(quoted(name))
			w.WriteByte(':')
			writeCanonical(w, v.of[name])
			w.WriteByte(',')
		}
		w.WriteByte('}')
	default:
		w.WriteString(written(v))
	}
}

// equal compares as JSON Schema does: numbers by value, objects regardless of
// order.
func equal(a, b value) bool {
	switch a := a.(type) {
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		x, okx := exact(a)
		y, oky := exact(b)
		return okx && oky && x.Cmp(y) == 0 || a == b
	case []value:
		b, ok := b.([]value)
		return ok && slices.EqualFunc(a, b, func(x, y value) bool { return equal(x, y) })
	case *members:
		b, ok := b.(*members)
		if !ok || len(a.names) != len(b.names) {
			return false
		}
		for _, n := range a.names {
			v, there := b.of[n]
			if !there || !equal(a.of[n], v) {
				return false
			}
		}
		return true
	case nil, bool, string:
		switch b.(type) {
		case nil, bool, string:
			return a == b
		}
	}
	return false
}
