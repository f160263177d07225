//go:build !race

package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/folder"
)

// manyNames opens a folder of n tensors without elements.
func manyNames(t *testing.T, memory *account, n int, name func(i int) string) *collection {
	t.Helper()
	var header strings.Builder
	for i := range n {
		fmt.Fprintf(&header, `,%q:{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`, name(i))
	}
	text, path := "{"+header.String()[1:]+"}", t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "model.safetensors"), append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), 0o600); err != nil {
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

func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestNamesThatTensorsAreGivenAreCounted: those of a family may be three times as long as those in
// the files.
func TestNamesThatTensorsAreGivenAreCounted(t *testing.T) {
	decoder := func(c *collection, architecture string) error {
		return c.decoder(family.Dimensions{Architecture: architecture}, &grouping{})
	}
	for name, c := range map[string]struct {
		unit, first, last string
		call              func(c *collection) error
	}{
		"of a family":  {unit: ".w1", call: func(c *collection) error { return decoder(c, "lfm2") }},
		"with a model": {unit: ".w1", first: "embed_tokens.weight", call: func(c *collection) error { return decoder(c, "lfm2") }},
		"of experts":   {unit: ".w1.x", call: func(c *collection) error { return decoder(c, "mixtral") }},
		"of blocks": {unit: ".mlp.experts.", last: "_scales", call: func(c *collection) error {
			_, err := c.published(family.Dimensions{Architecture: "gpt_oss"})
			return err
		}},
		"of an encoder":     {unit: ".x", last: "LayerNorm.gamma", call: func(c *collection) error { return c.encoderNames(family.Dimensions{Encoder: &family.Encoder{}}) }},
		"inside of a model": {unit: ".x", call: func(c *collection) error { return c.unwrapModel(family.Dimensions{}) }},
	} {
		t.Run(name, func(t *testing.T) {
			memory, before := &account{budget: NewBudget(HeaderMemory)}, liveBytes()
			of := manyNames(t, memory, 4000, func(i int) string {
				if i == 0 && c.first != "" {
					return c.first
				}
				return fmt.Sprint("model.language_model.", i, strings.Repeat(c.unit, 270/len(c.unit)), c.last)
			})
			if err := c.call(of); err != nil {
				t.Fatal(err)
			}
			if live := liveBytes() - before; live > memory.used*5/4 {
				t.Errorf("%d bytes are in use, but %d are counted", live, memory.used)
			}
			runtime.KeepAlive(of)
		})
	}
}

// TestNamesThatBecomeTooLongAreRefused, as those in the files.
func TestNamesThatBecomeTooLongAreRefused(t *testing.T) {
	c := manyNames(t, &account{budget: NewBudget(HeaderMemory)}, 1, func(int) string { return strings.Repeat(".w1", 340) })
	if err := c.decoder(family.Dimensions{Architecture: "lfm2"}, &grouping{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name of 1,020 bytes that becomes one of 3,400: %v, want %v", err, ErrInvalid)
	}
}

// TestWhatIsMadeOfNamesIsCounted while it is in use: both maps of tensors, layers that config.json
// names, paths of experts and the index.
func TestWhatIsMadeOfNamesIsCounted(t *testing.T) {
	const n = 8000
	short := func(i int) string { return fmt.Sprint("model.layers.", i, ".mlp.up_proj.weight") }
	layers, index := map[string]any{}, `{"weight_map":{"a":"a"`
	for i := range n {
		layers[short(i)] = false
		index += fmt.Sprintf(`,"%d":"%d.safetensors"`, i, i)
	}
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, indexFile), []byte(index+"}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := folder.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	memory := &account{budget: NewBudget(HeaderMemory)}
	empty := &collection{left: newAllowance(memory)}
	check := func(what string, before, counted int64) {
		if live := liveBytes() - before; live > (memory.used-counted)*5/4 {
			t.Errorf("%s: %d bytes are in use, but %d are counted", what, live, memory.used-counted)
		}
	}
	before, counted := liveBytes(), memory.used
	tensors, at := manyNames(t, memory, n, short), 0
	if err := tensors.nameBy(func(name string, _ *shardTensor) (string, bool, error) {
		if at++; at == n {
			check("tensors", before, counted)
		}
		return "vision." + name, true, nil
	}); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(tensors)

	before, counted = liveBytes(), memory.used
	groups, err := grouping{layers: layers}.namedBy(memory, func(name string) (string, bool) { return name + ".x", true })
	check("layers", before, counted)
	runtime.KeepAlive(groups)

	before, counted = liveBytes(), memory.used
	used := map[string]bool{}
	err = errors.Join(err, empty.useExperts(used, "model.layers.0.mlp.switch_mlp.up_proj.weight", n))
	check("experts", before, counted)
	runtime.KeepAlive(used)

	before, counted = liveBytes(), memory.used
	files, unread := readIndex(dir, memory)
	absent := map[string]bool{}
	for _, name := range files {
		absent[name] = true
	}
	check("index", before, counted)
	runtime.KeepAlive([]any{files, absent})
	runtime.KeepAlive([]any{layers, index})
	if err := errors.Join(err, unread); err != nil {
		t.Error(err)
	}
}

// TestATowerIsNotLeftOutForNow: others that are read at once may take the memory, and what a Mac
// reports of a model must not depend on them.
func TestATowerIsNotLeftOutForNow(t *testing.T) {
	d, err := dimensionsOf(qwenSeeing())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := readConfig([]byte(qwenSeeing()))
	if err != nil {
		t.Fatal(err)
	}
	c := floats(qwenTensors("model.visual.", []int64{8, 3, 2, 4, 4}))
	c.left = newAllowance(&account{budget: &Budget{most: HeaderMemory}})
	if err := (&File{Dim: d}).openTower(c, cfg); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v, want %v", err, ErrBusy)
	}
}

// TestNamesOfALargeModelFit: one of many experts in a single file.
func TestNamesOfALargeModelFit(t *testing.T) {
	memory := &account{budget: NewBudget(HeaderMemory)}
	c := manyNames(t, memory, 50_000, func(i int) string {
		return fmt.Sprintf("model.layers.%d.block_sparse_moe.experts.%d.w1.weight", i/512, i%512)
	})
	err := errors.Join(c.decoder(family.Dimensions{Architecture: "mixtral"}, &grouping{}), c.useExperts(map[string]bool{}, "model.layers.10.mlp.switch_mlp.gate_proj.weight", 50_000))
	if _, ok := c.tensors["model.layers.97.mlp.experts.335.gate_proj.weight"]; err != nil || !ok {
		t.Errorf("the last one is there: %v (%v)", ok, err)
	}
}
