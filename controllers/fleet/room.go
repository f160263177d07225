package fleet

// Room bounds how much of the operator's memory objects of one kind take, in bytes.
type Room struct {
	// Namespace is the most that one namespace may have, and Least what it may have in any case.
	Namespace, Least int
	// All is what all namespaces may have together, but for the least of each.
	All int
}

// Of returns how much a namespace may have while all others have these bytes.
func (r Room) Of(others int) int {
	return min(r.Namespace, max(r.Least, r.All-others))
}

// Rooms of the operator's memory. What they hold in all, next to the objects of Macs, fits the memory
// limit of the chart.
var (
	// SpecsRoom is for the deployments: their specs and names.
	SpecsRoom = Room{Namespace: 48 << 20, All: 96 << 20, Least: 4 << 20}
	// ReplicasRoom is for all replicas, with and without a Mac: no quota counts OnDemand replicas, and
	// each repeats the placement and metadata of its deployment. It is enough for about 8,000 replicas
	// of a namespace with a short spec.
	ReplicasRoom = Room{Namespace: 56 << 20, All: 96 << 20, Least: 4 << 20}
	// RevisionsRoom is for all revisions, which no quota has to count. It is enough for 5,000
	// deployments of a namespace with two usual ones.
	RevisionsRoom = Room{Namespace: 64 << 20, All: 128 << 20, Least: 4 << 20}
	// TokensRoom is for the credentials that are cached: one that finds no room is read again as
	// often as package hubsecret allows. Most have a hundred bytes, and none more than 6 KiB.
	TokensRoom = Room{Namespace: 8 << 20, All: 16 << 20, Least: 64 << 10}
)
