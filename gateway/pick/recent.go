package pick

// recentMost is how many hashes a generation has: together some megabytes.
const recentMost = 1 << 15

// Recent remembers the hashes that were added last: at least as many as a
// generation has, at most two of them. It is for one goroutine at a time.
type Recent struct{ young, old map[uint64]struct{} }

// Has says that a hash was added lately.
func (r *Recent) Has(hash uint64) bool {
	if _, young := r.young[hash]; young {
		return true
	}
	_, old := r.old[hash]
	return old
}

// Add remembers a hash, and may forget older ones.
func (r *Recent) Add(hash uint64) {
	if len(r.young) >= recentMost {
		r.old, r.young = r.young, nil
	}
	if r.young == nil {
		r.young = map[uint64]struct{}{}
	}
	r.young[hash] = struct{}{}
}
