package tinymodel

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"metalfleet.dev/metalfleet/metal/quant"
)

// part is one tensor of a safetensors file: a matrix that is quantised has
// three of them.
type part struct {
	name, dtype    string
	shape          []int
	rows, rowBytes int
	write          func(io.Writer) error
}

func (p part) bytes() int64 { return int64(p.rows) * int64(p.rowBytes) }

func dtypeName(t quant.Type) string {
	switch t {
	case quant.Float16:
		return "F16"
	case quant.BFloat16:
		return "BF16"
	}
	return "F32"
}

// parts lists how t is stored in a format.
func (t tensor) parts(f quant.Format, seed uint64) ([]part, error) {
	sizes, err := f.Sizes(t.cols)
	if err != nil || f.Mode == quant.Symmetric {
		return nil, fmt.Errorf("tiny model: %s of %d columns cannot be %v", t.path, t.cols, f)
	}
	if t.published && !t.bias {
		f = quant.BlockFloats()[0]
		if sizes, err = f.Sizes(t.cols); err != nil {
			return nil, fmt.Errorf("tiny model: %s: %w", t.path, err)
		}
		return t.blocks(t.smallFloats(f, sizes, seed)), nil
	}
	if f.Mode == quant.Dense {
		return t.dense(f.Type, sizes.Raw, seed), nil
	}
	if f.BlockFloat() {
		return t.smallFloats(f, sizes, seed), nil
	}
	groups, words := t.cols/f.Group, t.cols*f.Bits/32
	name := t.path + ".weight"
	return []part{
		{name: name, dtype: "U32", shape: t.shape(words), rows: t.all(), rowBytes: sizes.Raw, write: func(w io.Writer) error {
			rng := newRandom(seed, name)
			return stream(w, t.all(), sizes.Raw, t.silent, rng.words)
		}},
		t.scales(f, ".scales", groups, sizes.Scales, seed),
		t.scales(f, ".biases", groups, sizes.Biases, seed),
	}, nil
}

// dense is one part, or one for each expert, as Hugging Face's folders have them. The
// matrices of heads are one, as in mlx-lm's folders.
func (t tensor) dense(kind quant.Type, rowBytes int, seed uint64) []part {
	if t.stack == 0 || !strings.Contains(t.path, ".switch_mlp.") {
		return []part{t.floats(kind, rowBytes, seed)}
	}
	var out []part
	for i := range t.stack {
		one := t
		one.stack, one.path = 0, strings.Replace(t.path, ".switch_mlp.", fmt.Sprintf(".experts.%d.", i), 1)
		out = append(out, one.floats(kind, rowBytes, seed))
	}
	return out
}

func (t tensor) floats(kind quant.Type, rowBytes int, seed uint64) part {
	p := part{name: t.path + t.suffix(), dtype: dtypeName(kind), shape: t.shape(t.cols), rows: max(1, t.all(), t.table), rowBytes: rowBytes}
	name, rows := p.name, p.rows
	p.write = func(w io.Writer) error {
		rng := newRandom(seed, name)
		return stream(w, rows, rowBytes, t.silent, t.floatsWith(kind, t.values.floats(kind, &rng), rowBytes))
	}
	return p
}

// scales is the part of scales or that of biases: scales vary by a quarter
// from group to group, and zero lies near the middle of the levels. There are
// few different ones, so that each is rounded only once.
func (t tensor) scales(f quant.Format, suffix string, groups, rowBytes int, seed uint64) part {
	levels, size := float64(int(1)<<f.Bits), f.Type.Bytes()
	scale := t.values.std / math.Sqrt((levels*levels-1)/12)
	table := make([]byte, 256*size)
	for i := range 256 {
		v := scale * (0.75 + float64(i>>4)/32)
		if suffix == ".biases" {
			v *= -(levels - 1) / 2 * (1 + (float64(i&15)-7.5)/64)
		}
		f.Type.Put(table, i, float32(v))
	}
	return part{
		name: t.path + suffix, dtype: dtypeName(f.Type), shape: t.shape(groups), rows: t.all(), rowBytes: rowBytes,
		write: func(w io.Writer) error {
			rng := newRandom(seed, t.path+".scales") // the same for both parts
			return stream(w, t.all(), rowBytes, t.silent, func(b []byte) {
				for ; len(b) > 0; b = b[size:] {
					copy(b[:size], table[int(rng.next()>>56)*size:])
				}
			})
		},
	}
}

// shards deals parts out to files of at most limit bytes each; 0 means one
// file.
func shards(parts []part, limit int64) [][]part {
	var out [][]part
	var held int64
	for _, p := range parts {
		if len(out) == 0 || limit > 0 && held+p.bytes() > limit {
			out, held = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], p)
		held += p.bytes()
	}
	return out
}

// writeShards writes model.safetensors, or numbered files and their index.
func writeShards(dir, producer string, files [][]part) error {
	index := struct {
		Metadata struct {
			TotalSize int64 `json:"total_size"`
		} `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}{WeightMap: map[string]string{}}
	for i, parts := range files {
		name := "model.safetensors"
		if len(files) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(files))
		}
		err := whole(filepath.Join(dir, name), func(f *os.File) error { return writeSafetensors(f, producer, parts) })
		if err != nil {
			return err
		}
		for _, p := range parts {
			index.WeightMap[p.name] = name
			index.Metadata.TotalSize += p.bytes()
		}
	}
	if len(files) == 1 {
		return nil
	}
	return writeJSON(filepath.Join(dir, "model.safetensors.index.json"), index)
}

// writeSafetensors streams one file: the length of the header, the header, and
// the data without a gap.
func writeSafetensors(w io.Writer, producer string, parts []part) error {
	var head bytes.Buffer
	fmt.Fprintf(&head, `{"__metadata__":{"format":%q}`, producer)
	offset := int64(0)
	for _, p := range parts {
		shape, err := json.Marshal(p.shape)
		if err != nil {
			return fmt.Errorf("write tiny model: %w", err)
		}
		fmt.Fprintf(&head, `,%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, p.name, p.dtype, shape, offset, offset+p.bytes())
		offset += p.bytes()
	}
	head.WriteByte('}')
	for head.Len()%8 != 0 {
		head.WriteByte(' ')
	}
	out := bufio.NewWriterSize(w, 1<<16)
	if err := binary.Write(out, binary.LittleEndian, uint64(head.Len())); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	if _, err := out.Write(head.Bytes()); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	for _, p := range parts {
		if err := p.write(out); err != nil {
			return fmt.Errorf("write tiny model: tensor %s: %w", p.name, err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write tiny model: %w", err)
	}
	return nil
}
