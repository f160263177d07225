//go:build !race

package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// llama.cpp reads these keys as numbers or as lists with one for each layer
// (llama-model-loader.cpp, get_key_or_arr); converters of several families write lists.
func TestEqualNumbersOfAllLayersMayBeAList(t *testing.T) {
	list := func(kind uint32, width int, values ...uint64) string {
		b := binary.LittleEndian.AppendUint32(nil, 9)
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, kind), uint64(len(values)))
		for _, v := range values {
			b = append(b, binary.LittleEndian.AppendUint64(nil, v)[:width]...)
		}
		return string(b)
	}
	const heads, all, inner = "llama.attention.head_count_kv", "llama.attention.head_count", "llama.feed_forward_length"
	for name, c := range map[string]struct {
		key  string
		old  uint32
		with string
		want error
		says string
	}{
		"heads of keys":             {key: heads, old: 2, with: list(5, 4, 2, 2)},
		"in unsigned numbers":       {key: heads, old: 2, with: list(4, 4, 2, 2)},
		"in wide numbers":           {key: heads, old: 2, with: list(10, 8, 2, 2)},
		"heads of queries":          {key: all, old: 4, with: list(5, 4, 4, 4)},
		"the width of feed-forward": {key: inner, old: 128, with: list(5, 4, 128, 128)},
		"different numbers":         {key: heads, old: 2, with: list(5, 4, 2, 1), want: weights.ErrUnsupported, says: "different numbers"},
		"too few":                   {key: heads, old: 2, with: list(5, 4, 2), want: weights.ErrInvalid, says: "1 numbers for 2 layers"},
		"none":                      {key: heads, old: 2, with: list(5, 4), want: weights.ErrInvalid, says: "0 numbers"},
		"zero":                      {key: heads, old: 2, with: list(5, 4, 0, 0), want: weights.ErrInvalid, says: "is 0"},
		"negative":                  {key: heads, old: 2, with: list(5, 4, 1<<64-2, 1<<64-2), want: weights.ErrInvalid, says: "is -2"},
		"enormous":                  {key: heads, old: 2, with: list(10, 8, 1<<63, 1<<63), want: weights.ErrInvalid, says: "whole numbers"},
		"floats":                    {key: heads, old: 2, with: list(6, 4, 2, 2), want: weights.ErrInvalid, says: "whole numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := read(tiny(t, tinymodel.Default()))
			if err != nil {
				t.Fatal(err)
			}
			want, err := h.Facts()
			if err != nil {
				t.Fatal(err)
			}
			got, err := replaced(t, number(c.key, c.old), c.key+c.with).Facts()
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want %v with %q", err, c.want, c.says)
			}
			if err == nil && got != want {
				t.Errorf("facts %+v, want %+v", got, want)
			}
		})
	}
}

// Ollama's files of Gemma 3, Mistral 3 and Qwen-VL hold the encoder of images too.
func TestAFileWithAnEncoderOfImagesLoadsItsText(t *testing.T) {
	plain := tiny(t, tinymodel.Default())
	for name, c := range map[string]struct {
		tensors []string
		want    error
	}{
		"a vision encoder":       {tensors: []string{"v.blk.0.attn_q.weight", "v.patch_embd.weight", "mm.0.weight"}},
		"an audio encoder":       {tensors: []string{"a.blk.0.attn_q.weight"}},
		"another unknown tensor": {tensors: []string{"v.blk.0.attn_q.weight", "value.weight"}, want: weights.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			path, with := filepath.Join(t.TempDir(), "plain.gguf"), filepath.Join(t.TempDir(), "with.gguf")
			b := plain
			for _, tensor := range c.tensors {
				b = withTensor(t, b, tensor)
			}
			if err := errors.Join(os.WriteFile(path, plain, 0o600), os.WriteFile(with, b, 0o600)); err != nil {
				t.Fatal(err)
			}
			got, err := weights.Open(with)
			if c.want != nil {
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), "value.weight") || strings.Contains(err.Error(), "v.blk") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			want := openAt(t, path)
			facts, err := got.Facts()
			plainFacts, plainErr := want.Facts()
			if err != nil || plainErr != nil || facts != plainFacts || got.Unread() != int64(128*len(c.tensors)) || len(got.Entries()) != len(want.Entries()) {
				t.Errorf("facts %+v (%v), want %+v (%v); %d bytes are not read", facts, err, plainFacts, plainErr, got.Unread())
			}
			const last = "model.layers.1.mlp.down_proj.weight"
			if x, y := matrixOf(t, got, last), matrixOf(t, want, last); x[0][0] != y[0][0] || len(x) != len(y) {
				t.Errorf("%s differs", last)
			}
		})
	}
}

// replaced replaces a text of a header, of any length.
func replaced(t *testing.T, old, with string) *weights.Header {
	t.Helper()
	b := tiny(t, tinymodel.Default())
	h, err := read(b)
	if err != nil || bytes.Count(b, []byte(old)) != 1 {
		t.Fatalf("%q occurs %d times (%v)", old, bytes.Count(b, []byte(old)), err)
	}
	out := bytes.Replace(b[:headerEnd(b, h)], []byte(old), []byte(with), 1)
	for len(out)%32 > 0 {
		out = append(out, 0)
	}
	if h, err = read(append(out, b[h.DataOffset:]...)); err != nil {
		t.Fatal(err)
	}
	return h
}

// headerEnd is where the padding before the data begins.
func headerEnd(b []byte, h *weights.Header) int {
	last := h.Tensors[len(h.Tensors)-1]
	return bytes.LastIndex(b[:h.DataOffset], []byte(last.Name)) + len(last.Name) + 4 + 8*len(last.Shape) + 4 + 8
}

// withTensor adds a tensor of 32 floats to a file.
func withTensor(t *testing.T, b []byte, name string) []byte {
	t.Helper()
	h, err := read(b)
	if err != nil {
		t.Fatal(err)
	}
	at := headerEnd(b, h)
	for len(b)%32 > 0 {
		b = append(b, 0)
	}
	info := append(binary.LittleEndian.AppendUint64(nil, uint64(len(name))), name...)
	info = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(info, 1), 32)
	info = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(info, 0), uint64(len(b))-uint64(h.DataOffset))
	out := append(bytes.Clone(b[:at]), info...)
	for len(out)%32 > 0 {
		out = append(out, 0)
	}
	out = append(append(out, b[h.DataOffset:]...), make([]byte, 128)...)
	binary.LittleEndian.PutUint64(out[8:], uint64(len(h.Tensors)+1))
	return out
}
