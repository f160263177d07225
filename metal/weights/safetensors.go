package weights

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/quant"
)

// Limits that no honest folder reaches. The format itself allows headers of
// 100 MB; those of real models stay below 10.
const (
	maxShardHeader  = 64 << 20
	maxHeaders      = 128 << 20 // of all files of a model together
	maxShardTensors = 1 << 17
	maxShardRank    = 8
)

// element is an element type of safetensors.
type element struct {
	name  string
	bytes int64
}

// elements are the types whose width is known. Only some can be weights.
func elements() []element {
	return []element{
		{"BF16", 2}, {"BOOL", 1}, {"C64", 8}, {"F16", 2}, {"F32", 4}, {"F64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
		{"I16", 2}, {"I32", 4}, {"I64", 8}, {"I8", 1}, {"U16", 2}, {"U32", 4}, {"U64", 8}, {"U8", 1},
	}
}

// float is the floating-point type that weights may have.
func (e element) float() (quant.Type, error) {
	switch e.name {
	case "BF16":
		return quant.BFloat16, nil
	case "F16":
		return quant.Float16, nil
	case "F32":
		return quant.Float32, nil
	}
	return 0, family.Unsupported("tensor type", e.name, []string{"BF16", "F16", "F32", "U32 with scales and biases"})
}

// shardTensor is one named array in a safetensors file.
type shardTensor struct {
	name  string
	kind  element
	shape []int64
	span  span
	// turned matrices lie with rows and columns exchanged. Where wide is not 0 they are
	// the columns from first on of rows as long as that.
	turned      bool
	first, wide int64
}

// allowance is what the headers of a model may still hold.
type allowance struct {
	bytes   int64
	tensors int
	memory  *account
}

func newAllowance(memory *account) *allowance {
	return &allowance{bytes: maxHeaders, tensors: maxShardTensors, memory: memory}
}

// flat has all dimensions but the last as one.
func (t shardTensor) flat() shardTensor {
	rows := int64(1)
	for _, n := range t.shape[:len(t.shape)-1] {
		rows *= n
	}
	t.shape = []int64{rows, t.shape[len(t.shape)-1]}
	return t
}

// readShard reads the header of a safetensors file of size bytes: 8 bytes of
// length, then JSON, then data without a gap to the end of the file
// (https://github.com/huggingface/safetensors, "Format"). Every tensor that it
// returns lies inside the file and none overlaps another. The header is taken
// from what is left.
func readShard(r io.ReaderAt, size int64, left *allowance) ([]shardTensor, error) {
	const lengthBytes = 8
	if size < lengthBytes {
		return nil, &formatError{ErrTruncated, size, "the length of the header"}
	}
	var head [lengthBytes]byte
	if err := readAt(r, head[:], 0, "the length of the header"); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > maxShardHeader {
		return nil, &formatError{ErrInvalid, 0, fmt.Sprintf("the header has %d bytes, want at most %d; is it a safetensors file?", n, maxShardHeader)}
	}
	if n > uint64(size-lengthBytes) {
		return nil, &formatError{ErrTruncated, lengthBytes, fmt.Sprintf("the header has %d bytes, but the file only %d", n, size)}
	}
	if left.bytes -= int64(n); left.bytes < 0 {
		return nil, &formatError{ErrInvalid, 0, fmt.Sprintf("the headers of all files have more than %d bytes in total", int64(maxHeaders))}
	}
	if err := left.memory.take(jsonMemory*int64(n), lengthBytes); err != nil {
		return nil, err
	}
	defer left.memory.free(jsonMemory * int64(n))
	text := make([]byte, n)
	if err := readAt(r, text, lengthBytes, "the header"); err != nil {
		return nil, err
	}
	if n == 0 || text[0] != '{' {
		return nil, &formatError{ErrInvalid, lengthBytes, "the header does not begin with {"}
	}
	p := shardParser{json: newJSONReader(text, lengthBytes), data: lengthBytes + int64(n), size: size, most: left.tensors, memory: left.memory}
	if err := p.header(); err != nil {
		return nil, err
	}
	left.tensors -= len(p.tensors)
	return p.tensors, p.place()
}

// readAt fills b; a file that is shorter than it was is ErrTruncated.
func readAt(r io.ReaderAt, b []byte, at int64, what string) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &formatError{ErrTruncated, at + int64(n), what}
	}
	return fmt.Errorf("read %s at byte %d: %w", what, at, err)
}

// shardParser turns a header into tensors.
type shardParser struct {
	json *jsonReader
	// data is where the data begins, size the length of the file.
	data, size int64
	most       int
	memory     *account
	tensors    []shardTensor
}

func (p *shardParser) header() error {
	err := p.json.object(func(key string) error {
		if key == "__metadata__" {
			return p.metadata()
		}
		if len(p.tensors) == p.most {
			return p.json.invalid(fmt.Sprintf("more than %d tensors", p.most))
		}
		if len(key) > maxNameBytes {
			return p.json.invalid(fmt.Sprintf("a name has %d bytes, want at most %d", len(key), maxNameBytes))
		}
		if err := p.memory.take(tensorMemory+keyMemory+int64(len(key)), p.json.at+p.json.dec.InputOffset()); err != nil {
			return err
		}
		t, err := p.tensor(key)
		p.tensors = append(p.tensors, t)
		return err
	})
	if err != nil {
		return err
	}
	return p.json.end()
}

// metadata is texts by key, and not used. MLX writes null where a program gives none, as
// mlx-lm does when it saves an adapter.
func (p *shardParser) metadata() error {
	t, err := p.json.token()
	switch {
	case err != nil || t == nil:
		return err
	case t != json.Delim('{'):
		return p.json.invalid("__metadata__ is not an object")
	}
	keys := 0
	return p.json.fields(func(key string) error {
		if keys++; keys > maxKeys {
			return p.json.invalid(fmt.Sprintf("__metadata__ has more than %d keys", maxKeys))
		}
		t, err := p.json.token()
		if _, ok := t.(string); err == nil && !ok {
			return p.json.invalid("__metadata__ " + family.Quoted(key) + " is not a string")
		}
		return err
	})
}

func (p *shardParser) tensor(name string) (shardTensor, error) {
	t := shardTensor{name: name}
	var begin, end int64
	seen := 0
	p.json.values = 0 // the number of tensors is bounded by itself
	err := p.json.object(func(key string) error {
		seen++
		v, err := p.json.value()
		if err != nil {
			return err
		}
		switch key {
		case "dtype":
			t.kind, err = p.element(name, v)
		case "shape":
			t.shape, err = p.numbers(name, key, v)
		case "data_offsets":
			begin, end, err = p.offsets(name, v)
		default:
			err = p.json.invalid(fmt.Sprintf("tensor %s has an unknown field %s", family.Quoted(name), family.Quoted(key)))
		}
		return err
	})
	if err != nil {
		return t, err
	}
	if seen != 3 {
		return t, p.json.invalid(fmt.Sprintf("tensor %s lacks dtype, shape or data_offsets", family.Quoted(name)))
	}
	want, ok := product(t.kind.bytes, t.shape)
	if !ok {
		return t, p.json.invalid(fmt.Sprintf("tensor %s has too many elements", family.Quoted(name)))
	}
	if want != end-begin {
		return t, p.json.invalid(fmt.Sprintf("tensor %s of shape %v and type %s needs %d bytes, but data_offsets specify %d", family.Quoted(name), t.shape, t.kind.name, want, end-begin))
	}
	t.span = span{offset: p.data + begin, bytes: want}
	return t, nil
}

func (p *shardParser) element(name string, v any) (element, error) {
	for _, e := range elements() {
		if v == e.name {
			return e, nil
		}
	}
	var known []string
	for _, e := range elements() {
		known = append(known, e.name)
	}
	text, ok := v.(string)
	if !ok {
		return element{}, p.json.invalid(fmt.Sprintf("dtype of tensor %s is not a string", family.Quoted(name)))
	}
	if len(text) > 32 {
		text = text[:32]
	}
	return element{}, fmt.Errorf("tensor %s: %w", family.Quoted(name), family.Unsupported("tensor type", text, known))
}

// numbers reads a short list of whole numbers from 0 on.
func (p *shardParser) numbers(name, key string, v any) ([]int64, error) {
	list, ok := v.([]any)
	if !ok || len(list) > maxShardRank {
		return nil, p.json.invalid(fmt.Sprintf("%s of tensor %s is not a list of at most %d numbers", key, family.Quoted(name), maxShardRank))
	}
	out := make([]int64, len(list))
	for i, v := range list {
		n, ok := family.WholeNumber(v)
		if !ok || n < 0 {
			return nil, p.json.invalid(fmt.Sprintf("%s of tensor %s contains %s, want non-negative whole numbers", key, family.Quoted(name), family.Shown(v)))
		}
		out[i] = n
	}
	return out, nil
}

// offsets reads where a tensor lies in the data.
func (p *shardParser) offsets(name string, v any) (begin, end int64, err error) {
	n, err := p.numbers(name, "data_offsets", v)
	if err != nil {
		return 0, 0, err
	}
	if len(n) != 2 || n[0] > n[1] {
		return 0, 0, p.json.invalid(fmt.Sprintf("data_offsets of tensor %s are %v, want a begin and an end", family.Quoted(name), n))
	}
	if n[1] > p.size-p.data {
		return 0, 0, &formatError{ErrTruncated, p.size, fmt.Sprintf("tensor %s ends at %d of the data, which has only %d bytes", family.Quoted(name), n[1], p.size-p.data)}
	}
	return n[0], n[1], nil
}

// product is bytes times all of shape; false where it cannot be counted.
func product(bytes int64, shape []int64) (int64, bool) {
	for _, n := range shape {
		if n != 0 && bytes > math.MaxInt64/n {
			return 0, false
		}
		bytes *= n
	}
	return bytes, true
}

// place checks that the tensors cover the data: none overlaps, no byte is left.
func (p *shardParser) place() error {
	order := make([]int, len(p.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return p.tensors[a].span.compare(p.tensors[b].span) })
	at, before := p.data, "the header"
	for _, i := range order {
		t := p.tensors[i]
		switch {
		case t.span.offset < at:
			return &formatError{ErrInvalid, t.span.offset, fmt.Sprintf("tensor %s overlaps %s", family.Quoted(t.name), before)}
		case t.span.offset > at:
			return &formatError{ErrInvalid, at, fmt.Sprintf("%d bytes between %s and tensor %s belong to no tensor", t.span.offset-at, before, family.Quoted(t.name))}
		}
		at, before = t.span.offset+t.span.bytes, "tensor "+family.Quoted(t.name)
	}
	if at != p.size {
		return &formatError{ErrInvalid, at, fmt.Sprintf("%d bytes after %s belong to no tensor", p.size-at, before)}
	}
	return nil
}
