package probe_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/probe"
)

// TestPageTablesCount: to read a byte in each of many pages takes no memory but for the tables.
func TestPageTablesCount(t *testing.T) {
	const parts, part, tables = 10_000, 2 << 20, 30 << 20
	pages, err := unix.Mmap(-1, 0, parts*part, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(pages) //nolint:errcheck // it ends with the process
	if err := unix.Madvise(pages, unix.MADV_NOHUGEPAGE); err != nil {
		t.Fatal(err)
	}
	before, err := probe.NewSystem().Footprint(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	sum := byte(0)
	for i := range parts {
		sum += pages[i*part]
	}
	after, err := probe.NewSystem().Footprint(os.Getpid())
	if err != nil || sum != 0 || after-before < tables {
		t.Errorf("%d pages were read, footprint grew by %d bytes (%v), want at least %d", parts, after-before, err, int64(tables))
	}
}

// TestMappedFilesMakeNoMeasurementLong: an engine maps a file of its own again and again, and the
// pages, which count nowhere, take no more time to measure than none.
func TestMappedFilesMakeNoMeasurementLong(t *testing.T) {
	const times, part, most = 200, 16 << 20, 5 * time.Millisecond
	file, err := os.Create(filepath.Join(t.TempDir(), "weights"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(part); err != nil {
		t.Fatal(err)
	}
	for range times {
		pages, err := unix.Mmap(int(file.Fd()), 0, part, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(pages) //nolint:errcheck // it ends with the process
	}
	runtime.LockOSThread() // whose processor time is read
	defer runtime.UnlockOSThread()
	least := time.Hour
	for range 3 {
		before := threadTime(t)
		if _, err := probe.NewSystem().Footprint(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		least = min(least, threadTime(t)-before)
	}
	if least > most {
		t.Errorf("a measurement takes %v of processor time with %d pages mapped, want at most %v", least, times*part/os.Getpagesize(), most)
	}
}

func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Nano())
}

// TestAProcessIsMeasuredWhateverItsName: a process chooses its name, which is next to the figures.
func TestAProcessIsMeasuredWhateverItsName(t *testing.T) {
	path := fmt.Sprintf("/proc/%d/comm", os.Getpid())
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(path, before, 0) //nolint:errcheck // it is a name
	for _, name := range []string{"x kB", "RssAnon: 1 kB", "a\nVmPTE: 1 kB"} {
		if err := os.WriteFile(path, []byte(name), 0); err != nil {
			t.Fatal(err)
		}
		if n, err := probe.NewSystem().Footprint(os.Getpid()); err != nil || n < 1<<20 {
			t.Errorf("a process called %q has a footprint of %d bytes, %v", name, n, err)
		}
	}
}
