package plan

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// notePrefetch counts a prefetch: a standing one has an assignment and disk space, but no memory.
func (s *Snapshot) notePrefetch(r *v1alpha1.ModelReplica, mac string) {
	i, has := s.index[mac]
	if !has {
		return
	}
	s.version++
	s.prefetched[r.Namespace] = fleet.Add(s.prefetched[r.Namespace], r.Spec.Model.DiskBytes())
	if !fleet.Prefetches(r) {
		s.ahead[r.Namespace] = fleet.Add(s.ahead[r.Namespace], r.Spec.Model.DiskBytes())
		return
	}
	s.macs[i].standing = append(s.macs[i].standing, r)
	s.macs[i].uses(r.Namespace, 1, fleet.OrderBytes(r))
}

// PickPrefetch decides for a replica that keeps weights on a Mac and runs no engine: it needs
// disk space there, and no memory. The Mac has to be one that could serve the model, and no
// other replica of the deployment is there. A Mac that was chosen stays chosen until it is
// gone or being removed, or may not serve the deployment any more.
func (s *Snapshot) PickPrefetch(r *v1alpha1.ModelReplica) Decision {
	v := s.view(r)
	if at, has := s.index[r.Spec.PrefetchNodeName]; has && v.keepsWeights(at) {
		return s.standing(at)
	}
	if reason, message := s.rules.refusePrefetch(r, s.prefetched[r.Namespace]); reason != "" {
		return Decision{Reason: reason, Message: message, RetryAfter: diskAgain}
	}
	best, bestScore := -1, int64(0)
	var rejected []rejection
	for i := range s.macs {
		if why, ok := v.fitsWeights(i); !ok {
			rejected = append(rejected, why)
		} else if score := v.score(i); best < 0 || score > bestScore {
			best, bestScore = i, score
		}
	}
	switch {
	case best >= 0:
		return s.standing(best)
	case len(rejected) == 0:
		return Decision{Reason: v1alpha1.ReasonNoCandidates, Message: "the fleet has no MacNode; join a Mac"}
	}
	return Decision{Reason: reasonOf(rejected), Message: "no Mac can keep the weights: " + compact(r, rejected) + "; lower spec.prefetch.macs, free disk space, or add a Mac", RetryAfter: diskAgain}
}

func (s *Snapshot) standing(mac int) Decision {
	name := s.macs[mac].mac.Name
	return Decision{Reason: v1alpha1.ReasonPrefetching, Prefetch: name, Message: "the weights are kept on " + name + " (spec.prefetch)"}
}

// keepsWeights reports whether a Mac that has the weights may keep them.
func (v *view) keepsWeights(i int) bool {
	st, no := v.s.macs[i], v.c.fixed[i].no
	if fleet.StateOf(st.mac) == fleet.MacGone || fleet.Leaving(st.mac) {
		return false
	}
	return no == nil || no.kind != constraint && no.kind != tooSmall && no.kind != unvouched && no.kind != withoutFiles
}

// fitsWeights reports whether a Mac can keep the weights, or why not.
func (v *view) fitsWeights(i int) (rejection, bool) {
	f, st := &v.c.fixed[i], v.s.macs[i]
	no := func(k kind, figure int64) (rejection, bool) {
		return rejection{mac: st.mac.Name, kind: k, bytes: figure}, false
	}
	bytes, kin := st.orderBytes, v.siblings[i] > 0
	for _, r := range st.standing {
		bytes += fleet.OrderBytes(r)
		kin = kin || r.Spec.DeploymentRef.UID == v.r.Spec.DeploymentRef.UID && r.UID != v.r.UID
	}
	own, ownBytes := v.own(st)
	most := v.s.rules.of(v.r.Namespace).perMac
	switch {
	case f.no != nil:
		return *f.no, false
	case !f.holds:
		return no(looking, 0)
	case kin:
		return no(hasKin, 0)
	case st.replicas+len(st.standing) >= fleet.MaxAssignments, fleet.FullOfOrders(bytes, v.orderBytes, fleet.MaxAssignments):
		return no(full, 0)
	case most > 0 && (own >= most || fleet.FullOfOrders(ownBytes, v.orderBytes, most)):
		return no(crowded, 0)
	case f.fetch > 0 && f.fetch > v.disk(st, f.fetch):
		return no(noDisk, max(0, v.disk(st, f.fetch)))
	}
	return rejection{}, true
}

// refusePrefetch returns why the rules refuse to keep more weights for a namespace, which has
// prefetched that many bytes; empty if they do not.
func (r Rules) refusePrefetch(replica *v1alpha1.ModelReplica, prefetched int64) (reason, message string) {
	limit := r.of(replica.Namespace).prefetch
	need := replica.Spec.Model.DiskBytes()
	switch {
	case r.missing:
		return r.refuse(replica, 0)
	case limit == nil || need <= *limit-prefetched:
		return "", ""
	}
	return v1alpha1.ReasonOverQuota, fmt.Sprintf("namespace %s may prefetch %s over all Macs, has prefetched %s, and this prefetch needs %s; lower spec.prefetch.macs, or ask an administrator for more (prefetchLimit of the NamespaceRules)",
		replica.Namespace, v1alpha1.FormatBytes(*limit), v1alpha1.FormatBytes(prefetched), v1alpha1.FormatBytes(need))
}
