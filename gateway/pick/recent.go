package pick

// recentMax is the number of hashes per generation: a few megabytes in total.
const recentMax = 1 << 15

// Recent remembers the hashes that were added last: at least one generation, at most two.
// It is not safe for concurrent use.
type Recent struct{ young, old map[uint64]struct{} }

// Has reports whether a hash was added recently.
func (r *Recent) Has(hash uint64) bool {
	if _, young := r.young[hash]; young {
		return true
	}
	_, old := r.old[hash]
	return old
}

// Add remembers a hash, and may drop older ones.
func (r *Recent) Add(hash uint64) {
	if len(r.young) >= recentMax {
		r.old, r.young = r.young, nil
	}
	if r.young == nil {
		r.young = map[uint64]struct{}{}
	}
	r.young[hash] = struct{}{}
}
