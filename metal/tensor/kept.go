package tensor

import "fmt"

// LayerKind is what a layer keeps of a request.
type LayerKind int

const (
	// Growing layers keep keys and values of every token.
	Growing LayerKind = iota + 1
	// Rotating layers keep those that a window can still see.
	Rotating
	// Recurring layers keep a state that each token changes.
	Recurring
)

// Cut reports whether the cache of layers of a kind can be divided between
// tokens: the bytes of some tokens are then separate and never change. An
// undividable cache is saved as a whole, as it is after the last token.
// ErrUnsupported for an unknown kind.
func (k LayerKind) Cut() (bool, error) {
	switch k {
	case Growing:
		return true, nil
	case Rotating, Recurring:
		return false, nil
	}
	return false, fmt.Errorf("unknown layer kind %d: %w", k, ErrUnsupported)
}

// Kept is the cache of all layers of one kind for a request.
type Kept struct {
	Kind   LayerKind
	Layers int
	// TokenBytes are needed per token, in layers with WindowTokens only for the
	// tokens that the window sees in addition to the newest. StateBytes do not
	// depend on the number of tokens.
	TokenBytes, StateBytes int64
	WindowTokens           int
}

// Kept lists the kinds of layers of a cache, for elements of this many bytes.
func (s CacheSpec) Kept(elementBytes int) []Kept {
	var all []Kept
	of := func(kind LayerKind, layers, window int) {
		if layers > 0 {
			bytes := int64(layers) * int64(s.Heads(window > 0).Elements()) * int64(elementBytes)
			all = append(all, Kept{Kind: kind, Layers: layers, TokenBytes: bytes, WindowTokens: window})
		}
	}
	layers, window := s.Rotating()
	of(Growing, s.Layers-layers, 0)
	of(Rotating, layers, window)
	if r := s.Recurrent; r.Layers > 0 {
		all = append(all, Kept{Kind: Recurring, Layers: r.Layers, StateBytes: r.StateBytes()})
	}
	return all
}

// Saved is the size in bytes of Save's output per token, and of SaveState's
// output per request.
type Saved struct {
	TokenBytes, StateBytes int64
	// RotatingBytes are the bytes per token of rotating layers, of which at
	// most the last RotatingTokens are saved.
	RotatingBytes  int64
	RotatingTokens int
}

// SavedOf adds up what layers keep, by whether it can be cut. ErrUnsupported for
// a kind that does not say so, and where what grows could only be saved whole.
func SavedOf(all []Kept) (Saved, error) {
	var out Saved
	for _, k := range all {
		cut, err := k.Kind.Cut()
		switch {
		case err != nil:
			return Saved{}, err
		case cut == (k.StateBytes > 0 || k.WindowTokens > 0):
			return Saved{}, fmt.Errorf("layers of kind %d keep %d bytes per token, in a window of %d, and %d fixed bytes: %w", k.Kind, k.TokenBytes, k.WindowTokens, k.StateBytes, ErrUnsupported)
		case cut:
			out.TokenBytes += k.TokenBytes
		default:
			out.StateBytes += k.StateBytes
		}
		if k.WindowTokens > 0 {
			out.RotatingBytes, out.RotatingTokens = k.TokenBytes, k.WindowTokens-1
		}
	}
	return out, nil
}

// RotatingOf is the number of tokens of rotating layers that are saved of this
// many.
func (s Saved) RotatingOf(tokens int) int { return min(max(0, tokens), s.RotatingTokens) }

// State is the size of SaveState's output for a request of this many tokens.
func (s Saved) State(tokens int) int64 {
	return s.StateBytes + s.RotatingBytes*int64(s.RotatingOf(tokens))
}

// FitsSave returns an error if tokens [first, last) cannot be saved into a
// buffer of this many bytes; every layer holds held tokens.
func (s Saved) FitsSave(held, first, last, bytes int) error {
	switch {
	case first < 0 || first >= last || last > held:
		return fmt.Errorf("tokens %d to %d of %d: %w", first, last, held, ErrSegment)
	case int64(bytes) != s.TokenBytes*int64(last-first):
		return &ShapeError{Op: "Save", Detail: fmt.Sprintf("%d bytes for %d tokens, want %d", bytes, last-first, s.TokenBytes*int64(last-first))}
	}
	return nil
}

// FitsState returns an error if the undividable state cannot be saved into a
// buffer of this many bytes; every layer holds held tokens, and layers that are
// saved whole hold the numbers in whole.
func (s Saved) FitsState(held int, whole []int, bytes int) error {
	if held == 0 {
		return fmt.Errorf("a state after no token: %w", ErrSegment)
	}
	for layer, n := range whole {
		if n != held {
			return fmt.Errorf("layer %d of those that are saved whole has seen %d of %d tokens: %w", layer, n, held, ErrSegment)
		}
	}
	if want := s.State(held); int64(bytes) != want {
		return &ShapeError{Op: "SaveState", Detail: fmt.Sprintf("%d bytes, want %d", bytes, want)}
	}
	return nil
}

// FitsRestore returns an error unless slices and state are complete for this
// many tokens: one slice per block, of which the last may be shorter, and the
// state after them.
func (s Saved) FitsRestore(tokens, blockTokens int, slices [][]byte, state []byte) error {
	blocks := len(slices)
	if tokens <= 0 || tokens > blocks*blockTokens || tokens <= (blocks-1)*blockTokens {
		return &ShapeError{Op: "Restore", Detail: fmt.Sprintf("%d slices for %d tokens in blocks of %d", blocks, tokens, blockTokens)}
	}
	for i, p := range slices {
		if want := s.TokenBytes * int64(min(blockTokens, tokens-i*blockTokens)); int64(len(p)) != want {
			return &ShapeError{Op: "Restore", Detail: fmt.Sprintf("slice %d has %d bytes, want %d", i, len(p), want)}
		}
	}
	if want := s.State(tokens); int64(len(state)) != want {
		return &ShapeError{Op: "Restore", Detail: fmt.Sprintf("a state of %d bytes, want %d", len(state), want)}
	}
	return nil
}
