package probe

import (
	"encoding/binary"
	"strings"
	"testing"
)

// vmStatistics are the bytes that a Mac with 16 KiB pages answers, written
// field by field in the order of mach/vm_statistics.h; want what is not read
// to differ from what is, so that a wrong offset shows.
func vmStatistics() []byte {
	var b []byte
	word := func(n uint32) { b = binary.LittleEndian.AppendUint32(b, n) }
	long := func(n uint64) { b = binary.LittleEndian.AppendUint64(b, n) }
	word(1000) // free_count
	word(2000) // active_count
	word(3000) // inactive_count
	word(4000) // wire_count
	for _, n := range []uint64{51, 52, 53, 54, 55, 56, 57, 58, 59} {
		long(n) // zero_fill_count, reactivations, pageins, pageouts, faults, cow_faults, lookups, hits, purges
	}
	word(61) // purgeable_count
	word(62) // speculative_count
	for _, n := range []uint64{71, 72, 73, 74} {
		long(n) // decompressions, compressions, swapins, swapouts
	}
	word(81)   // compressor_page_count
	word(82)   // throttled_count
	word(83)   // external_page_count
	word(5000) // internal_page_count
	long(6000) // total_uncompressed_pages_in_compressor
	return b
}

func TestAMacsPagesAreReadByTheirOffsets(t *testing.T) {
	const page = 16384
	var h Host
	if err := readVMStatistics(&h, vmStatistics(), page); err != nil {
		t.Fatal(err)
	}
	want := Host{Free: 1000 * page, Active: 2000 * page, Inactive: 3000 * page, Wired: 4000 * page, WiredKnown: true,
		Compressed: 6000 * page, Used: (4000 + 5000 + 6000) * page}
	if h != want {
		t.Errorf("got %+v, want %+v", h, want)
	}
}

func TestAMacsBytesAreNotBelievedBlindly(t *testing.T) {
	huge := vmStatistics()
	binary.LittleEndian.PutUint64(huge[144:], 1<<62)
	for name, tc := range map[string]struct {
		bytes []byte
		page  int64
		want  string
	}{
		"an older revision":             {bytes: vmStatistics()[:112], page: 16384, want: "too old"},
		"no bytes":                      {bytes: nil, page: 16384, want: "too old"},
		"more pages than any Mac has":   {bytes: huge, page: 16384, want: "impossible"},
		"a page size that is not known": {bytes: vmStatistics(), page: 0, want: "impossible"},
	} {
		if err := readVMStatistics(&Host{}, tc.bytes, tc.page); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestSwapInUseIsTheThirdFigure(t *testing.T) {
	var b []byte
	for _, n := range []uint64{2048 << 20, 1371 << 20, 676 << 20} { // total, available, used
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, 0, 64, 0, 0, 1, 0, 0, 0) // page size, encrypted, padding
	if n, err := readSwapUsage(b); err != nil || n != 676<<20 {
		t.Errorf("%d (%v), want 676 MiB", n, err)
	}
	if _, err := readSwapUsage(b[:16]); err == nil {
		t.Error("half an answer was read")
	}
	binary.LittleEndian.PutUint64(b[16:], 1<<63)
	if n, err := readSwapUsage(b); err == nil {
		t.Errorf("an absurd figure was read as %d", n)
	}
}

func TestAMacsWordsAreNamed(t *testing.T) {
	for level, want := range map[uint32]string{0: "", 1: Normal, 2: Warning, 3: "", 4: Critical, 8: ""} {
		if got := pressureWord(level); got != want {
			t.Errorf("pressure %d: %q, want %q", level, got, want)
		}
	}
	for level, want := range map[uint64]string{0: Nominal, 1: Fair, 2: Fair, 3: Serious, 4: Critical, 50: ""} {
		if got := thermalWord(level); got != want {
			t.Errorf("thermal level %d: %q, want %q", level, got, want)
		}
	}
}
