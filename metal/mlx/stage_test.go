//go:build mlx

package mlx

import (
	"bytes"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
	"metalfleet.dev/metalfleet/metal/tensor/tensortest"
)

// What CUDA does with what is to be saved is right anywhere.
func TestConformanceOfWhatIsStaged(t *testing.T) {
	for _, bytes := range []int64{1, 1000, 1 << 30} {
		tensortest.RunStaged(t, suite(Options{Staged: bytes}))
	}
}

// TestStagedIsWithinItsBound, is what lay there when it was staged, and goes with
// what it was of.
func TestStagedIsWithinItsBound(t *testing.T) {
	const block = 32
	b := open(t, Options{Staged: 2 * block * 2 * 4 * 64 * 4}) // two blocks of one layer
	d := newDecoding(t, b, 1, block)
	d.grow(1, 4*block)
	d.grow(2, block)
	live := b.Memory().Live
	staged := func() int64 { return b.Memory().Live - live }
	for at := range 3 {
		d.cache.Stage(1, at*block, (at+1)*block)
	}
	d.cache.Stage(2, 0, block)
	if n := staged(); n != 2 {
		t.Errorf("%d blocks are staged, want the two that there is room for", n)
	}
	dst := make([]byte, d.cache.SliceBytes(block))
	save := func(at int) []byte {
		t.Helper()
		if err := d.cache.Save(1, at*block, (at+1)*block, dst); err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(dst)
	}
	save(2) // not staged
	if save(0); staged() != 1 {
		t.Errorf("%d blocks are staged after one was saved, want 1", staged())
	}
	d.cache.Stage(2, 0, block)
	if staged() != 2 {
		t.Errorf("%d blocks are staged, want 2: there is room for one more", staged())
	}
	d.cache.Drop(1)
	if staged() != 1 {
		t.Errorf("%d blocks are staged after their request went, want that of the other", staged())
	}
	d.cache.Truncate(2, 1)
	if staged() != 0 {
		t.Errorf("%d blocks are staged after their request was cut", staged())
	}
	d.grow(2, block)
	b.SetLimits(b.Memory().Active()+1, 0)
	if d.cache.Stage(2, 0, block); staged() != 0 {
		t.Error("a block is staged where there is no room")
	}
	b.SetLimits(0, 0)
	if d.cache.Stage(2, 0, block); staged() != 1 {
		t.Errorf("%d blocks are staged, want 1", staged())
	}
	if d.cache.Release(); staged() > 0 {
		t.Errorf("%d blocks are staged after the cache went", staged())
	}
}

// TestWhatIsExpectedIsMovedOnce: a prompt of many steps gets its room with the
// first, and what it holds is copied never.
func TestWhatIsExpectedIsMovedOnce(t *testing.T) {
	b := open(t, Options{})
	d := newDecoding(t, b, 2, 32)
	d.cache.Expect(1, 1000)
	d.grow(1, 64)
	room, held := d.cache.Room(1), d.cache.Bytes()
	if room < 1000 {
		t.Fatalf("room for %d tokens, want 1000", room)
	}
	d.grow(1, 1000)
	if got := d.cache.Bytes(); d.cache.Room(1) != room || got != held {
		t.Errorf("room for %d tokens in %d bytes, want it to stay %d in %d", d.cache.Room(1), got, room, held)
	}
	d.grow(1, room+1)
	if d.cache.Room(1) <= room {
		t.Error("no room for more than was expected")
	}
	d.cache.Drop(1)
	d.grow(1, 1) // nothing is expected of it any more
	if got := d.cache.Room(1); got >= 1000 {
		t.Errorf("room for %d tokens of another request of that name", got)
	}
}

var _ tensor.Pinner = (*Backend)(nil)

// TestMemoryIsApartOnCUDAAlone: a Mac's and a processor's is one.
func TestMemoryIsApartOnCUDAAlone(t *testing.T) {
	b := open(t, Options{})
	if b.Apart() != b.cuda.Load() {
		t.Errorf("apart: %v, on CUDA: %v", b.Apart(), b.cuda.Load())
	}
	if unpin := b.Pin(make([]byte, 4096)); unpin != nil && !b.Apart() {
		t.Error("memory is pinned for a device that shares it")
	}
}
