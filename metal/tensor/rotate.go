package tensor

import "slices"

// Rotating returns the number of attention layers with a window, and the window
// in tokens.
func (s CacheSpec) Rotating() (layers, window int) {
	for _, w := range s.Windows {
		if w > 0 {
			layers, window = layers+1, w
		}
	}
	return layers, window
}

// WindowOf is the number of latest positions that an attention layer sees; 0
// means all.
func (s CacheSpec) WindowOf(layer int) int {
	if layer < 0 || layer >= len(s.Windows) {
		return 0
	}
	return s.Windows[layer]
}

// Fits reports whether the spec is valid: Windows is empty or has one entry for
// each attention layer, and entries other than 0 are equal.
func (s CacheSpec) Fits() bool {
	_, window := s.Rotating()
	return s.Layers > 0 && s.Heads(false).Fits() && s.Heads(true).Fits() && s.BlockTokens > 0 && s.Recurrent.Fits() &&
		(len(s.Windows) == 0 || len(s.Windows) == s.Layers) &&
		!slices.ContainsFunc(s.Windows, func(w int) bool { return w != 0 && w != window || w < 0 })
}

// rotatingSlack is the minimum room of rotating layers in tokens in addition to
// a full window: the window is moved to the front once per that many tokens.
const rotatingSlack = 64

// Rotation describes the memory of rotating layers: room for Room tokens, the
// first of which is token Base of the request. Tokens before it are forgotten.
type Rotation struct{ Base, Room int }

// Holds reports whether rows may follow the first tokens of a request: whether
// all that their window sees is there.
func (r Rotation) Holds(tokens, window int) bool { return r.Base <= max(0, tokens-window+1) }

// For makes room for tokens up to end, of which those from start on are new in
// some layer, in whole blocks. Tokens stay while all have room in addition to a
// window; then those that no new one sees are dropped.
func (r Rotation) For(start, end, window, blockTokens int) Rotation {
	if end <= r.Base+r.Room {
		return r
	}
	full := roundUp(window-1+max(end-start, rotatingSlack), blockTokens)
	if r.Base == 0 && end <= full {
		return Rotation{Room: roundUp(end, blockTokens)}
	}
	return Rotation{Base: max(r.Base, start-window+1), Room: max(r.Room, full)}
}

// Restored is the Rotation of a restored request: the tokens that a window
// still sees, and room for new ones.
func Restored(tokens, window, blockTokens int) Rotation {
	return Rotation{Base: max(0, tokens-window+1), Room: roundUp(min(tokens, window-1+rotatingSlack), blockTokens)}
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
