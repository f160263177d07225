package kv_test

import (
	"runtime/debug"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestWhatIsPreparedIsResident: its writer waits for no page.
func TestWhatIsPreparedIsResident(t *testing.T) {
	const size = 64 << 20
	m := kv.NewMemory(size, nil)
	defer m.Close(t.Context())
	debug.FreeOSMemory() // the garbage of other tests, which would leave meanwhile
	before := resident(t)
	m.Prepare(size, 1)
	for deadline := time.Now().Add(patience.Of(t)); resident(t)-before < size*9/10; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes more are resident, want %d", resident(t)-before, size)
		}
	}
}
