package fleet

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of a Mac's assignments, as in the schema.
const (
	MaxAssignments = 64
	MaxInspections = 64
)

// OrderedOn returns the Mac that a replica is assigned to: the one that it is bound to,
// else the one that prefetches its weights before a swap. A replica that is being deleted
// and was never bound has none: the store keeps prefetched weights.
func OrderedOn(r *v1alpha1.ModelReplica) string {
	if r.Spec.NodeName == "" && r.DeletionTimestamp.IsZero() {
		return r.Spec.PrefetchNodeName
	}
	return r.Spec.NodeName
}

// Assignments returns the assignments for the replicas bound to a Mac. Each one stays until
// the replica is removed from the API, so that a Mac receives Drained and not just a
// missing entry. The oldest come first, at most MaxAssignments and within the size of an
// object; placement respects both bounds. Prefetches come last.
func Assignments(mac string, replicas []v1alpha1.ModelReplica, deployments []v1alpha1.ModelDeployment) []v1alpha1.Assignment {
	owners := map[string]*v1alpha1.ModelDeployment{}
	for i := range deployments {
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
		out = append(out, assignment(r, owners[r.Spec.DeploymentRef.UID]))
	}
	return out
}

func assignment(r *v1alpha1.ModelReplica, owner *v1alpha1.ModelDeployment) v1alpha1.Assignment {
	a := v1alpha1.Assignment{
		ReplicaUID:    string(r.UID),
		Epoch:         r.Spec.Epoch,
		Namespace:     r.Namespace,
		Name:          r.Name,
		Model:         r.Spec.Model,
		Context:       r.Spec.Context,
		ReservedBytes: r.Spec.ReservedBytes,
		DrainSeconds:  DrainSeconds(r),
		PrefixCache:   r.Spec.PrefixCache,
		Residency:     r.Spec.Residency,
		Desired:       r.Spec.Desired,

		SharedPrefixes: r.Spec.SharedPrefixes,
		Sampling:       r.Spec.Sampling,
		ChatTemplate:   r.Spec.ChatTemplate,
	}
	if owner != nil {
		a.ServedNames = servedBy(owner, r.Spec.Model.Adapters)
	}
	if r.Spec.NodeName == "" {
		a.Desired = v1alpha1.DesiredDownloaded
	}
	// A replica that is being deleted drains, even if its spec does not say so yet.
	if !r.DeletionTimestamp.IsZero() {
		a.Desired = v1alpha1.DesiredDrained
	}
	// A draining replica fetches nothing.
	if a.Desired != v1alpha1.DesiredDrained && owner != nil {
		a.TokenRef = TokenRefFor(owner, a.Model.Source)
	}
	return a
}

// DrainSeconds returns how long the requests of a replica may continue when it drains: not longer than
// by default if it is preempted. Its owner chooses how long, and the replica with the higher priority
// waits for it.
func DrainSeconds(r *v1alpha1.ModelReplica) int32 {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionPlaced)
	if !r.DeletionTimestamp.IsZero() && c != nil && c.Status == metav1.ConditionFalse && c.Reason == v1alpha1.ReasonPreempted {
		return min(r.Spec.DrainSeconds, v1alpha1.DefaultDrainSeconds)
	}
	return r.Spec.DrainSeconds
}

// Inspections returns the sources that a Mac is to inspect: those of the deployments that
// ask it, each once and at most MaxInspections. Namespaces take turns, each with its oldest
// deployment first, so that no namespace can use up the bound. Those that are needed most come
// first. In the same way each has a share of the bytes; what the others leave of theirs is given away
// afterwards. One that several namespaces ask for is there if that of any of them would be; Macs
// charge it to the one with the fewest. The rules may be nil.
func Inspections(mac string, deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode, rules *v1alpha1.NamespaceRules) []v1alpha1.Inspection {
	return (*Inspectors)(nil).Inspections(mac, deployments, macs, rules)
}

// Inspections is the function of that name. The lists have all deployments and Macs: what is
// kept of others is dropped.
func (s *Inspectors) Inspections(mac string, deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode, rules *v1alpha1.NamespaceRules) []v1alpha1.Inspection {
	out, _ := s.InspectionsFor(mac, deployments, macs, rules)
	return out
}

// InspectionsFor is Inspections, with how long they last if nothing changes; 0 means for ever.
func (s *Inspectors) InspectionsFor(mac string, deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode, rules *v1alpha1.NamespaceRules) ([]v1alpha1.Inspection, time.Duration) {
	if s == nil {
		s = new(Inspectors)
	}
	l := s.list(macs)
	own := l.macs[:0:0]
	if i := slices.IndexFunc(l.macs, func(c candidate) bool { return c.mac.Name == mac }); i >= 0 {
		own = l.macs[i : i+1]
	}
	rotates, requests := false, map[*v1alpha1.ModelDeployment]*request{}
	var asking []*v1alpha1.ModelDeployment
	for i := range deployments {
		d := &deployments[i]
		if !d.DeletionTimestamp.IsZero() || len(own) == 0 {
			continue
		}
		r, decision := s.decide(d, l, rules)
		rotates = rotates || decision != nil && decision.rotates && decision.of(own[0].slot)
		if decision.asks(mac) || r.local && len(s.admitted(d, candidatesFor(rules, d.Namespace, own))) == 1 {
			asking, requests[d] = append(asking, d), r
		}
	}
	s.keep(deployments, macs)
	inTurns, first := byNeed(asking, requests)
	turn, by := map[string]int{}, map[string]*v1alpha1.ModelDeployment{} // the same while deployments settle, so that nothing is written
	for i, d := range slices.Backward(inTurns) {
		turn[requests[d].id], by[requests[d].id] = i, d
	}
	namespaces := map[string]bool{}
	var asked []askedInspection
	for _, d := range first {
		r := requests[d]
		namespaces[d.Namespace] = true
		asked = append(asked, askedInspection{d.Namespace, r.id, r.bytes, requests[by[r.id]].bytes})
	}
	var lasts time.Duration
	if rotates && s.Now != nil {
		lasts = roundTime - time.Duration(s.Now().UnixNano()%int64(roundTime))
	}
	var out []v1alpha1.Inspection
	for id := range withinBytes(asked, maxInspectionsBytes/max(1, len(namespaces))) {
		out = append(out, inspectionFor(by[id], id))
	}
	slices.SortFunc(out, func(a, b v1alpha1.Inspection) int { return turn[a.ID] - turn[b.ID] })
	return out, lasts
}

// byNeed returns the deployments whose inspections are charged, in turns, and all that ask, with
// those first that need theirs most, or for which another does that asks for the same.
func byNeed(asking []*v1alpha1.ModelDeployment, requests map[*v1alpha1.ModelDeployment]*request) (inTurns, neediest []*v1alpha1.ModelDeployment) {
	needs := map[string]Need{}
	for _, d := range asking {
		needs[requests[d].id] = max(needs[requests[d].id], NeedOf(d))
	}
	inTurns = byTurns(charged(slices.Clone(asking), requests))
	var of [Open + 1][]*v1alpha1.ModelDeployment
	for _, d := range asking {
		need := needs[requests[d].id]
		of[need] = append(of[need], d)
	}
	for _, same := range slices.Backward(of[:]) {
		neediest = append(neediest, byTurns(same)...)
	}
	return inTurns, neediest
}

// Need is how much a deployment needs its source to be inspected. It is inspected in any case where
// Macs have room for that.
type Need int

const (
	// Settled: all that the current spec asks for is there.
	Settled Need = iota
	// Known: replicas or prefetched weights are missing, but Macs agreed on the source. Many
	// deployments may wait for room.
	Known
	// Open: the source is not accepted, or each Mac has files of its own.
	Open
)

// NeedOf returns how much a deployment needs the inspection of its source.
func NeedOf(d *v1alpha1.ModelDeployment) Need {
	is := func(kind string) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, kind)
		return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == d.Generation
	}
	switch {
	case is(v1alpha1.ConditionReady) && (d.Spec.Prefetch.Macs == 0 || meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionPrefetched)):
		return Settled
	case is(v1alpha1.ConditionAccepted) && !strings.HasPrefix(d.Spec.Model.Resolved().Source, FileScheme):
		return Known
	}
	return Open
}

// charged keeps, of the deployments that ask for the same inspection, those of one namespace: the
// one that asks for the fewest. Another one with many could make it wait in its own share.
func charged(asking []*v1alpha1.ModelDeployment, requests map[*v1alpha1.ModelDeployment]*request) []*v1alpha1.ModelDeployment {
	asks := map[string]map[string]bool{} // ids by namespace
	for _, d := range asking {
		if asks[d.Namespace] == nil {
			asks[d.Namespace] = map[string]bool{}
		}
		asks[d.Namespace][requests[d].id] = true
	}
	to := map[string]string{}
	for _, d := range asking {
		id := requests[d].id
		if now, known := to[id]; !known || cmp.Or(cmp.Compare(len(asks[d.Namespace]), len(asks[now])), cmp.Compare(d.Namespace, now)) < 0 {
			to[id] = d.Namespace
		}
	}
	return slices.DeleteFunc(asking, func(d *v1alpha1.ModelDeployment) bool { return to[requests[d].id] != d.Namespace })
}

// askedInspection is an inspection that a namespace asks for, with its size as JSON, and the size with
// the namespace that Macs charge.
type askedInspection struct {
	namespace, id  string
	bytes, charged int
}

// withinBytes returns the ids of the inspections that fit: first those within the share of each
// namespace, then others while there is room. One that several namespaces ask for counts in the share
// of the first with room for it: none loses by what others ask for.
func withinBytes(asked []askedInspection, share int) map[string]bool {
	taken, chosen, used := 0, map[string]bool{}, map[string]int{}
	for _, limit := range []int{share, maxInspectionsBytes} {
		for _, in := range asked {
			if chosen[in.id] || len(chosen) == MaxInspections || used[in.namespace]+in.bytes > limit || taken+in.charged > maxInspectionsBytes {
				continue
			}
			chosen[in.id] = true
			used[in.namespace] += in.bytes
			taken += in.charged
		}
	}
	return chosen
}

// byTurns sorts deployments: the oldest of every namespace come first, then the second oldest of
// every namespace, and so on.
func byTurns(deployments []*v1alpha1.ModelDeployment) []*v1alpha1.ModelDeployment {
	older := func(a, b *v1alpha1.ModelDeployment) int {
		if Older(a, b) {
			return -1
		}
		return 1
	}
	slices.SortFunc(deployments, older)
	turn, turns := map[*v1alpha1.ModelDeployment]int{}, map[string]int{}
	for _, d := range deployments {
		turn[d] = turns[d.Namespace]
		turns[d.Namespace]++
	}
	slices.SortStableFunc(deployments, func(a, b *v1alpha1.ModelDeployment) int { return turn[a] - turn[b] })
	return deployments
}
