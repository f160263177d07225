package store

import (
	"cmp"
	"maps"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// maxModels and maxFiles are how many models and files are kept at most, unless
// more are wanted: what the store does with all of them takes time and memory.
const (
	maxModels = 512
	maxFiles  = 16384
)

// quota is the maximum number of models and of files.
type quota struct{ models, files int }

// ofNamespace are the models that a namespace stored.
type ofNamespace struct {
	models, files int
	// unwanted models may be evicted, the least recently used first.
	unwanted []entry
}

// surplus picks unwanted weights to evict so that the rest is within a quota: each
// time those of the namespace with the most, the least recently used first.
func surplus(all []entry, unwanted func(digest string) bool, most quota) (picked []entry) {
	of := map[string]*ofNamespace{}
	have := quota{}
	for _, e := range all {
		n := of[e.namespace()]
		if n == nil {
			n = &ofNamespace{}
			of[e.namespace()] = n
		}
		n.models++
		n.files += len(e.Record.Files)
		have.models++
		have.files += len(e.Record.Files)
		if unwanted(e.Record.Digest) {
			n.unwanted = append(n.unwanted, e)
		}
	}
	for _, n := range of {
		slices.SortFunc(n.unwanted, func(a, b entry) int {
			return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.Record.Digest, b.Record.Digest))
		})
	}
	maps.DeleteFunc(of, func(_ string, n *ofNamespace) bool { return len(n.unwanted) == 0 })
	for len(of) > 0 && (have.models > most.models || have.files > most.files) {
		name := slices.MaxFunc(slices.Sorted(maps.Keys(of)), func(a, b string) int {
			if have.files > most.files {
				return cmp.Compare(of[a].files, of[b].files)
			}
			return cmp.Compare(of[a].models, of[b].models)
		})
		n := of[name]
		e := n.unwanted[0]
		n.unwanted = n.unwanted[1:]
		n.models, have.models = n.models-1, have.models-1
		n.files, have.files = n.files-len(e.Record.Files), have.files-len(e.Record.Files)
		if len(n.unwanted) == 0 {
			delete(of, name)
		}
		picked = append(picked, e)
	}
	return picked
}

// thin evicts unwanted weights of which there are too many; the caller holds room.
func (s *Store) thin() error {
	may := map[string]bool{}
	for _, e := range s.evictable() {
		may[e.Record.Digest] = true
	}
	var picked []unwanted
	for _, e := range surplus(s.objects.all(), func(digest string) bool { return may[digest] }, quota{maxModels, maxFiles}) {
		picked = append(picked, unwanted{digest: e.Record.Digest, source: e.Record.Source})
	}
	return s.discard(picked, v1alpha1.CollectedForCount)
}
