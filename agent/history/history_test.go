package history

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/datadriven"
)

// folder makes an empty one with a short path, in memory where there is such.
func folder(t testing.TB) string {
	t.Helper()
	where := "/tmp"
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		where = "/dev/shm"
	}
	dir, err := os.MkdirTemp(where, "mf-history-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// play plays a file of testdata.
func play(t *testing.T, name string) {
	t.Helper()
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		w := New(dir)
		defer w.Close()
		datadriven.RunTest(t, filepath.Join("testdata", name+".txt"), func(t *testing.T, d *datadriven.TestData) string {
			out, err := w.Do(d.Cmd, d.CmdArgs, d.Input)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			if err := w.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
		if err := w.Finish(); err != nil {
			t.Error(err)
		}
	})
}

// TestHistories plays every file of testdata: its name is the behaviour it shows.
func TestHistories(t *testing.T) {
	for _, name := range files(t) {
		t.Run(name, func(t *testing.T) { play(t, name) })
	}
}

func files(t *testing.T) (names []string) {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("histories: %v (%d)", err, len(paths))
	}
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".txt"))
	}
	return names
}
