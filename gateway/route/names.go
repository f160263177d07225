package route

import (
	"cmp"
	"slices"
	"strings"
)

// Name is a name that clients may use.
type Name struct {
	Name  string
	Model *Model
	// Adapter of the model that the name selects; empty for the model alone.
	Adapter string
}

// index is an immutable table of names.
type index struct {
	byName map[string]Name
	listed []Name
}

// indexOf assigns every NAMESPACE/NAME to its own deployment, and NAMESPACE/NAME:ADAPTER,
// and each other name to the oldest deployment whose status claims it.
func indexOf(entries []*entry) *index {
	slices.SortFunc(entries, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Key.String(), b.Key.String()))
	})
	out := &index{byName: make(map[string]Name, 2*len(entries))}
	full := make([][]Name, len(entries)) // of each deployment
	for i, e := range entries {
		full[i] = append(full[i], Name{e.Key.String(), e.model, ""})
		for adapter := range strings.SplitSeq(e.Adapters, "\n") {
			if adapter != "" {
				full[i] = append(full[i], Name{e.Key.String() + ":" + adapter, e.model, adapter})
			}
		}
		for _, n := range full[i] {
			out.byName[n.Name] = n
		}
	}
	for i, e := range entries {
		named := false
		for name := range strings.SplitSeq(e.Names, "\n") {
			if _, taken := out.byName[name]; name != "" && !taken {
				named = true
				n := Name{name, e.model, e.adapterOf(name)}
				out.byName[name] = n
				out.listed = append(out.listed, n)
			}
		}
		if !named {
			out.listed = append(out.listed, full[i]...)
		}
	}
	slices.SortFunc(out.listed, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	return out
}
