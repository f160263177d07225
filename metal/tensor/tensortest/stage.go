package tensortest

import (
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// RunStaged is the part of Run that saves what was staged, for a back end that
// stages on some devices alone.
func RunStaged(t *testing.T, s Suite) { t.Run("Staged", cacheSuite{s}.staged) }

// staged checks that Save gives the same bytes with and without Stage,
// regardless of what was computed, truncated and computed again in between, and
// that Stage accepts anything.
func (s cacheSuite) staged(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		block := w.spec.BlockTokens
		plain, staged := w.cache(), w.cache()
		both := func(do func(c tensor.Cache)) { do(plain); do(staged) }
		both(func(c tensor.Cache) { w.grow(c, 1, 5*block) })
		for at := 0; at < 5*block; at += block {
			staged.Stage(1, at, at+block)
			staged.Stage(1, at, at+block) // once more changes nothing
		}
		both(func(c tensor.Cache) { w.grow(c, 1, 6*block+1) })
		w.equal("result after a step", w.save(staged, 1), w.save(plain, 1))

		for at := 0; at < 6*block; at += block {
			staged.Stage(1, at, at+block)
		}
		both(func(c tensor.Cache) { c.Truncate(1, 2*block) })
		for i := range w.k { // the same tokens, with other keys
			w.k[i] += 0.25
		}
		both(func(c tensor.Cache) { w.grow(c, 1, 6*block+1) })
		w.equal("what was cut off and computed otherwise", w.save(staged, 1), w.save(plain, 1))

		staged.Stage(1, 0, block)
		both(func(c tensor.Cache) { c.Drop(1) })
		w.grow(staged, 1, 1)
		for _, of := range [][3]int{{1, 0, block}, {1, 1, 0}, {1, -1, 1}, {7, 0, block}} {
			staged.Stage(tensor.RequestID(of[0]), of[1], of[2]) // not held, or no tokens
			if err := staged.Save(tensor.RequestID(of[0]), of[1], of[2], dirty(staged.SliceBytes(of[2]-of[1]))); err == nil {
				t.Errorf("tokens %v are saved, and not held", of)
			}
		}
	})
}

// expected wants a cache to take nothing before it is to hold something, to have
// room for what it holds, and to compute the same.
func (s cacheSuite) expected(t *testing.T) {
	forSaving(s.Suite, t, func(w *saving) {
		plain, staged := w.cache(), w.cache()
		staged.Expect(1, 50)
		staged.Expect(2, 3) // less than comes
		if n, room := staged.Bytes(), staged.Room(1); n != 0 || room != 0 {
			t.Errorf("%d bytes and room for %d tokens are there, and nothing is held", n, room)
		}
		for _, id := range []tensor.RequestID{1, 2} {
			for at := 0; at < 30; at += 3 {
				g := tensor.Segment{Request: id, Start: at, Length: 3}
				equalBits(t, "a step", w.step(staged, g), w.step(plain, g))
				for _, c := range []tensor.Cache{staged, plain} {
					if room := c.Room(id); room < at+3 {
						t.Errorf("room for %d tokens, and %d are held", room, at+3)
					}
				}
			}
			w.equal("what was expected", w.save(staged, id), w.save(plain, id))
		}
		staged.Drop(1)
		staged.Drop(2)
		if n, room := staged.Bytes(), staged.Room(1); n != 0 || room != 0 {
			t.Errorf("%d bytes and room for %d tokens are left after all requests were dropped", n, room)
		}
	})
}
