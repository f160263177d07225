package fleet

import (
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Claims returns the names that a deployment wants to serve, besides NAMESPACE/NAME.
func Claims(d *v1alpha1.ModelDeployment) []string {
	if len(d.Spec.ServedNames) == 0 {
		return []string{d.Name}
	}
	return d.Spec.ServedNames
}

// NameConflict is a name that another deployment owns.
type NameConflict struct {
	Name  string
	Owner *v1alpha1.ModelDeployment
}

// Names returns the names that a deployment owns among all others: those that it claims, in
// its own order, then NAMESPACE/NAME, which is always its own. Another name belongs to the
// oldest deployment that claims it and is not being deleted.
func Names(d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) (owned []string, conflicts []NameConflict) {
	full := fullName(d)
	for _, name := range Claims(d) {
		if name == full {
			continue
		}
		if owner := ownerOf(name, d, all); owner != nil {
			conflicts = append(conflicts, NameConflict{Name: name, Owner: owner})
			continue
		}
		owned = append(owned, name)
	}
	return append(owned, full), conflicts
}

func fullName(d *v1alpha1.ModelDeployment) string { return d.Namespace + "/" + d.Name }

// ownerOf returns the deployment, not being deleted, that owns a name before d does: the
// one that is called NAMESPACE/NAME, or the oldest one that claims it.
func ownerOf(name string, d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) *v1alpha1.ModelDeployment {
	var owner *v1alpha1.ModelDeployment
	for i := range all {
		o := &all[i]
		if o.UID != d.UID && o.DeletionTimestamp.IsZero() && fullName(o) == name {
			return o
		}
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
