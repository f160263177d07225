package arch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/nn"
	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/weights"
)

// adaptedModel is a tiny model, and adapters of it.
type adaptedModel struct {
	described
	Adapters []described
}

func adaptedModels(t *testing.T) []adaptedModel {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "adapters.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Cases []adaptedModel }
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r.Cases
}

// adapters loads all adapters of the model in a folder.
func (m adaptedModel) adapters(t *testing.T, n *network, path string) []*nn.Adapter {
	t.Helper()
	f, err := weights.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []*nn.Adapter
	for _, d := range m.Adapters {
		before := n.b.Memory().Weights
		folder := d.writeAdapter(t)
		opened, err := weights.OpenAdapter(t.Context(), folder, f)
		if err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
		if size := sizeOf(t, folder); opened.Bytes > size && d.Name != "peft, four of five experts" {
			t.Errorf("%s takes %d bytes, more than its files of %d, by which memory is promised", d.Name, opened.Bytes, size)
		}
		defer opened.Close()
		a, err := n.m.LoadAdapter(context.Background(), opened)
		if err != nil {
			t.Fatalf("%s: %v", d.Name, err)
		}
		t.Cleanup(a.Release)
		if held := n.b.Memory().Weights - before; a.Bytes() != held || opened.Bytes != held {
			t.Errorf("%s takes %d bytes; the adapter says %d, its file %d", d.Name, held, a.Bytes(), opened.Bytes)
		}
		out = append(out, a)
	}
	return out
}

// sizeOf is the size of the files of a folder.
func sizeOf(t *testing.T, folder string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

// writeAdapter makes the folder of an adapter.
func (d described) writeAdapter(t *testing.T) string {
	t.Helper()
	dir := d.write(t)
	name := "adapters.safetensors"
	var config map[string]any
	if err := json.Unmarshal(d.Config, &config); err != nil {
		t.Fatal(err)
	}
	if config["peft_type"] != nil {
		name = "adapter_model.safetensors"
	}
	for from, to := range map[string]string{"config.json": "adapter_config.json", "model.safetensors": name} {
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestAdaptersEqualTheReferences computes every model alone and with each of its
// adapters, as TestLogitsEqualTheReferences does.
func TestAdaptersEqualTheReferences(t *testing.T) {
	for _, b := range backends() {
		for _, c := range adaptedModels(t) {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				path := c.write(t)
				n := loadOn(t, path, b.open(t))
				worst := 0.0
				for i, a := range append([]*nn.Adapter{nil}, c.adapters(t, n, path)...) {
					g := &comparison{n: n, t: t, name: "alone", want: c.Records["mlx-lm"], tolerance: b.tolerance[n.precision], made: map[check]int{}}
					if i > 0 {
						g.name, g.want = c.Adapters[i-1].Name, c.Adapters[i-1].Records["mlx-lm"]
					}
					g.want.Prompts = describedPrompts(n.vocab)
					n.adapter = func(tensor.RequestID) *nn.Adapter { return a }
					g.run()
					worst = max(worst, g.worst)
				}
				t.Logf("off by %.1e of the largest number at most", worst)
			})
		}
	}
}

// TestRowsOfOneStepHaveAdaptersOfTheirOwn computes the prompts of a model and those of its
// adapters in the same steps; each gets what it gets alone.
func TestRowsOfOneStepHaveAdaptersOfTheirOwn(t *testing.T) {
	for _, b := range backends() {
		for _, c := range adaptedModels(t) {
			t.Run(b.name+"/"+c.Name, func(t *testing.T) {
				path := c.write(t)
				n := loadOn(t, path, b.open(t))
				of := append([]*nn.Adapter{nil}, c.adapters(t, n, path)...)
				n.adapter = func(id tensor.RequestID) *nn.Adapter { return of[int(id)%len(of)] }
				prompts := describedPrompts(n.vocab)
				// Request id has prompt id/len(of). First all but three tokens of each, then those.
				var tokens []int32
				var segments []tensor.Segment
				steps := [2][]tensor.Segment{}
				ids := [2][]int32{}
				count := len(of) * len(prompts)
				for id := range count {
					p := prompts[id/len(of)]
					cut := len(p) - 3
					steps[0] = append(steps[0], tensor.Segment{Request: tensor.RequestID(id), Length: cut})
					steps[1] = append(steps[1], tensor.Segment{Request: tensor.RequestID(id), Start: cut, Length: 3})
					ids[0], ids[1] = append(ids[0], p[:cut]...), append(ids[1], p[cut:]...)
				}
				if _, err := n.step(ids[0], steps[0], nil); err != nil {
					t.Fatal(err)
				}
				tokens, segments = ids[1], steps[1]
				rows := make([]int, count)
				for i := range rows {
					rows[i] = 3*i + 2
				}
				slices.Reverse(rows)
				got, err := n.step(tokens, segments, rows)
				if err != nil {
					t.Fatal(err)
				}
				g := &comparison{n: n, t: t, tolerance: b.tolerance[n.precision]}
				for i := range rows {
					id := count - 1 - i
					want := c.Records["mlx-lm"]
					if k := id % len(of); k > 0 {
						want = c.Adapters[k-1].Records["mlx-lm"]
					}
					g.near(fmt.Sprintf("request %d", id), got[i*n.vocab:(i+1)*n.vocab], want.Logits[id/len(of)])
					n.cache.Drop(tensor.RequestID(id))
				}
			})
		}
	}
}
