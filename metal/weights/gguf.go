package weights

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"metalfleet.dev/metalfleet/metal/family"
)

// Limits that no honest file reaches. They bound what a hostile header can
// make the reader hold, on top of the size of the file itself.
const (
	maxHeaderBytes = 256 << 20
	maxKeys        = 1 << 16
	maxTensors     = 1 << 20
	maxKeyBytes    = 1 << 10
	maxNameBytes   = 1 << 10
	maxStringBytes = 16 << 20
	maxAlignment   = 1 << 16
	maxDimensions  = 4
	readAhead      = 1 << 20
	// headerAhead is the size of reads of a header: of a remote file at most
	// that much after the header is requested.
	headerAhead = 128 << 10
)

// Tensor is one named array in a file.
type Tensor struct {
	Name string
	// Shape lists the dimensions, the outermost first; the last one is
	// contiguous.
	Shape []int64
	Type  Type
	// Offset is absolute in the file.
	Offset int64
	Bytes  int64
}

// Header is everything a GGUF file says before its data.
type Header struct {
	Version   uint32
	Alignment int64
	// Metadata by key. Scalars are bool, string, float64, int64 (signed kinds)
	// or uint64 (unsigned kinds); arrays are []string, []bool, []int8, []uint8,
	// []int16, []uint16, []int32, []uint32, []int64, []uint64, []float32 or
	// []float64.
	Metadata map[string]any
	// Tensors in the order of the file.
	Tensors []Tensor
	// DataOffset is the offset of tensor data, Size the length of the file.
	DataOffset int64
	Size       int64

	byName map[string]int
}

// Tensor finds a tensor by its name in the file.
func (h *Header) Tensor(name string) (Tensor, bool) {
	i, ok := h.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return h.Tensors[i], true
}

// ReadHeader reads the header of a GGUF file of size bytes. It reads forward in
// large pieces and no more than one past the header, so that r may be a remote
// file. The result is consistent: every tensor lies inside the file, none
// overlaps another, and names are unique.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	h, _, err := NewBudget(HeaderMemory).ReadHeader(r, size)
	return h, err
}

// ReadHeader is ReadHeader within the budget, which has what the header takes back when release is
// called. The error is ErrBusy where others that are in use left too little.
func (b *Budget) ReadHeader(r io.ReaderAt, size int64) (_ *Header, release func(), err error) {
	limit := min(size, maxHeaderBytes)
	d := &decoder{memory: account{budget: b}, r: bufio.NewReaderSize(io.NewSectionReader(r, 0, limit), headerAhead), limit: limit, size: size}
	defer d.memory.close()
	h, err := d.header()
	if err != nil {
		return nil, nil, err
	}
	return h, d.memory.keep(), nil
}

func (d *decoder) header() (*Header, error) {
	magic, err := d.bytes(4, "magic")
	if err != nil || string(magic) != "GGUF" {
		if err != nil && !errors.Is(err, ErrTruncated) {
			return nil, err
		}
		return nil, &formatError{ErrNotGGUF, 0, "it does not begin with \"GGUF\""}
	}
	h := &Header{Size: d.size, Alignment: 32}
	if h.Version, err = d.u32("version"); err != nil {
		return nil, err
	}
	if h.Version != 2 && h.Version != 3 {
		return nil, family.Unsupported("GGUF version", fmt.Sprint(h.Version), []string{"2", "3"})
	}
	tensors, err := d.count("tensor count", maxTensors, 8+4+8+4+8)
	if err != nil {
		return nil, err
	}
	keys, err := d.count("metadata count", maxKeys, 8+4+1)
	if err != nil {
		return nil, err
	}
	if err := d.metadata(h, keys); err != nil {
		return nil, err
	}
	if err := d.tensors(h, tensors); err != nil {
		return nil, err
	}
	return h, d.place(h)
}

func (d *decoder) metadata(h *Header, n int) error {
	h.Metadata = make(map[string]any, min(n, 256))
	for range n {
		key, err := d.str("metadata key", maxKeyBytes)
		if err != nil {
			return err
		}
		if err := d.take(keyMemory); err != nil {
			return err
		}
		if _, dup := h.Metadata[key]; dup {
			return d.invalid("metadata key %q appears twice", key)
		}
		kind, err := d.u32("metadata type of " + key)
		if err != nil {
			return err
		}
		v, err := d.value(key, kind)
		if err != nil {
			return err
		}
		h.Metadata[key] = v
	}
	if a, ok := h.Metadata["general.alignment"]; ok {
		n, ok := a.(uint64)
		if !ok || n == 0 || n > maxAlignment || n&(n-1) != 0 {
			return d.invalid("general.alignment is %s, want a power of two up to %d", family.Shown(a), maxAlignment)
		}
		h.Alignment = int64(n)
	}
	return nil
}

func (d *decoder) tensors(h *Header, n int) error {
	h.Tensors = make([]Tensor, 0, min(n, 4096))
	h.byName = make(map[string]int, min(n, 4096))
	for range n {
		t, err := d.tensor()
		if err != nil {
			return err
		}
		bytes := int64(tensorMemory)
		if !t.encodes() {
			bytes += slotMemory
		}
		if err := d.take(bytes); err != nil {
			return err
		}
		if _, dup := h.byName[t.Name]; dup {
			return d.invalid("tensor %q appears twice", t.Name)
		}
		h.byName[t.Name] = len(h.Tensors)
		h.Tensors = append(h.Tensors, t)
	}
	return nil
}

// tensor reads one entry; its offset is still relative to the data.
func (d *decoder) tensor() (Tensor, error) {
	var t Tensor
	var err error
	if t.Name, err = d.str("tensor name", maxNameBytes); err != nil {
		return t, err
	}
	dims, err := d.u32("dimensions of " + t.Name)
	if err != nil {
		return t, err
	}
	if dims == 0 || dims > maxDimensions {
		return t, d.invalid("tensor %q has %d dimensions, want 1 to %d", t.Name, dims, maxDimensions)
	}
	t.Shape = make([]int64, dims)
	rows := int64(1)
	for i := range dims {
		v, err := d.u64("shape of " + t.Name)
		if err != nil {
			return t, err
		}
		if v == 0 || v > math.MaxInt32 {
			return t, d.invalid("tensor %q has a dimension of %d", t.Name, v)
		}
		t.Shape[dims-1-i] = int64(v) // the file has the contiguous one first
		if i > 0 {
			if rows > math.MaxInt64/int64(v) {
				return t, d.invalid("tensor %q has too many elements", t.Name)
			}
			rows *= int64(v)
		}
	}
	kind, err := d.u32("type of " + t.Name)
	if err != nil {
		return t, err
	}
	offset, err := d.u64("offset of " + t.Name)
	if err != nil {
		return t, err
	}
	t.Type = Type(kind)
	if _, ok := t.Type.info(); !ok {
		return t, fmt.Errorf("tensor %q: %w", t.Name, family.Unsupported("tensor type", t.Type.String(), supportedTypes()))
	}
	row, ok := t.Type.RowBytes(t.Shape[dims-1])
	if !ok {
		return t, d.invalid("tensor %q: %d elements are not a multiple of the block size of %v", t.Name, t.Shape[dims-1], t.Type)
	}
	if rows > d.size/row {
		return t, &formatError{ErrTruncated, d.at, fmt.Sprintf("tensor %q does not fit into a file of %d bytes", t.Name, d.size)}
	}
	if offset > uint64(d.size) {
		return t, &formatError{ErrTruncated, d.at, fmt.Sprintf("tensor %q begins at %d, after the end of the file", t.Name, offset)}
	}
	t.Bytes, t.Offset = rows*row, int64(offset)
	return t, nil
}

// place turns relative offsets into absolute ones and checks that the tensors
// lie apart and inside the file.
func (d *decoder) place(h *Header) error {
	h.DataOffset = (d.at + h.Alignment - 1) / h.Alignment * h.Alignment
	order := make([]int, len(h.Tensors))
	for i := range h.Tensors {
		t := &h.Tensors[i]
		order[i] = i
		if t.Offset%h.Alignment != 0 {
			return d.invalid("tensor %q begins at %d, not a multiple of %d", t.Name, t.Offset, h.Alignment)
		}
		t.Offset += h.DataOffset
		if t.Offset > d.size-t.Bytes {
			return &formatError{ErrTruncated, d.size, fmt.Sprintf("tensor %q needs bytes %d to %d, the file has %d", t.Name, t.Offset, t.Offset+t.Bytes, d.size)}
		}
	}
	sort.Slice(order, func(a, b int) bool { return h.Tensors[order[a]].Offset < h.Tensors[order[b]].Offset })
	for i := 1; i < len(order); i++ {
		a, b := h.Tensors[order[i-1]], h.Tensors[order[i]]
		if a.Offset+a.Bytes > b.Offset {
			return d.invalid("tensors %q and %q overlap", a.Name, b.Name)
		}
	}
	return nil
}

// decoder reads little-endian values and knows how much can still come.
type decoder struct {
	r *bufio.Reader
	// at is the position, limit the end of what a header may use, size the
	// length of the file.
	at, limit, size int64
	scratch         [8]byte
	text            []byte // of the last string
	memory          account
}

func (d *decoder) invalid(format string, args ...any) error {
	return &formatError{ErrInvalid, d.at, fmt.Sprintf(format, args...)}
}

// need refuses to read n bytes that cannot be there.
func (d *decoder) need(n uint64, what string) error {
	if left := uint64(d.limit - d.at); n > left {
		if d.limit < d.size {
			return d.invalid("%s: the header is larger than %d bytes", what, int64(maxHeaderBytes))
		}
		return &formatError{ErrTruncated, d.at, fmt.Sprintf("%s needs %d bytes, but only %d are left", what, n, left)}
	}
	return nil
}

func (d *decoder) fill(b []byte, what string) error {
	if err := d.need(uint64(len(b)), what); err != nil {
		return err
	}
	n, err := io.ReadFull(d.r, b)
	d.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &formatError{ErrTruncated, d.at, what}
	}
	if err != nil {
		return fmt.Errorf("read %s at byte %d: %w", what, d.at, err)
	}
	return nil
}

func (d *decoder) bytes(n int, what string) ([]byte, error) {
	if err := d.need(uint64(n), what); err != nil {
		return nil, err
	}
	if err := d.take(int64(n)); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	return b, d.fill(b, what)
}

func (d *decoder) u32(what string) (uint32, error) {
	err := d.fill(d.scratch[:4], what)
	return binary.LittleEndian.Uint32(d.scratch[:4]), err
}

func (d *decoder) u64(what string) (uint64, error) {
	err := d.fill(d.scratch[:8], what)
	return binary.LittleEndian.Uint64(d.scratch[:8]), err
}

// count reads how many entries follow, each of at least entry bytes.
func (d *decoder) count(what string, most int, entry uint64) (int, error) {
	n, err := d.u64(what)
	if err != nil {
		return 0, err
	}
	if n > uint64(most) {
		return 0, d.invalid("%s is %d, want at most %d", what, n, most)
	}
	return int(n), d.need(n*entry, what)
}

func (d *decoder) str(what string, most int) (string, error) {
	n, err := d.u64(what)
	if err != nil {
		return "", err
	}
	if n > uint64(most) {
		return "", d.invalid("%s is %d bytes long, want at most %d", what, n, most)
	}
	if err := d.need(n, what); err != nil {
		return "", err
	}
	if err := d.take(int64(n)); err != nil {
		return "", err
	}
	if uint64(cap(d.text)) < n {
		d.text = make([]byte, n)
	}
	d.text = d.text[:n]
	err = d.fill(d.text, what)
	return string(d.text), err
}
