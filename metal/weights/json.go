package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"metalfleet.dev/metalfleet/metal/family"
)

// Limits of the JSON of a model folder. They bound time and memory before a
// fault is found.
const (
	maxJSONDepth  = 32
	maxJSONValues = 1 << 18
	// valueMemory is what a value takes at most, about: one that is alone in its object.
	valueMemory = 192
)

// valuesMemory is what the values in a text take once they are read: each but the first follows one
// of these signs.
func valuesMemory(text []byte) int64 {
	n := 1
	for _, sign := range []string{"{", "[", ","} {
		n += bytes.Count(text, []byte(sign))
	}
	return valueMemory * int64(min(n, maxJSONValues))
}

// jsonReader reads JSON of a file that is not trusted, value by value: a key
// that comes twice, deep nesting and very many values are faults, and numbers
// stay as they are written.
type jsonReader struct {
	dec *json.Decoder
	// at is where the text begins in its file.
	at     int64
	depth  int
	values int
}

func newJSONReader(text []byte, at int64) *jsonReader {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return &jsonReader{dec: d, at: at}
}

func (j *jsonReader) invalid(what string) error {
	return &formatError{ErrInvalid, j.at + j.dec.InputOffset(), what}
}

func (j *jsonReader) token() (json.Token, error) {
	t, err := j.dec.Token()
	if err != nil {
		return nil, j.fault(err)
	}
	return t, nil
}

// fault describes an error of the decoder.
func (j *jsonReader) fault(err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return &formatError{ErrInvalid, j.at + syntax.Offset, "not JSON: " + syntax.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &formatError{ErrTruncated, j.at + j.dec.InputOffset(), "the JSON ends unexpectedly"}
	}
	return j.invalid("not JSON: " + err.Error())
}

// count counts a value.
func (j *jsonReader) count() error {
	if j.values++; j.values > maxJSONValues {
		return j.invalid("more than " + strconv.Itoa(maxJSONValues) + " values")
	}
	return nil
}

// skip reads any value and builds nothing of it.
func (j *jsonReader) skip() error {
	if err := j.count(); err != nil {
		return err
	}
	var text json.RawMessage
	if err := j.dec.Decode(&text); err != nil {
		return j.fault(err)
	}
	return nil
}

// object reads an object; field is called for each key and reads its value.
func (j *jsonReader) object(field func(key string) error) error {
	t, err := j.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return j.invalid("want an object")
	}
	return j.fields(field)
}

// fields reads what follows an opening brace.
func (j *jsonReader) fields(field func(key string) error) error {
	if j.depth++; j.depth > maxJSONDepth {
		return j.invalid("nested more than " + strconv.Itoa(maxJSONDepth) + " deep")
	}
	seen := map[string]struct{}{}
	for j.dec.More() {
		t, err := j.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return j.invalid("want a key")
		}
		if _, twice := seen[key]; twice {
			return j.invalid("key " + family.Quoted(key) + " appears twice")
		}
		seen[key] = struct{}{}
		if err := field(key); err != nil {
			return err
		}
	}
	_, err := j.token() // the closing brace
	j.depth--
	return err
}

// value reads any value: map[string]any, []any, string, json.Number, bool or
// nil.
func (j *jsonReader) value() (any, error) {
	if err := j.count(); err != nil {
		return nil, err
	}
	t, err := j.token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		return m, j.fields(func(key string) error {
			v, err := j.value()
			m[key] = v
			return err
		})
	case json.Delim('['):
		return j.list()
	}
	return t, nil
}

func (j *jsonReader) list() (any, error) {
	if j.depth++; j.depth > maxJSONDepth {
		return nil, j.invalid("nested more than " + strconv.Itoa(maxJSONDepth) + " deep")
	}
	var out []any
	for j.dec.More() {
		v, err := j.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := j.token()
	j.depth--
	return out, err
}

// end checks that only white space follows the last value.
func (j *jsonReader) end() error {
	if _, err := j.dec.Token(); !errors.Is(err, io.EOF) {
		return j.invalid("there is trailing data after the JSON value")
	}
	return nil
}
