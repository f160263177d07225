package probe_test

import (
	"fmt"
	"os"
	"testing"

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
