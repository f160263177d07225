package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// class is the fixed part of the decision about all Macs, for all replicas with the same
// requirements, during the life of a snapshot: a fleet of a thousand Macs is read once for
// a deployment and not once for each of its replicas.
type class struct {
	of      *v1alpha1.ModelReplica
	fixed   []fixed // by the index of the Mac
	spreads []spread
	stuck   stuck
}

// stuck is the last decision for a replica of a class that no Mac could hold, and for which
// no replica of a lower priority could make room.
type stuck struct {
	decided  bool
	version  int // of the snapshot
	priority v1alpha1.Priority
	decision Decision
}

// fixed is one Mac for a class.
type fixed struct {
	// no is why the Mac can hold none of the class; nil if it may.
	no *rejection
	// score is the fixed part of the score.
	score int64
	// holds reports whether the files are there or can be fetched; fetch is the number of
	// bytes for that.
	holds bool
	fetch int64
}

// spread is one constraint over the domains of a label.
type spread struct {
	key    string
	most   int32
	hard   bool
	domain []int32 // of each Mac; noDomain without the label
	// counted marks the domains with a usable Mac.
	counted []bool
}

const noDomain = -1

// avoidAtMost is how long a Mac is avoided after a refusal.
const avoidAtMost = v1alpha1.AvoidSeconds * time.Second

// classKey finds a class; sameClass verifies the match.
type classKey struct {
	uid, revision string
}

// Bounds of the classes of a snapshot: a tenant may have as many deployments as it likes.
const (
	minClasses    = 64
	maxClasses    = 4096
	maxClassBytes = 32 << 20
	// bytesPerFixed of a Mac in a class, with a rejection.
	bytesPerFixed = 112
)

// class returns the class of a replica, and creates it if needed.
func (s *Snapshot) class(r *v1alpha1.ModelReplica) *class {
	key := classKey{r.Spec.DeploymentRef.UID, r.Spec.Revision}
	if c := s.classes[key]; c != nil && sameClass(c.of, r) {
		return c
	}
	c := &class{of: r, fixed: make([]fixed, len(s.macs))}
	asks, inspection := fleet.NewEligibility(r.Spec.Placement), ""
	if s.inspection != nil {
		inspection = s.inspection(r)
	}
	vouched := s.vouched(&r.Spec.Model, inspection)
	for i, st := range s.macs {
		c.fixed[i] = s.fix(st, r, asks, vouched || fleet.VouchesItself(st.mac, &r.Spec.Model, inspection))
	}
	for _, t := range r.Spec.Placement.TopologySpreadConstraints {
		c.spreads = append(c.spreads, s.spreadOver(c, t))
	}
	s.makeRoomForClass()
	s.classes[key] = c
	return c
}

// makeRoomForClass drops arbitrary classes if there are too many: replicas of deployments take
// turns, so that the least recently used class would be the next one that is needed.
func (s *Snapshot) makeRoomForClass() {
	most := min(maxClasses, max(minClasses, maxClassBytes/(bytesPerFixed*max(1, len(s.macs)))))
	for key := range s.classes {
		if len(s.classes) < most {
			return
		}
		delete(s.classes, key)
	}
}

// vouched reports whether any Mac may fetch a record's files.
func (s *Snapshot) vouched(m *model.Record, inspection string) bool {
	macs := make([]*v1alpha1.MacNode, 0, len(s.macs))
	for _, st := range s.macs {
		macs = append(macs, st.mac)
	}
	return fleet.Vouched(m, inspection, macs)
}

// fix evaluates one Mac for a class. holds reports whether it has the files, or may fetch them.
func (s *Snapshot) fix(st *state, r *v1alpha1.ModelReplica, asks *fleet.Eligibility, holds bool) fixed {
	no := func(k kind, figure int64) fixed {
		return fixed{no: &rejection{mac: st.mac.Name, kind: k, bytes: figure}}
	}
	if why, ok := asks.Of(st.mac); !ok {
		return fixed{no: &rejection{mac: st.mac.Name, kind: constraint, text: why}}
	}
	if allowed := s.rules.of(r.Namespace).macs; allowed != nil && !allowed.Matches(st.mac) {
		return fixed{no: &rejection{mac: st.mac.Name, kind: constraint, text: "not among the Macs that the namespace may use (macSelector of the NamespaceRules)"}}
	}
	// Permanent reasons come first (constraints, size of the empty Mac), so that "too
	// large" is not hidden by "not ready".
	if st.capacity > 0 && r.Spec.ReservedBytes > st.capacity {
		return no(tooSmall, st.capacity)
	}
	if st.closed != open {
		return no(st.closed, 0)
	}
	if i := slices.IndexFunc(r.Spec.Avoid, func(a v1alpha1.AvoidedMac) bool { return a.Name == st.mac.Name }); i >= 0 {
		// Longer than that is of an operator's clock that was ahead.
		if left := r.Spec.Avoid[i].Until.Sub(s.now); left > 0 && left <= avoidAtMost {
			return fixed{no: &rejection{mac: st.mac.Name, kind: avoided, left: left}}
		}
	}
	out := fixed{holds: holds}
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
	}
	for _, part := range absent(st.mac, r) {
		out.fetch += part.Bytes()
	}
	return out
}

// closedTo returns why a Mac accepts no replica at all; open if it may. It is evaluated
// once for all classes.
func closedTo(mac *v1alpha1.MacNode) kind {
	switch {
	case fleet.StateOf(mac) != fleet.MacReady:
		return notReady
	case mac.Spec.Unschedulable || fleet.Leaving(mac):
		return cordoned
	case fleet.Unreachable(mac):
		return unreachable
	case !accepting(mac):
		return shuttingDown
	case Stranded(mac):
		return stranded
	case Skewed(mac):
		return skewed
	}
	return open
}

// spreadOver numbers the domains of a constraint. Only Macs that the placement admits, and
// that are not gone, form a domain: an unusable domain must not block the others.
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
