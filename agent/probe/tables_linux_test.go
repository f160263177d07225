package probe_test

import (
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
