//go:build !race

package v1alpha1

import "testing"

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 1: "1 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB",
		1<<20 - 1: "1.0 MiB", 12348030976: "11.5 GiB", 192 << 30: "192.0 GiB", 1 << 62: "4096.0 PiB", -2048: "-2.0 KiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %q, want %q", n, got, want)
		}
	}
}
