package fleet

import (
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Claims returns the names that a deployment wants to serve, besides NAMESPACE/NAME: its
// own, then those of its adapters, NAME:ADAPTER for each.
func Claims(d *v1alpha1.ModelDeployment) []string {
	names := d.Spec.ServedNames
	if len(names) == 0 {
		names = []string{d.Name}
	}
	if len(d.Spec.Adapters) == 0 {
		return names
	}
	out := slices.Clone(names)
	for _, a := range d.Spec.Adapters {
		for _, name := range append(slices.Clone(names), fullName(d)) {
			if with := name + ":" + a.Name; !slices.Contains(out, with) {
				out = append(out, with)
			}
		}
	}
	return out
}

// ofAdapter reports whether a name is NAMESPACE/NAME:ADAPTER of a deployment, which no
// other may take.
func ofAdapter(d *v1alpha1.ModelDeployment, name string) bool {
	adapter, found := strings.CutPrefix(name, fullName(d)+":")
	return found && slices.ContainsFunc(d.Spec.Adapters, func(a v1alpha1.AdapterSpec) bool { return a.Name == adapter })
}

// Adapters returns the adapters of a deployment that some of its names select, by name.
func Adapters(d *v1alpha1.ModelDeployment, names []string) (out []string) {
	for _, a := range d.Spec.Adapters {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ":"+a.Name) }) {
			out = append(out, a.Name)
		}
	}
	return out
}

// servedBy returns the names that clients may use for one replica: without those of
// adapters that its revision does not have.
func servedBy(d *v1alpha1.ModelDeployment, adapters []model.Adapter) []string {
	lacks := func(name string) bool {
		return slices.ContainsFunc(d.Status.Adapters, func(adapter string) bool {
			return strings.HasSuffix(name, ":"+adapter) && !slices.ContainsFunc(adapters, func(a model.Adapter) bool { return a.Name == adapter })
		})
	}
	return slices.DeleteFunc(slices.Clone(Served(d)), lacks)
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
		case fullName(o) == name, ofAdapter(o, name):
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
