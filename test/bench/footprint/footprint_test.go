//go:build !race

package footprint

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/report"
)

func TestTheBoundHoldsBothWays(t *testing.T) {
	for total, missed := range map[int64]bool{999: true, 1000: false, 1250: false, 1251: true} {
		r := report.New("x", "", "")
		measured{estimate: estimate{Total: total}, peak: 1000}.fill(r, "it")
		if err := r.Judge(); (err != nil) != missed || missed && !strings.Contains(err.Error(), "it, estimate / peak") {
			t.Errorf("an estimate of %d for 1000: %v", total, err)
		}
	}
}

func TestAProcessWithoutAReadingWasNotMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmark reads /proc, which only Linux has")
	}
	if err := new(observer).stop(); err == nil {
		t.Error("nothing ran, and it has a peak")
	}
	var o observer
	o.start(-1)
	if err := o.stop(); err == nil {
		t.Errorf("a process that does not exist has a peak of %d", o.peak.Load())
	}
	o = observer{}
	o.start(os.Getpid())
	for o.peak.Load() == 0 {
		runtime.Gosched()
	}
	if err := o.stop(); err != nil {
		t.Error(err)
	}
}

// kinds are what the layers of a model keep of a request.
func kinds(d family.Dimensions) map[string]bool {
	out := map[string]bool{}
	for i := range d.Layers {
		switch b := d.Block(i); {
		case b.Recurrent != nil:
			out[fmt.Sprintf("the state of rule %d", b.Recurrent.Rule)] = true
		case b.Latent != nil:
			out[fmt.Sprintf("latent vectors, selected: %v", b.Latent.Indexer != nil)] = true
		case b.Attention != nil && b.Attention.Window > 0:
			out["keys and values of a window"] = true
		case b.Attention != nil:
			out["keys and values"] = true
		case b.Feed != nil || b.Experts != nil: // a feed-forward alone keeps nothing
		default:
			out[fmt.Sprintf("what %s keeps", d.Architecture)] = true
		}
	}
	return out
}

func TestEveryKindOfCacheHasARow(t *testing.T) {
	files, err := filepath.Glob("../../../metal/arch/testdata/families/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files describe families: %v", len(files), err)
	}
	measured := map[string]bool{}
	for _, w := range small() {
		path, err := w.write(filepath.Join(t.TempDir(), w.row.name))
		if err != nil {
			t.Fatal(err)
		}
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.Dim.Encoder == nil {
			maps.Copy(measured, kinds(f.Dim))
		}
		f.Close()
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var golden struct {
			Cases []struct{ Config map[string]any }
		}
		decoder := json.NewDecoder(bytes.NewReader(b))
		decoder.UseNumber() // as configurations are read
		if err := decoder.Decode(&golden); err != nil {
			t.Fatal(err)
		}
		for _, c := range golden.Cases {
			d, err := family.NewConfig(c.Config).Dimensions()
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for kind := range kinds(d) {
				if !measured[kind] {
					t.Errorf("%s: no row has %s", filepath.Base(file), kind)
				}
			}
		}
	}
}

// model is a row whose model is small, and how it is written.
type model struct {
	row   row
	write func(path string) (string, error)
}

// small models are those of the rows with few layers and words.
func small() []model {
	var out []model
	for _, w := range random() {
		w.config.Layers, w.config.Vocabulary, w.config.Merged = max(1, w.config.Hybrid.Interval, 2), 512, false
		out = append(out, model{
			row:   row{name: w.config.Name, family: string(w.config.Family)},
			write: func(path string) (string, error) { return models.Write(path, w.config, w.layout) },
		})
	}
	for _, r := range described(1) {
		r.model.Config["vocab_size"] = 512
		out = append(out, model{
			row:   row{name: r.model.Name, family: r.model.Config["model_type"].(string)},
			write: func(path string) (string, error) { return models.WriteDescribed(path, r.model) },
		})
	}
	for _, r := range readers() {
		r.reader.Size.Layers, r.reader.Size.Vocabulary = 1, 512
		out = append(out, model{
			row:   row{name: r.reader.Name, family: r.reader.Family},
			write: func(path string) (string, error) { return models.WriteReader(path, r.reader) },
		})
	}
	return out
}

// Real models are checked when they are measured.
func TestAModelHasTheFamilyOfItsRow(t *testing.T) {
	for _, m := range small() {
		path := filepath.Join(t.TempDir(), m.row.name)
		m.row.ready = func(context.Context) (string, error) { return m.write(path) }
		if _, err := m.row.open(t.Context()); err != nil {
			t.Error(err)
		}
		m.row.family = "another"
		if _, err := m.row.open(t.Context()); err == nil {
			t.Errorf("%s was accepted with another family", m.row.name)
		}
	}
}

func TestRandomModelsFillTheirContext(t *testing.T) {
	sizes := map[int]bool{}
	for _, w := range random() {
		if !w.config.Endless || w.config.Untied {
			t.Errorf("%s ends its turn by itself", w.config.Name)
		}
		for _, p := range []promise{w.quick, w.slow} {
			if p.tokens > w.config.Context || p.sequences > 2 || p.sequences > 1 && p.tokens/leastChunk+2*lead >= 256 {
				t.Errorf("%s: a promise of %+v is not filled", w.config.Name, p)
			}
		}
		sizes[w.config.HeadSize] = true
	}
	for _, s := range []int{64, 80, 96, 128, 256} {
		if !sizes[s] {
			t.Errorf("no model has heads of %d", s)
		}
	}
}
