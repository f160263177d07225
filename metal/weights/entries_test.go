//go:build !race

package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
)

// TestTensorsOfManyLayersAreCounted with the slots that they fill and what an open model has of them.
func TestTensorsOfManyLayersAreCounted(t *testing.T) {
	cfg, dim := deepModel(t)
	wanted, err := dim.Slots(1 << 17)
	if err != nil {
		t.Fatal(err)
	}
	memory, before := &account{budget: NewBudget(HeaderMemory)}, liveBytes()
	c := manyLayers(t, memory, wanted)
	entries, err := c.inventory(dim, cfg)
	if err != nil {
		t.Fatal(err)
	}
	slots, err := dim.Slots(len(c.tensors))
	if live := liveBytes() - before; err != nil || live > memory.used*5/4 {
		t.Errorf("%d bytes are in use, but %d are counted (%v)", live, memory.used, err)
	}
	runtime.KeepAlive([]any{c, entries, slots, wanted})
}

// TestTensorsOfManyLayersInGGUFAreCounted likewise.
func TestTensorsOfManyLayersInGGUFAreCounted(t *testing.T) {
	_, dim := deepModel(t)
	wanted, err := dim.Slots(1 << 17)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []byte
	put, n, at := binary.LittleEndian.AppendUint64, uint64(0), uint64(0)
	for _, s := range wanted {
		if s.Optional {
			continue
		}
		tensors = append(put(tensors, uint64(len(s.GGUF))), s.GGUF...)
		tensors = binary.LittleEndian.AppendUint32(tensors, uint32(len(s.Shape)))
		for _, d := range slices.Backward(s.Shape) {
			tensors = put(tensors, uint64(d))
		}
		tensors = put(binary.LittleEndian.AppendUint32(tensors, 0), at)
		n, at = n+1, at+4*uint64(elementsOf(s.Shape))
	}
	file := append(put(put([]byte("GGUF\x03\x00\x00\x00"), n), 0), tensors...)
	b, before := NewBudget(HeaderMemory), liveBytes()
	h, release, err := b.ReadHeader(bytes.NewReader(file), int64(len(file))+int64(at)+32)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	entries, err := h.inventory(dim)
	slots, _ := dim.Slots(len(h.Tensors))
	if live, counted := liveBytes()-before, HeaderMemory-b.left; err != nil || live > counted*5/4 {
		t.Errorf("%d bytes are in use, but %d are counted (%v)", live, counted, err)
	}
	runtime.KeepAlive([]any{h, entries, slots, wanted, file})
}

// deepModel is a model of many small layers.
func deepModel(t *testing.T) (*family.Config, family.Dimensions) {
	t.Helper()
	const layers = 1000
	cfg, err := readConfig(fmt.Appendf(nil, `{"model_type":"llama","hidden_size":16,"num_hidden_layers":%d,"intermediate_size":16,"num_attention_heads":1,"num_key_value_heads":1,"head_dim":16,"vocab_size":16,"rms_norm_eps":1e-05,"max_position_embeddings":8192,"rope_theta":10000,"tie_word_embeddings":true}`, layers))
	if err != nil {
		t.Fatal(err)
	}
	dim, err := cfg.Dimensions()
	if err != nil {
		t.Fatal(err)
	}
	return cfg, dim
}

// manyLayers opens a folder of tensors that fill slots, but for those that may be left out.
func manyLayers(t *testing.T, memory *account, slots []family.Slot) *collection {
	t.Helper()
	var header bytes.Buffer
	at := int64(0)
	for _, s := range slots {
		if s.Optional || s.GGUFOnly || s.Path == headPath {
			continue
		}
		end := at + 4*elementsOf(s.Shape)
		fmt.Fprintf(&header, `,%q:{"dtype":"F32","shape":%s,"data_offsets":[%d,%d]}`, s.Path, strings.ReplaceAll(fmt.Sprint(s.Shape), " ", ","), at, end)
		at = end
	}
	text, path := "{"+header.String()[1:]+"}", t.TempDir()
	file := filepath.Join(path, "model.safetensors")
	if err := os.WriteFile(file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, int64(8+len(text))+at); err != nil {
		t.Fatal(err)
	}
	dir, err := folder.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c, err := openCollection(dir, memory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}
