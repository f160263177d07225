//go:build mlx

package mlx

import (
	"bytes"
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// A cache that has seen no keys does not guess how wide they are.
func TestNothingIsRestoredBeforeTheFirstKeys(t *testing.T) {
	c := newCache(t, open(t, Options{}), tensor.CacheSpec{Layers: 1, KVHeads: 1, HeadSize: 4, BlockTokens: 4})
	if n := c.SliceBytes(4); n != 0 {
		t.Errorf("4 tokens of an unknown type have %d bytes", n)
	}
	if err := c.Restore(1, 4, [][]byte{{}}, nil); !errors.Is(err, tensor.ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
}

// saveAll is what a request of one block holds.
func saveAll(t *testing.T, c tensor.Cache, id tensor.RequestID) []byte {
	t.Helper()
	n := c.Length(id)
	p := make([]byte, c.SliceBytes(n))
	if err := c.Save(id, 0, n, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Whichever operation fails during a restore, a request that was not restored
// holds nothing, and those in the same arrays continue.
func TestAFaultWhileRestoringLeavesNothingBehind(t *testing.T) {
	fault, fail := errors.New("told to fail"), ""
	b := open(t, Options{fault: func(op string) error {
		if op == fail {
			return fault
		}
		return nil
	}})
	d := newDecoding(t, b, 3, 16)
	d.grow(1, 5)
	was := saveAll(t, d.cache, 1)
	before := b.Memory()
	for _, op := range []string{"Save", "SaveState", "Restore"} {
		fail = op
		var err error
		switch op {
		case "Save":
			err = d.cache.Save(1, 0, 5, make([]byte, len(was)))
		case "SaveState":
			err = d.cache.SaveState(1, nil)
		default:
			err = d.cache.Restore(2, 5, [][]byte{was}, nil)
		}
		fail = ""
		if now := b.Memory(); !errors.Is(err, fault) || now.KV != before.KV || now.Live != 0 || d.cache.Length(2) != 0 {
			t.Fatalf("%s: error %v; memory is %+v, was %+v", op, err, now, before)
		}
	}
	if err := d.cache.Restore(2, 5, [][]byte{was}, nil); err != nil {
		t.Fatal(err)
	}
	d.grow(1, 9)
	d.grow(2, 9)
	if !bytes.Equal(saveAll(t, d.cache, 1), saveAll(t, d.cache, 2)) {
		t.Error("a restored request and the one it came of hold different bytes")
	}
}

// What was lost in a failed evaluation is not saved.
func TestALostRequestIsNotSaved(t *testing.T) {
	fault, fail := errors.New("told to fail"), false
	b := open(t, Options{fault: func(op string) error {
		if fail && op == "evaluate" {
			return fault
		}
		return nil
	}})
	d := newDecoding(t, b, 1, 16)
	d.grow(1, 3)
	fail = true
	if err := d.step(tensor.Segment{Request: 1, Start: 3, Length: 1}); !errors.Is(err, fault) {
		t.Fatal(err)
	}
	fail = false
	if err := d.cache.Save(1, 0, 3, make([]byte, d.cache.SliceBytes(3))); !errors.Is(err, fault) {
		t.Errorf("error %v, want why it was lost", err)
	}
}

// Bytes come and go a few layers at a time: what exists twice is that many, and
// is asked for.
func TestSavingAndRestoringTakeLittleBeside(t *testing.T) {
	b := open(t, Options{})
	const layers, block, tokens = 16, 256, 192 // 6 MiB
	d := newDecoding(t, b, layers, block)
	d.grow(1, tokens)
	slice := make([]byte, d.cache.SliceBytes(tokens))
	few := int64(len(slice)) / layers * layersAtOnce
	save := func() error { return d.cache.Save(1, 0, tokens, slice) }
	rise := func(f func() error) int64 {
		t.Helper()
		before := b.Memory().Active()
		if err := errors.Join(b.resetPeak(), f()); err != nil {
			t.Fatal(err)
		}
		return b.Peak() - before
	}
	if got := rise(save); got > few+1<<16 {
		t.Errorf("saving took %d bytes in addition to the cache, some layers have %d", got, few)
	}
	b.SetLimits(b.Memory().Active()+few-1, 0)
	if err := save(); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("without room for some layers: error %v, want ErrMemory", err)
	}
	b.SetLimits(0, 0)
	d.cache.Drop(1)
	held := d.cache.SliceBytes(block)
	if got := rise(func() error { return d.cache.Restore(2, tokens, [][]byte{slice}, nil) }); got > held+2*held/layers*layersAtOnce+1<<16 {
		t.Errorf("restoring took %d bytes, %d are held and some layers have %d", got, held, held/layers*layersAtOnce)
	}
	if m := b.Memory(); m.Arrays != 0 {
		t.Errorf("%d bytes of arrays are left", m.Arrays)
	}
}

// Blocks that the device takes apart lie there twice meanwhile.
func TestBlocksOnTheDeviceAskForRoom(t *testing.T) {
	b := open(t, Options{Whole: 1 << 30})
	const layers, block, tokens = 16, 256, 192 // 6 MiB
	d := newDecoding(t, b, layers, block)
	d.grow(1, tokens)
	slice := make([]byte, d.cache.SliceBytes(tokens))
	if err := d.cache.Save(1, 0, tokens, slice); err != nil {
		t.Fatal(err)
	}
	d.cache.Drop(1)
	restore := func() error { return d.cache.Restore(2, tokens, [][]byte{slice}, nil) }
	b.SetLimits(b.Memory().Active()+2*d.cache.SliceBytes(block), 0)
	if err := restore(); !errors.Is(err, tensor.ErrMemory) {
		t.Errorf("with room for the slab and some layers: error %v, want ErrMemory", err)
	}
	b.SetLimits(0, 0)
	if err := restore(); err != nil {
		t.Fatal(err)
	}
}

// A window takes memory for itself, a step and moving it, however many tokens
// come. Moving it needs no more than that.
func TestAWindowTakesNoMoreThanItsRoom(t *testing.T) {
	b := open(t, Options{})
	d := &decoding{t: t, b: b, heads: 8, kvHeads: 4, size: 64, layers: 2, window: 100}
	d.cache = newCache(t, b, tensor.CacheSpec{Layers: 2, KVHeads: 4, HeadSize: 64, BlockTokens: 32, Windows: []int{100, 100}})
	d.grow(1, 1000)
	const room = 192 // 99 tokens, 64 of a step, in blocks of 32
	token := tensor.CacheSpec{Layers: 2, KVHeads: 4, HeadSize: 64}.TokenBytes(4)
	extra := int64(0)
	if b.cuda.Load() {
		extra = extraTokens
	}
	if got, want := d.cache.Bytes(), (room+extra)*token; got != want || b.Memory().KV != want {
		t.Errorf("%d bytes are held after 1000 tokens, want %d", got, want)
	}
	for at := 1000; at < 1200; at++ {
		if rise := d.rise(tensor.Segment{Request: 1, Start: at, Length: 1}); rise > 2*d.cache.Bytes() {
			t.Fatalf("token %d took %d bytes with a window of %d", at, rise, d.cache.Bytes())
		}
	}
	if got, want := d.cache.Bytes(), (room+extra)*token; got != want {
		t.Errorf("%d bytes are held after 1200 tokens, want %d", got, want)
	}
}
