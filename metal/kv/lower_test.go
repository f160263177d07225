package kv_test

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/kvtest"
)

// TestBlocksThatAreGoneDoNotWaitForTheDisk: an agent may be unable to open its folder for days, in
// which an engine evicts millions of blocks.
func TestBlocksThatAreGoneDoNotWaitForTheDisk(t *testing.T) {
	const held, many = 8, 20_000
	m := kv.NewMemory(held*page, kvtest.NewFake())
	defer m.Close(t.Context())
	most := 0
	for n := range many {
		if got := m.Put(kvtest.KeyOf(n), []byte{1}); got != kv.Held {
			t.Fatalf("block %d: %v", n, got)
		}
		most = max(most, m.Listed())
	}
	if most > 4096 {
		t.Errorf("%d blocks wait for the disk, %d are in memory", most, held)
	}
	offered := 0
	for m.WriteBackOnce() {
		offered++
	}
	if offered != held {
		t.Errorf("%d blocks are offered, want the %d in memory", offered, held)
	}
}
