//go:build linux

package probe

import "testing"

// TestAnonymousPagesAreNotSpare: own engines' pages are anonymous, and are in
// their footprints already. File pages are, also those that were read twice.
func TestAnonymousPagesAreNotSpare(t *testing.T) {
	m := map[string]int64{"MemTotal": 100, "MemFree": 20, "MemAvailable": 55, "AnonPages": 40, "Shmem": 5, "SwapTotal": 30, "SwapFree": 10,
		"Active(file)": 12, "Inactive(file)": 13, "Active": 40, "Inactive": 45, "Active(anon)": 28, "Inactive(anon)": 32}
	want := Host{Total: 100, Free: 20, Inactive: 25, Active: 0, SwapUsed: 20, Used: 65, Foreign: 35}
	if got := hostOf(m, 10); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
