package tensor

// CacheSpec is the shape of what layers keep for every request.
type CacheSpec struct {
	// Layers that attend, each with keys and values: KVHeads of HeadSize elements,
	// and of ValueSize elements if that is not 0.
	Layers, KVHeads, HeadSize, ValueSize int
	// Within means that values are the first ValueSize elements of keys, and are
	// not stored again (multi-head latent attention).
	Within bool
	// Local is the shape of layers with a window; the zero value means the shape of
	// the others.
	Local HeadSpec
	// Windows are the windows of the attention layers in latest positions; a
	// cache forgets tokens that no window sees any more. 0, or an empty slice,
	// means all positions. Windows other than 0 are equal.
	Windows []int
	// BlockTokens is the granularity of allocation.
	BlockTokens int
	// Recurrent layers are numbered separately; the zero value means none.
	Recurrent RecurrentSpec
}

// HeadSpec is what an attending layer keeps of a token.
type HeadSpec struct {
	// KVHeads of keys have HeadSize elements each, and of values ValueSize.
	KVHeads, HeadSize, ValueSize int
	// Within is set where values are the first elements of keys.
	Within bool
}

// Heads is the shape of layers under a window, or of those that grow.
func (s CacheSpec) Heads(local bool) HeadSpec {
	h := HeadSpec{s.KVHeads, s.HeadSize, s.ValueSize, s.Within}
	if local && s.Local != (HeadSpec{}) {
		h = s.Local
	}
	if h.ValueSize == 0 {
		h.ValueSize = h.HeadSize
	}
	return h
}

// HeadsOf is the shape of an attending layer.
func (s CacheSpec) HeadsOf(layer int) HeadSpec { return s.Heads(s.WindowOf(layer) > 0) }

// Stored is how many elements of values a head has that are stored apart from keys.
func (h HeadSpec) Stored() int {
	if h.Within {
		return 0
	}
	return h.ValueSize
}

// Elements are those of a token in one layer.
func (h HeadSpec) Elements() int { return h.KVHeads * (h.HeadSize + h.Stored()) }

// Fits reports whether there can be such heads.
func (h HeadSpec) Fits() bool {
	return h.KVHeads > 0 && h.HeadSize > 0 && h.ValueSize > 0 && !(h.Within && h.ValueSize > h.HeadSize)
}

// TokenBytes is the size of one token in all attention layers, for elements of
// this many bytes.
func (s CacheSpec) TokenBytes(elementBytes int) int64 {
	rotating, _ := s.Rotating()
	elements := (s.Layers-rotating)*s.Heads(false).Elements() + rotating*s.Heads(true).Elements()
	return int64(elements) * int64(elementBytes)
}

// RequestID names a request to a cache; the caller never uses one twice.
type RequestID int64

// Cache holds keys, values and recurrent states of running requests.
type Cache interface {
	// Length is the number of tokens of a request that every layer holds.
	Length(RequestID) int
	// Expect sets the minimum number of tokens that a request will hold, before
	// it holds any or later: a cache that makes room by copying then makes room
	// for all of them at once. No memory is taken before the first token. Drop
	// forgets it.
	Expect(id RequestID, tokens int)
	// Room is for how many tokens a request has room; 0 for unknown ones.
	Room(id RequestID) int
	// Stage announces that tokens [first, last) of a request will be saved
	// after a later step: a cache on a device that computes asynchronously
	// begins to copy them, so that Save does not have to wait for that step. It
	// may do nothing, as for tokens that cannot be saved. Drop, Truncate and
	// Save cancel it.
	Stage(id RequestID, first, last int)
	// Drop returns the blocks of a request; unknown requests are ignored.
	Drop(RequestID)
	// Truncate forgets what any layer holds of a request after its first
	// tokens, such as the result of a step that failed halfway. Blocks may stay
	// for later tokens. A recurrent state can only go back to before the drafts of
	// the last step (Segment.Draft), and a window only to
	// where it still holds all tokens that were seen: if one is past those
	// tokens, everything of the request is forgotten and its length is 0. A
	// window can always go back to before the last step.
	Truncate(id RequestID, tokens int)
	// Bytes held by requests.
	Bytes() int64
	// SliceBytes is the size of Save's output for this many tokens: 0 if no
	// layer can be divided, and as long as the cache does not know the width of
	// keys, which some back ends learn in the first step.
	SliceBytes(tokens int) int64
	// StateBytes is the size of SaveState's output for a request of this many
	// tokens: 0 if the caches of all layers can be divided.
	StateBytes(tokens int) int64
	// Save copies what layers that can be cut hold of tokens [first, last) into
	// dst, of SliceBytes(last-first) bytes, and waits for what computes it.
	// ErrSegment for tokens that are not held by every layer.
	Save(id RequestID, first, last int, dst []byte) error
	// SaveState copies the undividable state at Length into dst, of
	// StateBytes(Length) bytes. It returns ErrSegment if the layers have not
	// all computed the same number of tokens.
	SaveState(id RequestID, dst []byte) error
	// Restore makes an unknown request hold tokens, bit for bit as they were
	// saved: slices are blocks of BlockTokens in order, of which the last may
	// be shorter, and state is the output of SaveState after the last token,
	// nil if there is none. After an error the request holds nothing:
	// ErrSegment if the request is known, ErrShape if the bytes are not those
	// of this many tokens, ErrMemory if there is no room, ErrUnsupported if the
	// cache does not know the width of keys yet.
	Restore(id RequestID, tokens int, slices [][]byte, state []byte) error
	// Release drops all requests.
	Release()
}
