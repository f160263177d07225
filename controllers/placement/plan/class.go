package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// class is what does not change about all Macs, for all replicas that ask for
// the same, while a snapshot lives: a fleet of a thousand Macs is read once for
// a deployment and not once for each of its replicas.
type class struct {
	of      *v1alpha1.ModelReplica
	fixed   []fixed // by the index of the Mac
	spreads []spread
	stuck   stuck
}

// stuck is the last decision for a replica of a class that no Mac could hold, and
// where no replica of a lower priority could make room.
type stuck struct {
	decided  bool
	version  int // of the snapshot
	priority v1alpha1.Priority
	decision Decision
}

// fixed is one Mac for a class.
type fixed struct {
	// no says why the Mac can hold none of the class; nil where it may.
	no *rejection
	// score is the part that does not move.
	score int64
	// holds says that the files are there or can be fetched; fetch is how many
	// bytes that takes.
	holds bool
	fetch int64
}

// spread is one constraint over the domains of a label.
type spread struct {
	key    string
	most   int32
	hard   bool
	domain []int32 // of each Mac; noDomain where it has no such label
	// counted are the domains with a Mac that may be used, of all.
	counted []bool
}

const noDomain = -1

// classKey finds a class; sameClass says whether it is really the one.
type classKey struct {
	uid, revision string
}

// maxClasses bounds what a snapshot remembers.
const maxClasses = 64

// sameClass says that two replicas ask for the same of every Mac.
func sameClass(a, b *v1alpha1.ModelReplica) bool {
	return a.Spec.ReservedBytes == b.Spec.ReservedBytes && a.Spec.Residency == b.Spec.Residency &&
		a.Spec.Model.Source == b.Spec.Model.Source && a.Spec.Model.Digest == b.Spec.Model.Digest &&
		slices.Equal(a.Spec.Model.VouchedBy, b.Spec.Model.VouchedBy) && slices.Equal(a.Spec.Avoid, b.Spec.Avoid) && equality.Semantic.DeepEqual(a.Spec.Placement, b.Spec.Placement)
}

// class finds or makes the class of a replica.
func (s *Snapshot) class(r *v1alpha1.ModelReplica) *class {
	key := classKey{r.Spec.DeploymentRef.UID, r.Spec.Revision}
	if c := s.classes[key]; c != nil && sameClass(c.of, r) {
		return c
	}
	c := &class{of: r, fixed: make([]fixed, len(s.macs))}
	asks, vouched := fleet.NewEligibility(r.Spec.Placement), s.vouched(&r.Spec.Model)
	for i, st := range s.macs {
		c.fixed[i] = s.fix(st, r, asks, vouched)
	}
	for _, t := range r.Spec.Placement.TopologySpread {
		c.spreads = append(c.spreads, s.spreadOver(c, t))
	}
	if len(s.classes) >= maxClasses {
		clear(s.classes)
	}
	s.classes[key] = c
	return c
}

// vouched is whether any Mac may fetch a record's files.
func (s *Snapshot) vouched(m *model.Record) bool {
	macs := make([]*v1alpha1.MacNode, 0, len(s.macs))
	for _, st := range s.macs {
		macs = append(macs, st.mac)
	}
	return fleet.Vouched(m, macs)
}

// fix reads one Mac for a class. vouched is whether any Mac may fetch the files.
func (s *Snapshot) fix(st *state, r *v1alpha1.ModelReplica, asks *fleet.Eligibility, vouched bool) fixed {
	no := func(k kind, figure int64) fixed {
		return fixed{no: &rejection{mac: st.mac.Name, kind: k, bytes: figure}}
	}
	if why, ok := asks.Of(st.mac); !ok {
		return fixed{no: &rejection{mac: st.mac.Name, kind: constraint, text: why}}
	}
	// What never changes comes first (constraints, size of the empty Mac), so
	// that "too large" is not hidden by "not ready".
	if st.capacity > 0 && r.Spec.ReservedBytes > st.capacity {
		return no(tooSmall, st.capacity)
	}
	if st.closed != open {
		return no(st.closed, 0)
	}
	if i := slices.IndexFunc(r.Spec.Avoid, func(a v1alpha1.AvoidedMac) bool { return a.Name == st.mac.Name }); i >= 0 {
		if left := r.Spec.Avoid[i].Until.Sub(s.now); left > 0 {
			return fixed{no: &rejection{mac: st.mac.Name, kind: avoided, left: left}}
		}
	}
	out := fixed{holds: vouched || fleet.VouchesItself(st.mac, &r.Spec.Model)}
	switch {
	case !out.holds && downloads(r):
		return no(unvouched, 0)
	case !out.holds && !fleet.StillLooks(st.mac, r.Spec.Model.Source):
		return no(withoutFiles, 0)
	}
	if st.capacity <= 0 {
		return no(unknownCapacity, 0)
	}
	out.score = perPreference*int64(asks.Untolerated(st.mac)) + int64(perAffinity*asks.Preferred(st.mac))
	if fleet.HasWeights(st.mac, r.Spec.Model.Digest) {
		out.score += weightsHere
	} else if downloads(r) {
		out.fetch = r.Spec.Model.Bytes()
	}
	return out
}

// closedTo says why a Mac takes nobody, whatever is asked; open where it may. It
// is read once for all classes.
func closedTo(mac *v1alpha1.MacNode) kind {
	switch {
	case fleet.StateOf(mac) != fleet.MacReady:
		return notReady
	case mac.Spec.Unschedulable:
		return cordoned
	case !accepting(mac):
		return shuttingDown
	case Stranded(mac):
		return stranded
	case Skewed(mac):
		return skewed
	}
	return open
}

// spreadOver numbers the domains of a constraint. Only Macs that the placement
// lets in, and that are not gone, make a domain: one that no replica could ever
// be in must not hold the others back.
func (s *Snapshot) spreadOver(c *class, t v1alpha1.TopologySpreadConstraint) spread {
	out := spread{key: t.TopologyKey, most: max(1, t.MaxSkew), hard: t.WhenUnsatisfiable != corev1.ScheduleAnyway, domain: make([]int32, len(s.macs))}
	ids := map[string]int32{}
	for i, st := range s.macs {
		value, has := st.mac.Labels[t.TopologyKey]
		if !has {
			out.domain[i] = noDomain
			continue
		}
		id, known := ids[value]
		if !known {
			id = int32(len(ids))
			ids[value] = id
			out.counted = append(out.counted, false)
		}
		out.domain[i] = id
		lets := c.fixed[i].no == nil || c.fixed[i].no.kind != constraint
		out.counted[id] = out.counted[id] || lets && fleet.StateOf(st.mac) != fleet.MacGone
	}
	return out
}
