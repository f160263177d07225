package fleet

import (
	"cmp"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of a Mac's orders, as the schema has them.
const (
	MaxAssignments = 64
	MaxInspections = 64
)

// OrderedOn is the Mac that has an order for a replica: the one that it is bound
// to, else the one that fetches its weights before it swaps. What is being
// deleted and was never bound has none: what was fetched is the store's to keep.
func OrderedOn(r *v1alpha1.ModelReplica) string {
	if r.Spec.NodeName == "" && r.DeletionTimestamp.IsZero() {
		return r.Spec.PrefetchNodeName
	}
	return r.Spec.NodeName
}

// Assignments are the orders that follow from the replicas bound to a Mac: each
// one until it is gone from the API, so that a Mac hears Drained and not
// silence. The oldest come first and at most MaxAssignments, and as many bytes as
// an object may have; placement keeps to both bounds. Those whose weights the Mac only fetches come last.
func Assignments(mac string, replicas []v1alpha1.ModelReplica, deployments []v1alpha1.ModelDeployment) []v1alpha1.Assignment {
	names, owners := map[string][]string{}, map[string]*v1alpha1.ModelDeployment{}
	for i := range deployments {
		owned, _ := Names(&deployments[i], deployments)
		names[string(deployments[i].UID)] = owned
		owners[string(deployments[i].UID)] = &deployments[i]
	}
	var bound []*v1alpha1.ModelReplica
	for i := range replicas {
		if OrderedOn(&replicas[i]) == mac {
			bound = append(bound, &replicas[i])
		}
	}
	slices.SortFunc(bound, func(a, b *v1alpha1.ModelReplica) int {
		return cmp.Or(cmp.Compare(b.Spec.NodeName, a.Spec.NodeName), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	if len(bound) > MaxAssignments {
		bound = bound[:MaxAssignments]
	}
	var out []v1alpha1.Assignment
	bytes := 0
	for _, r := range bound {
		more := OrderBytes(r)
		if FullOfOrders(bytes, more, MaxAssignments) {
			break
		}
		bytes += more
		uid := r.Spec.DeploymentRef.UID
		out = append(out, assignment(r, names[uid], owners[uid]))
	}
	return out
}

func assignment(r *v1alpha1.ModelReplica, names []string, owner *v1alpha1.ModelDeployment) v1alpha1.Assignment {
	a := v1alpha1.Assignment{
		ReplicaUID:    string(r.UID),
		Epoch:         r.Spec.Epoch,
		Namespace:     r.Namespace,
		Name:          r.Name,
		ServedNames:   names,
		Model:         r.Spec.Model,
		Context:       r.Spec.Context,
		ReservedBytes: r.Spec.ReservedBytes,
		DrainSeconds:  r.Spec.DrainSeconds,
		Cache:         r.Spec.Cache,
		Residency:     r.Spec.Residency,
		Desired:       r.Spec.Desired,

		SharedPrefixes: r.Spec.SharedPrefixes,
	}
	if r.Spec.NodeName == "" {
		a.Desired = v1alpha1.DesiredDownloaded
	}
	// A replica that is being deleted drains, whether or not its spec says so yet.
	if !r.DeletionTimestamp.IsZero() {
		a.Desired = v1alpha1.DesiredDrained
	}
	// What drains fetches nothing.
	if a.Desired != v1alpha1.DesiredDrained && owner != nil {
		a.TokenRef = tokenRefFor(owner, a.Model.Source)
	}
	return a
}

// Inspections are the sources that a Mac is to look at: those of the living
// deployments that ask it, each once and at most MaxInspections. Namespaces take
// turns, each with its oldest deployment first, so that no namespace can use up
// the bound for the others.
func Inspections(mac string, deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) []v1alpha1.Inspection {
	isMac := func(m *v1alpha1.MacNode) bool { return m.Name == mac }
	seen := map[string]bool{}
	var out []v1alpha1.Inspection
	bytes := 0
	for _, d := range byTurns(deployments) {
		id := InspectionID(d)
		if seen[id] || !slices.ContainsFunc(Asked(d, macs), isMac) {
			continue
		}
		seen[id] = true
		m := d.Spec.Model
		in := v1alpha1.Inspection{ID: id, Namespace: d.Namespace, Source: m.Source, SHA256: m.SHA256, Revision: m.Revision, Files: m.Files, TokenRef: TokenRef(d)}
		if bytes += jsonBytes(in); bytes > maxInspectionsBytes {
			break
		}
		if out = append(out, in); len(out) == MaxInspections {
			break
		}
	}
	return out
}

// byTurns sorts the living deployments so that the oldest of every namespace
// come first, then the second oldest of every namespace, and so on.
func byTurns(deployments []v1alpha1.ModelDeployment) []*v1alpha1.ModelDeployment {
	var living []*v1alpha1.ModelDeployment
	for i := range deployments {
		if deployments[i].DeletionTimestamp.IsZero() {
			living = append(living, &deployments[i])
		}
	}
	older := func(a, b *v1alpha1.ModelDeployment) int {
		if Older(a, b) {
			return -1
		}
		return 1
	}
	slices.SortFunc(living, older)
	turn, turns := map[*v1alpha1.ModelDeployment]int{}, map[string]int{}
	for _, d := range living {
		turn[d] = turns[d.Namespace]
		turns[d.Namespace]++
	}
	slices.SortFunc(living, func(a, b *v1alpha1.ModelDeployment) int { return cmp.Or(turn[a]-turn[b], older(a, b)) })
	return living
}
