//go:build !race

package weights_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// tiny is a whole model file.
func tiny(t testing.TB, c tinymodel.Config) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tinymodel.WriteTo(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(b []byte) (*weights.Header, error) {
	return weights.ReadHeader(bytes.NewReader(b), int64(len(b)))
}

// raw builds hostile headers by hand.
type raw struct{ bytes.Buffer }

func header(tensors, keys uint64) *raw {
	r := new(raw)
	r.WriteString("GGUF")
	return r.u32(3).u64(tensors).u64(keys)
}

func (r *raw) u32(v uint32) *raw {
	r.Write(binary.LittleEndian.AppendUint32(nil, v))
	return r
}

func (r *raw) u64(v uint64) *raw {
	r.Write(binary.LittleEndian.AppendUint64(nil, v))
	return r
}

func (r *raw) str(s string) *raw {
	r.u64(uint64(len(s)))
	r.WriteString(s)
	return r
}

func (r *raw) pad(n int) *raw {
	r.Write(make([]byte, n))
	return r
}

// tensor adds an entry and data that is large enough.
func (r *raw) tensor(name string, kind uint32, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(kind).u64(offset)
}

func TestHostileHeadersAreTypedErrors(t *testing.T) {
	const huge = 1 << 62
	for name, c := range map[string]struct {
		file *raw
		want error
	}{
		"empty file":                     {file: new(raw), want: weights.ErrNotGGUF},
		"other format":                   {file: (&raw{}).str("safetensors and more"), want: weights.ErrNotGGUF},
		"future version":                 {file: func() *raw { r := new(raw); r.WriteString("GGUF"); return r.u32(9).pad(64) }(), want: weights.ErrUnsupported},
		"ends in the counts":             {file: func() *raw { r := new(raw); r.WriteString("GGUF"); return r.u32(3).u32(1) }(), want: weights.ErrTruncated},
		"more tensors than bytes":        {file: header(1<<19, 0).pad(100), want: weights.ErrTruncated},
		"absurd number of tensors":       {file: header(huge, 0).pad(100), want: weights.ErrInvalid},
		"absurd number of keys":          {file: header(0, huge).pad(100), want: weights.ErrInvalid},
		"more keys than bytes":           {file: header(0, 1<<15).pad(100), want: weights.ErrTruncated},
		"key longer than the file":       {file: header(0, 1).u64(1000).pad(100), want: weights.ErrTruncated},
		"absurd key":                     {file: header(0, 1).u64(huge).pad(100), want: weights.ErrInvalid},
		"string longer than the file":    {file: header(0, 1).str("a").u32(8).u64(1 << 20).pad(100), want: weights.ErrTruncated},
		"absurd string":                  {file: header(0, 1).str("a").u32(8).u64(huge).pad(100), want: weights.ErrInvalid},
		"array longer than the file":     {file: header(0, 1).str("a").u32(9).u32(4).u64(1 << 25).pad(100), want: weights.ErrTruncated},
		"absurd array":                   {file: header(0, 1).str("a").u32(9).u32(10).u64(huge).pad(100), want: weights.ErrInvalid},
		"absurd array of strings":        {file: header(0, 1).str("a").u32(9).u32(8).u64(huge).pad(100), want: weights.ErrInvalid},
		"more strings than the file":     {file: header(0, 1).str("a").u32(9).u32(8).u64(1 << 25).pad(100), want: weights.ErrTruncated},
		"array of arrays":                {file: header(0, 1).str("a").u32(9).u32(9).u64(1).pad(100), want: weights.ErrInvalid},
		"unknown value type":             {file: header(0, 1).str("a").u32(77).pad(100), want: weights.ErrInvalid},
		"neither true nor false":         {file: header(0, 1).str("a").u32(7).pad(1).str("").pad(100), want: nil},
		"boolean of seven":               {file: func() *raw { r := header(0, 1).str("a").u32(7); r.WriteByte(7); return r.pad(100) }(), want: weights.ErrInvalid},
		"key twice":                      {file: header(0, 2).str("a").u32(4).u32(1).str("a").u32(4).u32(1).pad(100), want: weights.ErrInvalid},
		"alignment of three":             {file: header(0, 1).str("general.alignment").u32(4).u32(3).pad(100), want: weights.ErrInvalid},
		"alignment of nothing":           {file: header(0, 1).str("general.alignment").u32(4).u32(0).pad(100), want: weights.ErrInvalid},
		"tensor without dimensions":      {file: header(1, 0).tensor("t", 0, 0).pad(100), want: weights.ErrInvalid},
		"tensor of five dimensions":      {file: header(1, 0).tensor("t", 0, 0, 1, 1, 1, 1, 1).pad(100), want: weights.ErrInvalid},
		"dimension of nothing":           {file: header(1, 0).tensor("t", 0, 0, 0).pad(100), want: weights.ErrInvalid},
		"dimension that overflows":       {file: header(1, 0).tensor("t", 0, 0, huge).pad(100), want: weights.ErrInvalid},
		"product that overflows":         {file: header(1, 0).tensor("t", 0, 0, 1<<31-1, 1<<31-1, 1<<31-1, 1<<31-1).pad(100), want: weights.ErrInvalid},
		"tensor larger than the file":    {file: header(1, 0).tensor("t", 0, 0, 1<<20).pad(100), want: weights.ErrTruncated},
		"unknown tensor type":            {file: header(1, 0).tensor("t", 99, 0, 4).pad(200), want: weights.ErrUnsupported},
		"part of a block":                {file: header(1, 0).tensor("t", uint32(weights.Q4_1), 0, 33).pad(200), want: weights.ErrInvalid},
		"offset after the file":          {file: header(1, 0).tensor("t", 0, huge, 4).pad(200), want: weights.ErrTruncated},
		"offset near the end":            {file: header(1, 0).tensor("t", 0, 192, 4).pad(200), want: weights.ErrTruncated},
		"offset out of step":             {file: header(1, 0).tensor("t", 0, 8, 4).pad(200), want: weights.ErrInvalid},
		"two tensors of one name":        {file: header(2, 0).tensor("t", 0, 0, 4).tensor("t", 0, 32, 4).pad(300), want: weights.ErrInvalid},
		"tensors that overlap":           {file: header(2, 0).tensor("t", 0, 0, 16).tensor("u", 0, 32, 4).pad(300), want: weights.ErrInvalid},
		"two tensors, one after another": {file: header(2, 0).tensor("t", 0, 0, 8).tensor("u", 0, 32, 4).pad(300), want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(c.file.Bytes()); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestHostileCountsAllocateNothing(t *testing.T) {
	files := []*raw{
		header(0, 1).str("a").u32(9).u32(8).u64(1 << 27).pad(100),
		header(0, 1).str("a").u32(9).u32(12).u64(1 << 27).pad(100),
		header(1<<20, 1<<16).pad(100),
		header(0, 1).str("a").u32(8).u64(15 << 20).pad(100),
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, f := range files {
		if _, err := read(f.Bytes()); err == nil {
			t.Error("a hostile count was believed")
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 { // four readers of 1 MiB and change
		t.Errorf("%d bytes were allocated for four tiny files", n)
	}
}

// TestEveryTruncationIsAnError cuts a whole model at many places.
func TestEveryTruncationIsAnError(t *testing.T) {
	c := tinymodel.Default()
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.HeadSize = 1, 32, 32, 2, 16
	b := tiny(t, c)
	h, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	cuts := []int64{h.DataOffset, h.DataOffset - 1, h.Size - 1}
	for n := int64(0); n < h.DataOffset; n += 211 {
		cuts = append(cuts, n)
	}
	for _, n := range cuts {
		if _, err := read(b[:n]); !errors.Is(err, weights.ErrTruncated) && !errors.Is(err, weights.ErrNotGGUF) {
			t.Errorf("cut at %d of %d: error %v", n, len(b), err)
		}
	}
}

func TestAFileThatShrinksWhileItIsLoadedIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, f.Header().DataOffset+100); err != nil {
		t.Fatal(err)
	}
	e, ok := f.Entry("model.layers.1.mlp.down_proj.weight")
	if !ok {
		t.Fatal("no such entry")
	}
	err = f.Rows(context.Background(), e, func(int, quant.Row) error { return nil })
	if !errors.Is(err, weights.ErrTruncated) {
		t.Errorf("error %v, want ErrTruncated", err)
	}
}

func TestRowsStopWhenTheContextEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Rows(ctx, f.Entries()[0], func(int, quant.Row) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestHeaderOfARemoteFileIsReadForward(t *testing.T) {
	b := tiny(t, tinymodel.Default())
	r := &counting{r: bytes.NewReader(b)}
	h, err := weights.ReadHeader(r, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != 3 || len(h.Tensors) != 2+2*9 {
		t.Errorf("version %d, %d tensors", h.Version, len(h.Tensors))
	}
	if r.calls > 3 {
		t.Errorf("%d reads for a small header", r.calls)
	}
	broken := errors.New("connection reset")
	if _, err := weights.ReadHeader(failing{broken}, 1000); !errors.Is(err, broken) {
		t.Errorf("error %v, want the reader's own", err)
	}
}

type counting struct {
	r     io.ReaderAt
	calls int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.calls++
	return c.r.ReadAt(p, off)
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestFactsOfATinyModel(t *testing.T) {
	c := tinymodel.Default()
	b := tiny(t, c)
	h, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	f, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	if f.Architecture != "llama" || f.Name != "tiny" || f.Quantization != "Q4_1" || f.Layers != 2 || f.GrowingLayers != 2 ||
		f.HiddenSize != 64 || f.FeedForwardSize != 128 || f.QueryHeads != 4 || f.KeyValueHeads != 2 || f.HeadSize != 16 ||
		f.VocabularySize != 512 || f.ContextTokens != 512 || f.KeyValueElementBytes != 4 {
		t.Errorf("facts are %+v", f)
	}
	if slack := int64(len(b)) - h.DataOffset - f.WeightBytes; slack < 0 || slack > 32*int64(len(h.Tensors)) {
		t.Errorf("weights of %d bytes, the file has %d of data", f.WeightBytes, int64(len(b))-h.DataOffset)
	}
}

// patched replaces one value of a fixed size in a model's header.
func patched(t *testing.T, old, with string) *weights.Header {
	t.Helper()
	b := tiny(t, tinymodel.Default())
	if len(old) != len(with) || bytes.Count(b, []byte(old)) != 1 {
		t.Fatalf("%q occurs %d times", old, bytes.Count(b, []byte(old)))
	}
	h, err := read(bytes.Replace(b, []byte(old), []byte(with), 1))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// number is a key with a 32-bit value as it lies in the file.
func number(key string, v uint32) string {
	return key + "\x04\x00\x00\x00" + string(binary.LittleEndian.AppendUint32(nil, v))
}

func TestModelsThatCannotBeMeantAreRefused(t *testing.T) {
	eps := "llama.attention.layer_norm_rms_epsilon\x06\x00\x00\x00"
	float := func(f float32) string {
		return string(binary.LittleEndian.AppendUint32(nil, math.Float32bits(f)))
	}
	for name, c := range map[string]struct {
		old, with string
		want      error
		says      string
	}{
		"unknown architecture":    {old: "\x05\x00\x00\x00\x00\x00\x00\x00llama\x0c", with: "\x05\x00\x00\x00\x00\x00\x00\x00lemma\x0c", want: weights.ErrUnsupported, says: "supported: gemma3, gpt-oss, llama, qwen2, qwen3, qwen3moe"},
		"absurd number of layers": {old: number("llama.block_count", 2), with: number("llama.block_count", 1<<31), want: weights.ErrInvalid, says: "block_count"},
		"no layers":               {old: number("llama.block_count", 2), with: number("llama.block_count", 0), want: weights.ErrInvalid, says: "block_count"},
		"one layer too many":      {old: number("llama.block_count", 2), with: number("llama.block_count", 3), want: weights.ErrInvalid, says: "3 layers need"},
		"an unused layer":         {old: number("llama.block_count", 2), with: number("llama.block_count", 1), want: weights.ErrInvalid, says: "does not have"},
		"heads out of proportion": {old: number("llama.attention.head_count_kv", 2), with: number("llama.attention.head_count_kv", 3), want: weights.ErrInvalid, says: "multiple"},
		"shape that differs":      {old: number("llama.feed_forward_length", 128), with: number("llama.feed_forward_length", 160), want: weights.ErrInvalid, says: "shape"},
		"odd rotary size":         {old: number("llama.rope.dimension_count", 16), with: number("llama.rope.dimension_count", 5), want: weights.ErrInvalid, says: "rotary"},
		"other value heads":       {old: number("llama.attention.value_length", 16), with: number("llama.attention.value_length", 8), want: weights.ErrInvalid, says: "value heads"},
		"eps is not a number":     {old: eps + float(1e-5), with: eps + float(float32(math.NaN())), want: weights.ErrInvalid, says: "epsilon"},
		"key is missing":          {old: "llama.context_length", with: "llama.kontext_length", want: weights.ErrMissing, says: "context_length"},
		"tensor is missing":       {old: "blk.1.attn_v.weight", with: "blk.1.attn_w.weight", want: weights.ErrMissing, says: "blk.1.attn_v.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := patched(t, c.old, c.with).Facts()
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %v saying %q", err, c.want, c.says)
			}
		})
	}
}

func TestFoldersHoldOneModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with [brackets]*")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := weights.Open(dir); !errors.Is(err, weights.ErrNoModel) {
		t.Errorf("empty folder: error %v", err)
	}
	for i, name := range []string{"a.gguf", "b.gguf"} {
		if err := tinymodel.Write(filepath.Join(dir, name), tinymodel.Default()); err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(dir)
		if (err == nil) != (i == 0) {
			t.Errorf("folder with %d files: error %v", i+1, err)
		}
		if err == nil {
			f.Close()
		}
	}
	if _, err := weights.Open(filepath.Join(dir, "none.gguf")); !errors.Is(err, weights.ErrNoModel) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: error %v", err)
	}
}

// TestRotaryRowsComeBackInOrder: GGUF stores row (head, pair, side) where the
// original layout has (head, side, pair).
func TestRotaryRowsComeBackInOrder(t *testing.T) {
	c := tinymodel.Default()
	c.Type = weights.F32
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := tinymodel.Write(path, c); err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := func(path string) (order []int) {
		e, ok := f.Entry(path)
		if !ok {
			t.Fatalf("no %s", path)
		}
		if err := f.Rows(context.Background(), e, func(row int, _ quant.Row) error {
			order = append(order, row)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return order
	}
	k := rows("model.layers.0.self_attn.k_proj.weight")
	want := []int{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15, 16, 24}
	for i, w := range want {
		if k[i] != w {
			t.Fatalf("rows of k are %v, want them to begin with %v", k, want)
		}
	}
	if v := rows("model.layers.0.self_attn.v_proj.weight"); v[1] != 1 || v[8] != 8 {
		t.Errorf("rows of v are %v, want them in order", v)
	}
}

func FuzzReadHeader(f *testing.F) {
	c := tinymodel.Default()
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.HeadSize = 1, 32, 32, 2, 16
	b := tiny(f, c)
	f.Add(b)
	f.Add(b[:3000])
	f.Add(header(1, 0).tensor("t", 2, 0, 32, 2).pad(200).Bytes())
	f.Add(header(0, 1).str("a").u32(9).u32(8).u64(3).str("x").str("").str("y").pad(9).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := read(b)
		if err != nil {
			if h != nil {
				t.Error("an error with a header")
			}
			return
		}
		for _, tensor := range h.Tensors {
			if tensor.Offset < h.DataOffset || tensor.Bytes <= 0 || tensor.Offset+tensor.Bytes > int64(len(b)) {
				t.Errorf("tensor %+v lies outside a file of %d bytes", tensor, len(b))
			}
		}
		if facts, err := h.Facts(); err == nil && facts.WeightBytes > int64(len(b)) {
			t.Errorf("%d bytes of weights in a file of %d", facts.WeightBytes, len(b))
		}
	})
}
