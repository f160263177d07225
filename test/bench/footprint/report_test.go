package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/arch"
	"metalfleet.dev/metalfleet/test/bench/served"
)

func TestTheBoundHoldsForEveryModelBothWays(t *testing.T) {
	at := func(name string, total int64) measured {
		return measured{name: name, estimate: estimated{Total: total}, peak: 1000}
	}
	good := []measured{at("exact", 1000), at("a quarter more", 1250)}
	if err := newReport(good, nil).Judge(); err != nil {
		t.Errorf("all bounds hold: %v", err)
	}
	for _, bad := range []measured{at("too little", 999), at("too much", 1251)} {
		if err := newReport(append(good, bad), nil).Judge(); err == nil || !strings.Contains(err.Error(), bad.name) {
			t.Errorf("%s: %v", bad.name, err)
		}
	}
	if err := newReport(nil, nil).Judge(); err == nil {
		t.Error("nothing was measured, and it passed")
	}
}

func TestAProcessThatWasNeverSeenWasNotMeasured(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the benchmark reads /proc, which only Linux has")
	}
	if err := new(watching).stop(); err == nil {
		t.Error("nothing ran, and it has a peak")
	}
	var w watching
	w.start(&served.Engine{PID: -1})
	if err := w.stop(); err == nil || w.peak.Load() != 0 {
		t.Errorf("a process that is not there: peak %d, %v", w.peak.Load(), err)
	}
}

// TestEveryFamilyHasARowOnBothBackEnds: whoever adds a family measures it.
func TestEveryFamilyHasARowOnBothBackEnds(t *testing.T) {
	var names []string
	for _, b := range (options{}).backends() {
		names = append(names, b.name)
	}
	if !slices.Equal(names, []string{"ref", "mlx"}) {
		t.Errorf("rows are measured on %v", names)
	}
	if missing, unknown := without(models(options{}), arch.Supported()); len(missing)+len(unknown) > 0 {
		t.Errorf("no row of %v; rows of %v, which are no families", missing, unknown)
	}
	table := rows(models(options{}))
	for _, family := range arch.Supported() {
		if !strings.Contains(table, "| `"+family+"` | ") {
			t.Errorf("the page does not say which row is of %s", family)
		}
	}
	if missing, _ := without(models(options{}), append(arch.Supported(), "mamba")); !slices.Equal(missing, []string{"mamba"}) {
		t.Errorf("a family without a row: %v", missing)
	}
}

// without are families that no row is of, and those of rows that are none.
func without(list []model, families []string) (missing, unknown []string) {
	measured := map[string]bool{}
	for _, m := range list {
		measured[m.family] = true
		if !slices.Contains(families, m.family) {
			unknown = append(unknown, m.family)
		}
	}
	for _, f := range families {
		if !measured[f] {
			missing = append(missing, f)
		}
	}
	return missing, unknown
}

// TestARowIsOfTheFamilyThatItSays writes them with few layers and words. A real
// model is looked at when it is measured.
func TestARowIsOfTheFamilyThatItSays(t *testing.T) {
	for _, w := range random() {
		w.config.Layers, w.config.Vocabulary, w.config.Merged = max(1, w.config.Hybrid.Interval, 2), 512, false
		wantFamily(t, model{name: w.config.Name, family: string(w.config.Family)}, w.write)
	}
	for _, r := range readers() {
		r.reader.Size.Layers, r.reader.Size.Vocabulary = 1, 512
		wantFamily(t, model{name: r.reader.Name, family: r.reader.Family}, r.write)
	}
}

func wantFamily(t *testing.T, m model, write func(string) error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), m.name)
	m.ready = func(context.Context) (string, error) { return path, write(path) }
	if _, err := m.open(context.Background()); err != nil {
		t.Error(err)
	}
	m.family = "another"
	if _, err := m.open(context.Background()); err == nil {
		t.Errorf("%s may be called what it is not", m.name)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Error(err)
	}
}

// None may end its turn before the context is full, and every head size that
// kernels tell apart is there.
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
