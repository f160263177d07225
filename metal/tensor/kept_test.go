//go:build !race

package tensor

import (
	"errors"
	"testing"
)

// A composite layer is the sum of its kinds; an unknown kind is refused.
func TestEveryLayerKindDeclaresWhetherItsCacheCanBeCut(t *testing.T) {
	attention := CacheSpec{Layers: 3, KVHeads: 2, HeadSize: 4, BlockTokens: 8}
	hybrid := attention
	hybrid.Recurrent = RecurrentSpec{Layers: 2, KeyHeads: 1, KeySize: 3, ValueHeads: 2, ValueSize: 5, Taps: 4}
	windows := attention
	windows.Windows = []int{0, 5, 5}
	everything := hybrid
	everything.Windows = windows.Windows
	unknown := Kept{Kind: LayerKind(99), Layers: 1, TokenBytes: 8}
	for name, c := range map[string]struct {
		kept []Kept
		want Saved
		err  error
	}{
		"attention":                  {attention.Kept(2), Saved{TokenBytes: 2 * 3 * 2 * 4 * 2}, nil},
		"recurrent and attention":    {hybrid.Kept(4), Saved{TokenBytes: 2 * 3 * 2 * 4 * 4, StateBytes: 4 * 2 * (3*16 + 2*5*3)}, nil},
		"windows and attention":      {windows.Kept(2), Saved{TokenBytes: 2 * 2 * 4 * 2, RotatingBytes: 2 * 2 * 2 * 4 * 2, RotatingTokens: 4}, nil},
		"all of them":                {everything.Kept(2), Saved{TokenBytes: 2 * 2 * 4 * 2, StateBytes: 4 * 2 * (3*16 + 2*5*3), RotatingBytes: 2 * 2 * 2 * 4 * 2, RotatingTokens: 4}, nil},
		"a window that is to be cut": {[]Kept{{Kind: Growing, TokenBytes: 8, WindowTokens: 4}}, Saved{}, ErrUnsupported},
		"no window of what has one":  {[]Kept{{Kind: Rotating, TokenBytes: 8}}, Saved{}, ErrUnsupported},
		"an unknown kind":            {append(attention.Kept(2), unknown), Saved{}, ErrUnsupported},
		"no kind":                    {[]Kept{{TokenBytes: 8}}, Saved{}, ErrUnsupported},
		"a state that is to be cut":  {[]Kept{{Kind: Growing, TokenBytes: 8, StateBytes: 8}}, Saved{}, ErrUnsupported},
		"no state of what has one":   {[]Kept{{Kind: Recurring, TokenBytes: 8}}, Saved{}, ErrUnsupported},
	} {
		if got, err := SavedOf(c.kept); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v and error %v, want %+v and %v", name, got, err, c.want, c.err)
		}
	}
}

// What rotating layers keep is what a window sees, some tokens to move it by, and
// a step; tokens that a later one sees are never among those that made way.
func TestARotationKeepsWhatAWindowSees(t *testing.T) {
	for _, window := range []int{1, 5, 128, 512} {
		for _, chunk := range []int{1, 32, 300, 2048} {
			const block = 256
			var r Rotation
			for at := 0; at < 20_000; at += chunk {
				r = r.For(at, at+chunk, window, block)
				if first := max(0, at-window+1); r.Base > first || r.Base+r.Room < at+chunk {
					t.Fatalf("window %d: tokens %d to %d do not lie in %+v", window, first, at+chunk, r)
				}
				if !r.Holds(at, window) {
					t.Fatalf("window %d: %+v cannot go back before the step at %d", window, r, at)
				}
				if most := roundUp(window-1+max(chunk, rotatingSlack), block); r.Room > most {
					t.Fatalf("window %d, %d tokens a step: room for %d, want %d at most", window, chunk, r.Room, most)
				}
			}
			for _, tokens := range []int{1, window, window + 50, 5000} {
				if r := Restored(tokens, window, block); r.Base > max(0, tokens-window+1) || r.Base+r.Room < tokens {
					t.Fatalf("window %d: %d restored tokens do not lie in %+v", window, tokens, r)
				}
			}
		}
	}
}
