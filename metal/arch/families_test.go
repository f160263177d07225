package arch_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/weights"
)

// described is a tiny model of a family: its configuration, its tensors, and what
// references compute of it; test/oracle/goldens/families wrote it.
type described struct {
	Name    string
	Config  json.RawMessage
	Tensors map[string]tensorSpec
	// Without says why a reference is not asked.
	Without map[string]string
	Records map[string]recorded
}

// tensorSpec is [type, mean, spread, shape...].
type tensorSpec struct {
	kind         string
	mean, spread float32
	shape        []int
}

func (s *tensorSpec) UnmarshalJSON(b []byte) error {
	var parts []any
	if err := json.Unmarshal(b, &parts); err != nil || len(parts) < 3 {
		return fmt.Errorf("%s is no tensor: %w", b, err)
	}
	s.kind = parts[0].(string)
	s.mean, s.spread = float32(parts[1].(float64)), float32(parts[2].(float64))
	s.shape = []int{} // a scalar has none
	for _, n := range parts[3:] {
		s.shape = append(s.shape, int(n.(float64)))
	}
	return nil
}

// describedModels reads the cases of all families, by file.
func describedModels(t *testing.T) map[string][]described {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "families", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of families: %v", len(files), err)
	}
	out := map[string][]described{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var r struct{ Cases []described }
		if err := json.Unmarshal(b, &r); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".json")] = r.Cases
	}
	return out
}

// expanded are the names that a pattern means: "a.[0,2].b" is two.
func expanded(pattern string) []string {
	before, rest, found := strings.Cut(pattern, "[")
	if !found {
		return []string{pattern}
	}
	choice, after, _ := strings.Cut(rest, "]")
	var out []string
	for _, n := range strings.Split(choice, ",") {
		out = append(out, expanded(before+n+after)...)
	}
	return out
}

// values are those of a tensor: SplitMix64 from FNV-1a of its name; words of 32
// bits, bytes from mean on, or uniform numbers around mean.
func (s tensorSpec) values(name string) []byte {
	sum := fnv.New64a()
	sum.Write([]byte(name))
	state, n := sum.Sum64(), 1
	for _, d := range s.shape {
		n *= d
	}
	out := make([]byte, 0, 4*n)
	for range n {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		switch s.kind {
		case "U32":
			out = binary.LittleEndian.AppendUint32(out, uint32(z>>32))
			continue
		case "U8":
			out = append(out, byte(uint64(s.mean)+z>>32%uint64(s.spread)))
			continue
		}
		unit := float32(z>>40)/(1<<23) - 1
		bits := math.Float32bits(float32(unit*s.spread) + s.mean)
		if s.kind == "BF16" { // of no record
			out = binary.LittleEndian.AppendUint16(out, uint16(bits>>16))
			continue
		}
		out = binary.LittleEndian.AppendUint32(out, bits)
	}
	return out
}

// write makes the model's folder.
func (d described) write(t *testing.T) string {
	t.Helper()
	tensors := map[string]tensorSpec{}
	for pattern, s := range d.Tensors {
		for _, name := range expanded(pattern) {
			tensors[name] = s
		}
	}
	type entry struct {
		Type    string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	header, data := map[string]entry{}, new(bytes.Buffer)
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		s, at := tensors[name], data.Len()
		data.Write(s.values(name))
		header[name] = entry{Type: s.kind, Shape: s.shape, Offsets: [2]int{at, data.Len()}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, data.Bytes())
	for name, b := range map[string][]byte{"config.json": d.Config, "model.safetensors": file} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFamiliesEqualTheReferences computes every described model on every back
// end as TestLogitsEqualTheReferences does.
func TestFamiliesEqualTheReferences(t *testing.T) {
	all := describedModels(t)
	for _, b := range backends() {
		worst, at := 0.0, ""
		for i, name := range slices.Sorted(maps.Keys(all)) {
			if i%everyCase != 0 {
				continue
			}
			for _, c := range all[name] {
				t.Run(b.name+"/"+c.Name, func(t *testing.T) {
					n := loadOn(t, c.write(t), b.open(t))
					g := &comparison{n: n, t: t, tolerance: b.tolerance[n.precision], made: map[check]int{}}
					for _, reference := range slices.Sorted(maps.Keys(c.Records)) {
						g.name, g.want = reference, c.Records[reference]
						g.want.Prompts = describedPrompts(n.vocab)
						g.run()
					}
					if len(c.Records) == 0 {
						t.Error("no reference has computed this model")
					}
					if g.worst > worst {
						worst, at = g.worst, c.Name
					}
				})
			}
		}
		t.Logf("%s: off by %.1e of the largest number at most (%s)", b.name, worst, at)
	}
}

// describedPrompts are what every record was computed of.
func describedPrompts(vocabulary int) [][]int32 {
	var out [][]int32
	for _, n := range []int{40, 13, 5} {
		prompt := make([]int32, n)
		for i := range prompt {
			prompt[i] = int32((i*31+i*i*7+3+n)%(vocabulary-4) + 2)
		}
		out = append(out, prompt)
	}
	return out
}

// withoutMLX are the families that no folder of mlx-lm is compared of, and why.
func withoutMLX() map[string]string {
	return map[string]string{
		"gemma":      "mlx-lm computes another GELU than the model was trained with",
		"starcoder2": "mlx-lm computes another GELU than the model was trained with",
	}
}

// TestEveryFamilyIsDescribed: a decoder has goldens here, as Hugging Face stores it
// and quantised as mlx-lm does, or among the cases of test/tinymodel.
func TestEveryFamilyIsDescribed(t *testing.T) {
	described := describedModels(t)
	recorded := map[string]bool{}
	for _, cases := range records(t) {
		for name := range cases {
			kind, _, _ := strings.Cut(name, "/")
			recorded[kind] = true
		}
	}
	for _, name := range family.Names(false) {
		if recorded[name] {
			continue
		}
		from := map[string]bool{}
		for _, c := range described[name] {
			_, rest, _ := strings.Cut(c.Name, "/")
			source, _, _ := strings.Cut(rest, " ")
			from[source] = true
		}
		if !from["hf"] || !from["mlx"] && withoutMLX()[name] == "" {
			t.Errorf("family %s has goldens of %v, want hf and mlx", name, slices.Sorted(maps.Keys(from)))
		}
	}
}

// TestDescribedModelsTakeTheirEstimatedFootprint: keys, values and states take what
// is estimated, and a step at most a quarter more: widths are odd here, and metal/ref
// pools powers of two.
func TestDescribedModelsTakeTheirEstimatedFootprint(t *testing.T) {
	const length = 128
	for name, cases := range describedModels(t) {
		t.Run(name, func(t *testing.T) {
			dir := cases[0].write(t)
			f, err := weights.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			facts, err := f.Facts()
			if err != nil {
				t.Fatal(err)
			}
			want, err := footprint.PrefillPeak(facts, footprint.KernelsOf(footprint.Ref), footprint.Prefill{New: length})
			if err != nil {
				t.Fatal(err)
			}
			b := ref.New(ref.Options{Threads: 2})
			n := loadOn(t, dir, b)
			before := b.Memory().Active()
			n.prefill(1, tokens(length, n.vocab), length)
			kv := b.Memory().KV
			if kv != want.KV {
				t.Errorf("keys and values take %d bytes, the estimate is %d", kv, want.KV)
			}
			if got, step := b.Peak()-before-kv, want.Total()-want.KV; got > step*5/4 {
				t.Errorf("a step takes %d bytes, the estimate is %d", got, step)
			}
			n.cache.Drop(1)
		})
	}
}
