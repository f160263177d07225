//go:build !race

package proc

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func linuxOnly(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the benchmarks read /proc, which only Linux has")
	}
}

func TestThisProcessHasMemoryAndProcessorTime(t *testing.T) {
	linuxOnly(t)
	held, err := Footprint(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if peak, err := Peak(os.Getpid()); err != nil || held < 1<<16 || peak < held {
		t.Errorf("holds %d bytes, at most %d: %v", held, peak, err)
	}
	if n, err := Shared(os.Getpid()); err != nil || n < 1<<16 {
		t.Errorf("proportional set size %d, %v", n, err)
	}
	if d, err := CPUTime(os.Getpid()); err != nil || d < 0 || d > time.Hour {
		t.Errorf("processor time %v, %v", d, err)
	}
	if n, err := Available(); err != nil || n < 1<<20 {
		t.Errorf("%d bytes are available, %v", n, err)
	}
	for name, figure := range map[string]func(int) (int64, error){"footprint": Footprint, "peak": Peak, "shared": Shared} {
		if _, err := figure(-1); err == nil {
			t.Errorf("%s of a process that does not exist", name)
		}
	}
	if _, err := CPUTime(-1); err == nil {
		t.Error("processor time of a process that does not exist")
	}
}

func TestAMissingFieldIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	if err := os.WriteFile(path, []byte("Name:\tengine\nVmHWM:\t 3 kB\nPss_Anon: 5 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := kilobytes(path, "VmHWM", "Pss_Anon"); err != nil || n != 8<<10 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := kilobytes(path, "VmHWM", "SwapPss"); err == nil || !strings.Contains(err.Error(), "SwapPss") {
		t.Errorf("a missing field: %v", err)
	}
}

func TestTheNameOfAProgramDoesNotMoveTheFieldsOfStat(t *testing.T) {
	if n, err := ticks("12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 11 12\n"); err != nil || n != 300 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := ticks("12 (a) S 1 2"); err == nil {
		t.Error("a line that is too short was accepted")
	}
}

func TestCoreLists(t *testing.T) {
	if got, err := coreList("0-2,5"); err != nil || !slices.Equal(got, []int{0, 1, 2, 5}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := coreList("0-x"); err == nil {
		t.Error("0-x was accepted")
	}
}

func TestAPinnedProcessRunsOnItsCoresAlone(t *testing.T) {
	linuxOnly(t)
	all, err := Cores()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	last := all[len(all)-1:]
	if err := Pin(last); err != nil {
		t.Fatal(err)
	}
	if got, err := Cores(); err != nil || !slices.Equal(got, last) {
		t.Errorf("pinned to %v, may run on %v, %v", last, got, err)
	}
	if err := Pin(all); err != nil {
		t.Fatal(err)
	}
}
