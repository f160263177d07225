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

// Names returns the names that a deployment owns among all others once it is accepted:
// those that it claims, in its own order, then NAMESPACE/NAME, which is always its own.
// A name that another deployment holds is a conflict.
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

// Kept returns the names that a deployment keeps while its spec is refused or not judged:
// of those that Names returned, the ones that it holds, and NAMESPACE/NAME. Without an
// accepted revision, whose replicas may serve them, it keeps only the latter.
func Kept(d *v1alpha1.ModelDeployment, owned []string, hasRevision bool) []string {
	return slices.DeleteFunc(slices.Clone(owned), func(name string) bool {
		return name != fullName(d) && !(hasRevision && holds(d, name))
	})
}

// Served returns the names that clients use for a deployment, as its status lists them.
func Served(d *v1alpha1.ModelDeployment) []string {
	if len(d.Status.ServedNames) == 0 || !d.DeletionTimestamp.IsZero() {
		return []string{fullName(d)}
	}
	return d.Status.ServedNames
}

func fullName(d *v1alpha1.ModelDeployment) string { return d.Namespace + "/" + d.Name }

// holds reports whether a deployment was accepted with a name that it still claims. The
// operator writes names into the status only then.
func holds(d *v1alpha1.ModelDeployment, name string) bool {
	return d.DeletionTimestamp.IsZero() && slices.Contains(d.Status.ServedNames, name) && slices.Contains(Claims(d), name)
}

// ownerOf returns the other deployment that owns a name: the one that is called
// NAMESPACE/NAME, or the one that holds it. If d holds it as well, because both were
// accepted in the same moment, the oldest keeps it.
func ownerOf(name string, d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) *v1alpha1.ModelDeployment {
	held := holds(d, name)
	var owner *v1alpha1.ModelDeployment
	for i := range all {
		o := &all[i]
		switch {
		case o.UID == d.UID || !o.DeletionTimestamp.IsZero():
		case fullName(o) == name:
			return o
		case !holds(o, name) || held && Older(d, o):
		case owner == nil || Older(o, owner):
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
