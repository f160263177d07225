//go:build !race

package pages

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

func TestMappingsHoldWhatIsAskedFor(t *testing.T) {
	for _, n := range []int64{1, 4095, 4 << 20, 4<<20 + 1, 5<<20 - 1, 1<<62 + 3, 1<<63 - 1} {
		if got := Mapping(n); got < n || got-n >= 2<<20 {
			t.Errorf("%d bytes are mapped for %d", got, n)
		}
	}
}

// TestLargePagesLieInsideWhatWasAskedFor: the neighbours of p keep their pages,
// and p may begin in the middle of one.
func TestLargePagesLieInsideWhatWasAskedFor(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("one size of pages here")
		return
	}
	const size = 24 << 20
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	p := mem[4<<20+16 : 20<<20]
	PreferLarge(p)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	flags := flagsOf(t, at+6<<20)
	if supported, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled"); bytes.Contains(supported, []byte("[madvise]")) && !strings.Contains(flags, " hg") {
		t.Errorf("in the middle: flags %q, want hg", flags)
	}
	for name, outside := range map[string]uintptr{"before": at + 4<<20 - 1, "after": at + 21<<20} {
		if flags := flagsOf(t, outside); strings.Contains(flags, " hg") {
			t.Errorf("%s it: flags %q", name, flags)
		}
	}
	for i := range p {
		p[i] = 7
	}
	PreferLarge(nil)
	PreferLarge(make([]byte, 100))
}

// flagsOf is the line VmFlags of the mapping that holds an address.
func flagsOf(t *testing.T, address uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= address && address < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return strings.TrimRight(flags, "\n")
		}
	}
	t.Fatalf("no mapping holds %x", address)
	return ""
}

// TestAMappingIsTakenAndGivenBack: all of it can be written, and a size that
// cannot be meant is refused.
func TestAMappingIsTakenAndGivenBack(t *testing.T) {
	for _, n := range []int64{1, 4096, 100_001} {
		p, err := Map(n)
		if err != nil {
			t.Fatal(err)
		}
		if int64(len(p)) != n || Held(n) < n || Held(n)%int64(os.Getpagesize()) != 0 {
			t.Errorf("%d bytes: %d mapped, %d held", n, len(p), Held(n))
		}
		p[0], p[n-1] = 1, 2
		Unmap(p)
	}
	for _, n := range []int64{0, -1} {
		if _, err := Map(n); err == nil {
			t.Errorf("%d bytes were mapped", n)
		}
	}
}
