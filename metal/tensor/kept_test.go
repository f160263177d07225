package tensor

import (
	"errors"
	"testing"
)

// X4: every kind of layer says whether what it keeps can be cut, composites are
// the sum of their kinds, and a kind that says neither is refused.
func TestX4EveryKindOfLayerSaysWhetherItCanBeCut(t *testing.T) {
	attention := CacheSpec{Layers: 3, KVHeads: 2, HeadSize: 4, BlockTokens: 8}
	hybrid := attention
	hybrid.Recurrent = RecurrentSpec{Layers: 2, KeyHeads: 1, KeySize: 3, ValueHeads: 2, ValueSize: 5, Taps: 4}
	unknown := Kept{Kind: LayerKind(99), Layers: 1, TokenBytes: 8}
	for name, c := range map[string]struct {
		kept []Kept
		want Saved
		err  error
	}{
		"attention":                 {attention.Kept(2), Saved{TokenBytes: 2 * 3 * 2 * 4 * 2}, nil},
		"recurrent and attention":   {hybrid.Kept(4), Saved{TokenBytes: 2 * 3 * 2 * 4 * 4, StateBytes: 4 * 2 * (3*16 + 2*5*3)}, nil},
		"an unknown kind":           {append(attention.Kept(2), unknown), Saved{}, ErrUnsupported},
		"no kind":                   {[]Kept{{TokenBytes: 8}}, Saved{}, ErrUnsupported},
		"a state that is to be cut": {[]Kept{{Kind: Growing, TokenBytes: 8, StateBytes: 8}}, Saved{}, ErrUnsupported},
		"no state of what has one":  {[]Kept{{Kind: Recurring, TokenBytes: 8}}, Saved{}, ErrUnsupported},
	} {
		if got, err := SavedOf(c.kept); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v and error %v, want %+v and %v", name, got, err, c.want, c.err)
		}
	}
}
