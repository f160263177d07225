package demand

import (
	"cmp"
	"slices"
)

// Limits of the models in a report, in number and in bytes of their names.
// Each model takes about modelBytes besides.
const (
	maxModels     = 20_000
	maxModelBytes = 4 << 20
	modelBytes    = 100
)

// Cut bounds the models of a report: a tenant that makes many must not void the
// figures of others. Namespaces share the room evenly, and the busiest models of
// each stay. The requests of the others are counted in CutRunning.
func (r *Report) Cut() {
	if len(r.Models) <= maxModels && sizeOf(r.Models) <= maxModelBytes {
		return
	}
	slices.SortFunc(r.Models, func(a, b Model) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(b.Waiting+b.Running, a.Waiting+a.Running),
			cmp.Compare(b.Begun, a.Begun), cmp.Compare(a.Name, b.Name))
	})
	turns, bytes := make(map[string]int), 0
	type turn struct {
		Model
		number int // within its namespace
	}
	all := make([]turn, len(r.Models))
	for i, m := range r.Models {
		all[i] = turn{m, turns[m.Namespace]}
		turns[m.Namespace]++
	}
	slices.SortStableFunc(all, func(a, b turn) int { return cmp.Compare(a.number, b.number) })
	r.Models = r.Models[:0]
	for _, m := range all {
		size := sizeOf([]Model{m.Model})
		if len(r.Models) == maxModels || bytes+size > maxModelBytes {
			r.CutRunning += max(0, m.Running)
			continue
		}
		bytes += size
		r.Models = append(r.Models, m.Model)
	}
}

func sizeOf(models []Model) (bytes int) {
	for _, m := range models {
		bytes += modelBytes + len(m.Namespace) + len(m.Name)
	}
	return bytes
}
