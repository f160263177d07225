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

// stored returns the downloaded weights that are verified and unchanged. Wanted ones
// have no bytes to reclaim, and none has while it is unknown which are wanted.
func (s *Store) stored() []listed {
	all := s.objects.list()
	spared, known := s.opt.spared()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		l := &all[i]
		l.wanted = known && spared(l.Digest) || s.inUse(l.Digest)
		if !known || l.wanted {
			l.ReclaimableBytes = 0
		}
	}
	return all
}

// List returns the weights on this Mac that are verified and unchanged, in the
// store or in the model root, sorted by digest, at most as many as a status
// holds.
func (s *Store) List() []v1alpha1.StoredWeights {
	all := s.stored()
	spared, known := s.opt.spared()
	seen := map[string]bool{}
	for _, l := range all {
		seen[l.Digest] = true
	}
	for _, w := range s.opt.Root.held() {
		if !seen[w.Digest] {
			seen[w.Digest] = true
			all = append(all, listed{StoredWeights: w, wanted: known && spared(w.Digest)})
		}
	}
	return shorten(all)
}

// reclaimable is how many bytes evicting the unused weights would free, counted
// for each alone, as in List, and including those that List leaves out.
func reclaimable(stored []listed) (sum int64) {
	for _, l := range stored {
		sum += l.ReclaimableBytes
	}
	return sum
}
