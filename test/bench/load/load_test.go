package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/pagecache"
)

func passing() *measurements {
	return &measurements{
		model: model{bytes: 4e9}, plain: []float64{1e9, 2e9, 1e9},
		ref: loaded{placed: []float64{0.9e9, 1.5e9, 0.8e9}, ready: []float64{0.8e9, 1.4e9, 0.7e9}, peak: []float64{4.1e9, 4.4e9, 4.2e9}, busy: []float64{3}},
		mlx: loaded{placed: []float64{0.9e9, 1.5e9, 0.8e9}, ready: []float64{0.1e9}, peak: []float64{4.1e9, 4.4e9, 4.2e9}, busy: []float64{9}},
	}
}

func judge(m *measurements) error {
	r := newReport()
	m.fill(r)
	return r.Judge()
}

func TestJudgeWantsEveryBound(t *testing.T) {
	if err := judge(passing()); err != nil {
		t.Errorf("all bounds hold: %v", err)
	}
	for says, change := range map[string]func(*measurements){
		"ref, in place / plain reading":            func(m *measurements) { m.ref.placed = []float64{0.69e9, 9e9, 0.69e9} },
		"mlx, in place / plain reading":            func(m *measurements) { m.mlx.placed = []float64{0.69e9, 9e9, 0.69e9} },
		"ref, peak":                                func(m *measurements) { m.ref.peak[1] = 4.401e9 },
		"mlx, peak":                                func(m *measurements) { m.mlx.peak[1] = 4.401e9 },
		"mlx, ready: not measured":                 func(m *measurements) { m.mlx.ready = nil },
		"ref, ready / plain reading: not measured": func(m *measurements) { m.ref.ready = m.ref.ready[1:] },
		"plain reading: not measured":              func(m *measurements) { m.plain = nil },
	} {
		m := passing()
		change(m)
		if err := judge(m); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s misses its bound: %v", says, err)
		}
	}
}

func TestAModelIsWrittenOnceAndNamedByItsSettings(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bench")
	first, err := write(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.files) != 1 || first.bytes < 50e6 {
		t.Errorf("wrote %+v", first)
	}
	before, err := os.Stat(first.files[0])
	if err != nil {
		t.Fatal(err)
	}
	again, err := write(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(again.files[0])
	if err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("written twice, or %v", err)
	}
	c, layout := shape(4e9)
	if c.Layers < 100 || layout.Matrices.Bits != bits {
		t.Errorf("4 GB are %d layers of %v", c.Layers, layout.Matrices)
	}
	if err := os.Remove(first.files[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := write(dir, 1); err == nil || !strings.Contains(err.Error(), first.dir) {
		t.Errorf("a folder without weights: %v", err)
	}
}

func TestPagesAreDroppedAndLookedFor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the page cache is asked through calls that only Linux has")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 3<<20+5), 0o600); err != nil {
		t.Fatal(err)
	}
	in, size, err := pagecache.Resident(path)
	if err != nil || size != 3<<20+5 || in != size {
		t.Errorf("just written: %d of %d bytes are resident, %v", in, size, err)
	}
	if _, _, err := pagecache.Resident(path + "x"); err == nil {
		t.Error("a file that is not there has pages")
	}
	if err := pagecache.Forget(path + "x"); err == nil {
		t.Error("pages of a file that is not there were dropped")
	}
	if n, err := available(); err != nil || n < 1<<20 {
		t.Errorf("%d bytes are available, %v", n, err)
	}
	n, err := readAll(t.Context(), path, make([]byte, readBytes))
	if err != nil || n != size {
		t.Errorf("read %d of %d bytes, %v", n, size, err)
	}
}

func TestAReadingFromMemoryIsNotMeasured(t *testing.T) {
	m := model{dir: "somewhere", bytes: 1000}
	if err := m.checkDropped(10); err != nil {
		t.Errorf("1 %% is left: %v", err)
	}
	if err := m.checkDropped(11); err == nil || !strings.Contains(err.Error(), "somewhere") {
		t.Errorf("more is left: %v", err)
	}
}

func TestAModelIsNotLoadedWhereItHasNoRoom(t *testing.T) {
	m := model{bytes: 4e9}
	const want = 4.2e9 + 200e6 + 2<<30
	if err := m.checkRoom(want); err != nil {
		t.Error(err)
	}
	if err := m.checkRoom(want - 1); err == nil {
		t.Error("a model is loaded into too little memory")
	}
}
