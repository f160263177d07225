package modeldeployment

import (
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Bounds of the replicas that wait for a Mac: they have no memory there that a quota counts,
// but each is stored and is in the operator's memory, with all that its deployment states.
const (
	// maxUnplaced is how many serving replicas of a revision may wait at once, and
	// maxUnplacedPrefetchers how many prefetching ones of a deployment: when one has its Mac,
	// the next is created.
	maxUnplaced            = 32
	maxUnplacedPrefetchers = 4
	// maxUnplacedBytes bounds those of a deployment, and maxNamespaceUnplacedBytes those of a
	// namespace, as JSON. A deployment has one in any case.
	maxUnplacedBytes          = 256 << 10
	maxNamespaceUnplacedBytes = 4 << 20
)

// unplaced returns how many replicas of the deployment may wait for a Mac at once.
func (s *scope) unplaced() int {
	most := maxUnplaced
	for _, revision := range []string{s.current.object.Name, s.served()} {
		// An error has its message when a replica is created.
		if replica, err := newReplica(s, replicaToCreate{revision: revision}); err == nil {
			most = min(most, max(1, maxUnplacedBytes/fleet.ReplicaBytes(replica)))
		}
	}
	return most
}

// waits reports whether a replica has no Mac. A Mac's assignments bound those that it has, also
// those that it only prefetches for.
func waits(r *v1alpha1.ModelReplica) bool { return fleet.OrderedOn(r) == "" }

// waiting counts the replicas that wait for a Mac and are not being deleted.
func waiting(replicas []v1alpha1.ModelReplica) (n int) {
	for _, r := range living(replicas) {
		if waits(r) {
			n++
		}
	}
	return n
}
