package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// maxListed is the maximum length of MacNode's status.weights, and maxLargest how
// many of the places are for the largest weights: a tenant cannot take those with
// many small ones.
const (
	maxListed  = 256
	maxLargest = maxListed / 4
)

// listed is an item of the list of weights with the facts that decide whether it
// is listed.
type listed struct {
	v1alpha1.StoredWeights
	// namespace is the one that downloaded the weights first.
	namespace string
	wanted    bool
}

// shorten returns the weights for the status, sorted by digest. If there are too
// many, the largest stay, then wanted ones, then others; namespaces take turns, so
// that none fills the list.
func shorten(all []listed) []v1alpha1.StoredWeights {
	slices.SortFunc(all, func(a, b listed) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), strings.Compare(a.Digest, b.Digest))
	})
	picked := all
	if len(all) > maxListed {
		picked = slices.Clone(all[:maxLargest])
		var wanted, others []listed
		for _, l := range all[maxLargest:] {
			if l.wanted {
				wanted = append(wanted, l)
			} else {
				others = append(others, l)
			}
		}
		picked = append(picked, inTurn(wanted)...)
		picked = append(picked, inTurn(others)...)[:maxListed]
	}
	out := make([]v1alpha1.StoredWeights, 0, len(picked))
	for _, l := range picked {
		out = append(out, l.StoredWeights)
	}
	slices.SortFunc(out, func(a, b v1alpha1.StoredWeights) int { return strings.Compare(a.Digest, b.Digest) })
	return out
}

// inTurn sorts weights so that each namespace in turn has one; the order within a
// namespace stays.
func inTurn(all []listed) (out []listed) {
	of := map[string][]listed{}
	for _, l := range all {
		of[l.namespace] = append(of[l.namespace], l)
	}
	names := slices.Sorted(maps.Keys(of))
	for round := 0; len(out) < len(all); round++ {
		for _, n := range names {
			if round < len(of[n]) {
				out = append(out, of[n][round])
			}
		}
	}
	return out
}

// listings returns all weights that are verified and unchanged, each digest once:
// those of the store, then those of the model root.
func (s *Store) listings() []listed {
	stored := s.objects.list()
	spared, known := s.spared()
	s.mu.Lock()
	for i := range stored {
		d := stored[i].Digest
		if stored[i].wanted = known && spared(d) || s.inUse(d); !known || stored[i].wanted {
			stored[i].ReclaimableBytes = 0
		}
	}
	s.mu.Unlock()
	seen := map[string]bool{}
	for _, l := range stored {
		seen[l.Digest] = true
	}
	for _, w := range s.opt.Root.held() {
		if !seen[w.Digest] {
			seen[w.Digest] = true
			stored = append(stored, listed{StoredWeights: w, wanted: known && spared(w.Digest)})
		}
	}
	return stored
}

// List returns the weights on this Mac that are verified and unchanged, in the
// store or in the model root, sorted by digest, at most as many as a status
// holds.
func (s *Store) List() []v1alpha1.StoredWeights { return shorten(s.listings()) }

// reclaimable is how many bytes evicting the unused weights would free, counted
// for each alone, as in List, and including those that List leaves out.
func (s *Store) reclaimable() (sum int64) {
	for _, l := range s.listings() {
		sum += l.ReclaimableBytes
	}
	return sum
}
