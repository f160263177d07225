//go:build !race

package weights_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
)

// emptyStrings is a header with an array of n strings of no bytes.
func emptyStrings(n uint64) *raw {
	r := header(0, 1).str("tokenizer.ggml.tokens").u32(9).u32(8).u64(n)
	r.Write(make([]byte, 8*n))
	return r
}

// Reading a header allocates a small multiple of its bytes, in every part of it.
func TestReadingAHeaderTakesMemoryInProportionToItsBytes(t *testing.T) {
	tensors := header(50_000, 0)
	for i := range 50_000 {
		tensors.str(fmt.Sprint("t", i)).u32(1).u64(32).u32(0).u64(uint64(i) * 128)
	}
	tensors.Write(make([]byte, 50_000*128+64))
	keys := header(0, 1<<15)
	for i := range 1 << 15 {
		keys.str(fmt.Sprint("k", i)).u32(8).str(strings.Repeat("x", 200))
	}
	numbers := header(0, 1).str("a").u32(9).u32(0).u64(8 << 20)
	numbers.Write(make([]byte, 8<<20))
	for name, c := range map[string]struct {
		header *raw
		most   uint64 // times the bytes
	}{
		"empty strings": {header: emptyStrings(1 << 20), most: 3}, "tensors": {header: tensors, most: 8}, "keys": {header: keys, most: 4}, "numbers": {header: numbers, most: 3},
	} {
		t.Run(name, func(t *testing.T) {
			file := c.header.Bytes()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := read(file); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if made, most := after.TotalAlloc-before.TotalAlloc, c.most*uint64(len(file))+1<<20; made > most {
				t.Errorf("%d bytes are allocated for a header of %d, want at most %d", made, len(file), most)
			}
		})
	}
}

// stopping calls a function once the bytes before a place in a file were read.
type stopping struct {
	io.ReaderAt
	at   int64
	stop func()
}

func (s *stopping) ReadAt(b []byte, at int64) (int, error) {
	if s.stop != nil && at >= s.at {
		stop := s.stop
		s.stop = nil
		stop()
	}
	return s.ReaderAt.ReadAt(b, at)
}

func TestAttackHeadersReadAtOnceShareOneBudget(t *testing.T) {
	const budget = 32 << 20
	b := weights.NewBudget(budget)
	small, half := emptyStrings(1<<17).Bytes(), emptyStrings(3<<18).Bytes()
	readHeader := func(file []byte) error {
		_, release, err := b.ReadHeader(bytes.NewReader(file), int64(len(file)))
		if err == nil {
			release()
		}
		return err
	}
	var within []error
	first := &stopping{ReaderAt: bytes.NewReader(half), at: 1 << 20}
	first.stop = func() { // half of the budget is taken now
		second := &stopping{ReaderAt: bytes.NewReader(half), at: 1 << 20}
		second.stop = func() { within = append(within, readHeader(half), readHeader(small)) }
		_, release, err := b.ReadHeader(second, int64(len(half)))
		within = append(within, err)
		if err == nil {
			release()
		}
	}
	_, release, err := b.ReadHeader(first, int64(len(half)))
	if err != nil {
		t.Fatalf("the first: %v", err)
	}
	if err := errors.Join(readHeader(small), readHeader(half)); err != nil {
		t.Errorf("alongside one that is in use: %v", err)
	}
	_, another, err := b.ReadHeader(bytes.NewReader(half), int64(len(half)))
	if err != nil {
		t.Fatal(err)
	}
	if err := readHeader(half); !errors.Is(err, weights.ErrBusy) {
		t.Errorf("a third one while two are in use: %v", err)
	}
	release()
	another()
	if len(within) != 3 || !errors.Is(within[0], weights.ErrBusy) || within[1] != nil || within[2] != nil {
		t.Errorf("a third, a small one and the second: %v, want the third to be refused", within)
	}
	if err := readHeader(half); err != nil {
		t.Errorf("after all others: %v", err)
	}
	if err := readHeader(emptyStrings(3 << 19).Bytes()); !errors.Is(err, weights.ErrInvalid) {
		t.Errorf("one that takes more than half of the budget: %v", err)
	}
}

// TestAttackHeadersOfAdaptersShareTheBudget: an inspection reads those of up to 16 adapters,
// several inspections run at once, and each header may be large.
func TestAttackHeadersOfAdaptersShareTheBudget(t *testing.T) {
	f := plainModel(t)
	dir := adapterFiles(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 4}`, "adapter_model.safetensors", map[string][]int{
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {2, f.Dim.Hidden},
		"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {f.Dim.QueryHeads * f.Dim.HeadSize, 2},
	})
	if _, err := weights.NewBudget(1<<20-1).OpenAdapter(t.Context(), dir, f); !errors.Is(err, weights.ErrBusy) {
		t.Errorf("an adapter's header was read although others took the budget: %v", err)
	}
	enough := weights.NewBudget(4 << 20)
	for range 8 { // it gives back what it took
		a, err := enough.OpenAdapter(t.Context(), dir, f)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
}

// TestConfigurationsShareTheBudget: a value takes many times its text once it is read, in that of a
// model and in that of an adapter.
func TestConfigurationsShareTheBudget(t *testing.T) {
	many := `"unread": [` + strings.Repeat(`{"a":0},`, 50_000) + `0]}`
	path := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(path, tinymodel.Default(), tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(path, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text = append(bytes.TrimRight(text, "} \n"), ", "+many...)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f := plainModel(t)
	dir := adapterFiles(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], `+many, "adapter_model.safetensors", map[string][]int{
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {2, f.Dim.Hidden},
		"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {f.Dim.QueryHeads * f.Dim.HeadSize, 2},
	})
	for bytes, refused := range map[int64]bool{32 << 20: true, weights.HeaderMemory: false} {
		opened, err := weights.NewBudget(bytes).Open(path)
		if err == nil {
			opened.Close()
		}
		if errors.Is(err, weights.ErrInvalid) != refused || !refused && err != nil {
			t.Errorf("config.json of 100,000 values with %d bytes: %v", bytes, err)
		}
		if _, err := weights.NewBudget(bytes).OpenAdapter(t.Context(), dir, f); errors.Is(err, weights.ErrInvalid) != refused {
			t.Errorf("adapter_config.json of 100,000 values with %d bytes: %v", bytes, err)
		}
	}
}

// spaced makes the header of a file of safetensors at least n bytes long.
func spaced(t *testing.T, path string, n int) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := 8 + int(binary.LittleEndian.Uint64(file))
	header := append(file[8:end:end], bytes.Repeat([]byte(" "), n)...)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	if err := os.WriteFile(path, append(append(out, header...), file[end:]...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAttackAdaptersTakeTheBudgetOfOthers: the header of a model and those of its adapters take
// together what one header may, else two inspections would take the memory of three.
func TestAttackAdaptersTakeTheBudgetOfOthers(t *testing.T) {
	const budget, each = 8 << 20, 4 << 20
	dir, c := filepath.Join(t.TempDir(), "model"), tinymodel.Default()
	c.Family = tinymodel.Qwen3
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	var names []string // that loading ignores
	for i := range 4000 {
		names = append(names, fmt.Sprintf(`"model.layers.%d.self_attn.rotary_emb.inv_freq":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`, i))
	}
	ignored := "{" + strings.Join(names, ",") + "}"
	if err := os.WriteFile(filepath.Join(dir, "model-ignored.safetensors"), append(binary.LittleEndian.AppendUint64(nil, uint64(len(ignored))), ignored...), 0o600); err != nil {
		t.Fatal(err)
	}
	b := weights.NewBudget(budget)
	f, err := b.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for bytes, want := range map[int]error{0: nil, each / 4 * 5 / 6: weights.ErrInvalid} {
		adapter := adapterFiles(t, `{"peft_type": "LORA", "r": 2, "lora_alpha": 4}`, "adapter_model.safetensors", map[string][]int{
			"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {2, f.Dim.Hidden},
			"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {f.Dim.QueryHeads * f.Dim.HeadSize, 2},
		})
		spaced(t, filepath.Join(adapter, "adapter_model.safetensors"), bytes)
		a, err := b.OpenAdapter(t.Context(), adapter, f)
		if !errors.Is(err, want) {
			t.Errorf("an adapter with a header of %d bytes: %v, want %v", bytes, err, want)
		}
		if err == nil {
			a.Close()
		}
		release, err := b.Reserve(budget - each)
		if err != nil {
			t.Fatalf("after that adapter: %v", err)
		}
		release()
	}
	f.Close()
	release, err := b.Reserve(budget)
	if err != nil {
		t.Fatalf("after the model: %v", err)
	}
	release()
}

// An open model keeps the memory of its headers, which several inspections hold at once.
func TestAnOpenModelKeepsItsPartOfTheBudget(t *testing.T) {
	dir, file := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "m.gguf")
	c := tinymodel.Default()
	if err := tinymodel.Write(file, c); err != nil {
		t.Fatal(err)
	}
	c.Family = tinymodel.Qwen3
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file} {
		b := weights.NewBudget(1 << 20) // what is taken at once
		first, err := b.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := b.Open(path); !errors.Is(err, weights.ErrBusy) {
			t.Errorf("%s: %v, want that the open one has a part of the budget", filepath.Base(path), err)
			if err == nil {
				second.Close()
			}
		}
		for range 2 { // closing twice gives back once
			first.Close()
		}
		release, err := b.Reserve(1 << 20)
		if err != nil {
			t.Fatalf("%s: %v, want all of the budget after it was closed", filepath.Base(path), err)
		}
		if _, err := b.Reserve(1); err == nil {
			t.Errorf("%s: more than the budget was given back", filepath.Base(path))
		}
		release()
	}
}
