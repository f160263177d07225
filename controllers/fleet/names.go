package fleet

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// ownNames returns NAMESPACE/NAME and, for each adapter, NAMESPACE/NAME:ADAPTER of a
// deployment, which no other may take.
func ownNames(d *v1alpha1.ModelDeployment) []string {
	out := []string{fullName(d)}
	for _, a := range d.Spec.Adapters {
		out = append(out, fullName(d)+":"+a.Name)
	}
	return out
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

// NameHolder is the part of a deployment that decides which names others may get. Its
// strings may be those of an object in a cache.
type NameHolder struct {
	types.NamespacedName
	UID     types.UID
	Created metav1.Time
	// Own are NAMESPACE/NAME and NAMESPACE/NAME:ADAPTER, which no other deployment may take.
	Own []string
	// Held are the names that it was accepted with and still claims. The operator writes
	// names into the status only then.
	Held []string
}

// HolderOf returns the names of a deployment: none if it is being deleted.
func HolderOf(d *v1alpha1.ModelDeployment) NameHolder {
	h := NameHolder{NamespacedName: types.NamespacedName{Namespace: d.Namespace, Name: d.Name}, UID: d.UID, Created: d.CreationTimestamp}
	if !d.DeletionTimestamp.IsZero() {
		return h
	}
	h.Own = ownNames(d)
	if len(d.Status.ServedNames) == 0 {
		return h
	}
	claims := setOf(Claims(d))
	for _, name := range d.Status.ServedNames {
		if claims[name] {
			h.Held = append(h.Held, name)
		}
	}
	return h
}

// Holders returns HolderOf each deployment.
func Holders(all []v1alpha1.ModelDeployment) []NameHolder {
	out := make([]NameHolder, len(all))
	for i := range all {
		out[i] = HolderOf(&all[i])
	}
	return out
}

// Names returns its own names and those that it holds; a name may be in both.
func (h *NameHolder) Names() []string { return append(slices.Clone(h.Own), h.Held...) }

// heldUnder returns the names under which a deployment has or holds any, alone or with an adapter:
// NAMESPACE/NAME, and those of its served names of which it holds one. It has up to 170 names and
// at most nine of these; an entry of an index takes more than a name.
func heldUnder(d *v1alpha1.ModelDeployment) []string {
	h := HolderOf(d)
	if len(h.Own) == 0 {
		return nil
	}
	out := []string{fullName(d)}
	served := d.Spec.ServedNames
	if len(served) == 0 {
		served = []string{d.Name}
	}
	for _, own := range served {
		if own != fullName(d) && slices.ContainsFunc(h.Held, func(name string) bool { return claimsWith(d, own, name) }) {
			out = append(out, own)
		}
	}
	return out
}

// HolderKeys returns the keys, each once, by which IndexHolder finds the deployments that have or
// hold one of the names: the name, and the part of it in front of its last colon, which an adapter
// may follow. A deployment that is found may hold others of these names alone.
func HolderKeys(names []string) []string {
	seen, out := map[string]bool{}, []string{}
	for _, name := range names {
		keys := []string{name}
		if at := strings.LastIndexByte(name, ':'); at > 0 {
			keys = append(keys, name[:at])
		}
		for _, key := range keys {
			if !seen[key] {
				seen[key] = true
				out = append(out, key)
			}
		}
	}
	return out
}

// NameConflict is a name that another deployment owns.
type NameConflict struct {
	Name  string
	Owner *NameHolder
}

// Names returns the names that a deployment owns among all others once it is accepted:
// those that it claims, in its own order, then NAMESPACE/NAME, which is always its own.
// A name that another deployment holds is a conflict. It takes time in proportion to the
// names of all holders together.
func Names(d *v1alpha1.ModelDeployment, all []NameHolder) (owned []string, conflicts []NameConflict) {
	full, owners := fullName(d), ownersOf(HolderOf(d), all)
	for _, name := range Claims(d) {
		if name == full {
			continue
		}
		if owner := owners[name]; owner != nil {
			conflicts = append(conflicts, NameConflict{Name: name, Owner: owner})
			continue
		}
		owned = append(owned, name)
	}
	return append(owned, full), conflicts
}

// ownersOf returns the other deployment that owns each name: the one that is called
// NAMESPACE/NAME, or the oldest that holds it. If h holds a name as well, because both were
// accepted in the same moment, the oldest of them keeps it.
func ownersOf(h NameHolder, all []NameHolder) map[string]*NameHolder {
	held, owners := setOf(h.Held), map[string]*NameHolder{}
	for i := range all {
		o := &all[i]
		if o.UID == h.UID {
			continue
		}
		for _, name := range o.Held {
			if held[name] && older(h.Created, h.UID, o.Created, o.UID) {
				continue
			}
			if other := owners[name]; other == nil || older(o.Created, o.UID, other.Created, other.UID) {
				owners[name] = o
			}
		}
	}
	for i := range all {
		if all[i].UID == h.UID {
			continue
		}
		for _, name := range all[i].Own {
			owners[name] = &all[i]
		}
	}
	return owners
}

// Kept returns the names that a deployment keeps while its spec is refused or not judged:
// of those that Names returned, the ones that it holds, and NAMESPACE/NAME. Without an
// accepted revision, whose replicas may serve them, it keeps only the latter.
func Kept(d *v1alpha1.ModelDeployment, owned []string, hasRevision bool) []string {
	held := setOf(HolderOf(d).Held)
	return slices.DeleteFunc(slices.Clone(owned), func(name string) bool {
		return name != fullName(d) && !(hasRevision && held[name])
	})
}

// ClaimGroups returns the parts of names in front of their first colon, each once: names
// that are equal have the same. A deployment has many names but few groups.
func ClaimGroups(names []string) (out []string) {
	for _, name := range names {
		if group, _, _ := strings.Cut(name, ":"); !slices.Contains(out, group) {
			out = append(out, group)
		}
	}
	return out
}

// NameSet has names, by the part of each in front of its last colon, which an adapter may follow.
// It is asked about thousands of deployments, which may claim hundreds of names each.
type NameSet struct {
	alone    map[string]bool
	adapters map[string]map[string]bool
}

// NamesOf returns the set of some names.
func NamesOf(names []string) NameSet {
	s := NameSet{alone: setOf(names), adapters: map[string]map[string]bool{}}
	for _, name := range names {
		if at := strings.LastIndexByte(name, ':'); at >= 0 {
			if s.adapters[name[:at]] == nil {
				s.adapters[name[:at]] = map[string]bool{}
			}
			s.adapters[name[:at]][name[at+1:]] = true
		}
	}
	return s
}

// ClaimedBy reports whether a deployment claims one of the names, as Claims lists them. It builds
// none of them.
func (s *NameSet) ClaimedBy(d *v1alpha1.ModelDeployment) bool {
	for _, own := range d.Spec.ServedNames {
		if s.alone[own] || s.withAdapter(d, own) {
			return true
		}
	}
	if len(d.Spec.ServedNames) == 0 && (s.alone[d.Name] || s.withAdapter(d, d.Name)) {
		return true
	}
	return len(d.Spec.Adapters) > 0 && s.withAdapter(d, fullName(d))
}

// withAdapter reports whether one of the names is an own one of a deployment with one of its adapters.
func (s *NameSet) withAdapter(d *v1alpha1.ModelDeployment, own string) bool {
	of := s.adapters[own]
	return len(of) > 0 && slices.ContainsFunc(d.Spec.Adapters, func(a v1alpha1.AdapterSpec) bool { return of[a.Name] })
}

// claimsWith reports whether a name is an own one of a deployment, or that of an adapter with it.
func claimsWith(d *v1alpha1.ModelDeployment, own, name string) bool {
	rest, ok := strings.CutPrefix(name, own)
	if !ok || rest == "" {
		return ok
	}
	adapter, ok := strings.CutPrefix(rest, ":")
	return ok && hasAdapter(d, adapter)
}

func hasAdapter(d *v1alpha1.ModelDeployment, name string) bool {
	return slices.ContainsFunc(d.Spec.Adapters, func(a v1alpha1.AdapterSpec) bool { return a.Name == name })
}

// ChangedNames returns the names of one of two states of a deployment that are not of the other:
// those whose owner a change of it may change. All names of both are, if it is another with
// the same name.
func ChangedNames(before, now NameHolder) (out []string) {
	was, is := setOf(before.Names()), setOf(now.Names())
	if before.UID != now.UID {
		is, was = map[string]bool{}, map[string]bool{}
	}
	for _, name := range before.Names() {
		if !is[name] {
			out = append(out, name)
		}
	}
	for _, name := range now.Names() {
		if !was[name] {
			out = append(out, name)
		}
	}
	return out
}

func setOf(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, name := range names {
		out[name] = true
	}
	return out
}

// Served returns the names that clients use for a deployment, as its status lists them.
func Served(d *v1alpha1.ModelDeployment) []string {
	if len(d.Status.ServedNames) == 0 || !d.DeletionTimestamp.IsZero() {
		return []string{fullName(d)}
	}
	return d.Status.ServedNames
}

func fullName(d *v1alpha1.ModelDeployment) string { return d.Namespace + "/" + d.Name }

// Older orders deployments by age, and by UID within a second.
func Older(a, b *v1alpha1.ModelDeployment) bool {
	return older(a.CreationTimestamp, a.UID, b.CreationTimestamp, b.UID)
}

func older(created metav1.Time, uid types.UID, thanCreated metav1.Time, thanUID types.UID) bool {
	if !created.Equal(&thanCreated) {
		return created.Before(&thanCreated)
	}
	return uid < thanUID
}
