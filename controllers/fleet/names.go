package fleet

import (
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Claims are the bare names that a deployment wants to serve.
func Claims(d *v1alpha1.ModelDeployment) []string {
	if len(d.Spec.ServedNames) == 0 {
		return []string{d.Name}
	}
	return d.Spec.ServedNames
}

// NameConflict is a bare name that an older deployment owns.
type NameConflict struct {
	Name  string
	Owner *v1alpha1.ModelDeployment
}

// Names says which names a deployment owns among all others: its bare names,
// in its own order, then NAMESPACE/NAME, which is always its own. A bare name
// belongs to the oldest deployment that claims it and is not being deleted.
func Names(d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) (owned []string, conflicts []NameConflict) {
	for _, name := range Claims(d) {
		if owner := ownerOf(name, d, all); owner != nil {
			conflicts = append(conflicts, NameConflict{Name: name, Owner: owner})
			continue
		}
		owned = append(owned, name)
	}
	return append(owned, d.Namespace+"/"+d.Name), conflicts
}

// ownerOf returns the oldest living deployment before d that claims name.
func ownerOf(name string, d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) *v1alpha1.ModelDeployment {
	var owner *v1alpha1.ModelDeployment
	for i := range all {
		o := &all[i]
		if o.UID == d.UID || !o.DeletionTimestamp.IsZero() || !slices.Contains(Claims(o), name) || !Older(o, d) {
			continue
		}
		if owner == nil || Older(o, owner) {
			owner = o
		}
	}
	return owner
}

// Older orders deployments by age, and by UID within a second.
func Older(a, b *v1alpha1.ModelDeployment) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}
