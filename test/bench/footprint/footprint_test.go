//go:build !race

package footprint

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
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

func TestEveryFamilyHasARow(t *testing.T) {
	supported, measured := map[string]bool{}, map[string]bool{}
	for _, family := range arch.Supported() {
		supported[family] = true
	}
	for _, r := range rows(nil) {
		measured[r.family] = true
		if !supported[r.family] {
			t.Errorf("%s: %s is no family", r.name, r.family)
		}
	}
	for family := range supported {
		if !measured[family] {
			t.Errorf("no row has the family %s", family)
		}
	}
}

// Models are written with few layers and words; real ones are checked when they
// are measured.
func TestAModelHasTheFamilyOfItsRow(t *testing.T) {
	check := func(r row, write func(path string) (string, error)) {
		t.Helper()
		path := filepath.Join(t.TempDir(), r.name)
		r.ready = func(context.Context) (string, error) { return write(path) }
		if _, err := r.open(t.Context()); err != nil {
			t.Error(err)
		}
		r.family = "another"
		if _, err := r.open(t.Context()); err == nil {
			t.Errorf("%s was accepted with another family", r.name)
		}
	}
	for _, w := range random() {
		w.config.Layers, w.config.Vocabulary, w.config.Merged = max(1, w.config.Hybrid.Interval, 2), 512, false
		check(row{name: w.config.Name, family: string(w.config.Family)}, func(path string) (string, error) { return models.Write(path, w.config, w.layout) })
	}
	for _, r := range readers() {
		r.reader.Size.Layers, r.reader.Size.Vocabulary = 1, 512
		check(row{name: r.reader.Name, family: r.reader.Family}, func(path string) (string, error) { return models.WriteReader(path, r.reader) })
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
