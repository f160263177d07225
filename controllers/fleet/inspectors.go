package fleet

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Inspectors decides which Macs inspect the sources of deployments, and keeps what it found out,
// so that a change costs what changed: the orders of each Mac depend on every deployment, and an
// affinity may have thousands of values.
//
// It keeps, for each generation of a deployment, the request for its inspection and which Macs
// its placement admits; the latter for each state of a Mac's labels, taints and chip. Nothing
// else decides that, so that nothing has to be invalidated: another generation or another state
// is not found, and computed. It also keeps which Macs are asked (decision), until a Mac reports
// another result about that source. Deployments and Macs that are gone are dropped when all are
// listed. The zero value is ready; it is safe for concurrent use. A deployment without a UID is
// not kept, and a nil Inspectors keeps nothing.
type Inspectors struct {
	// Now returns the time, by which Macs take turns at a source that few can reach; nil: they
	// do not.
	Now func() time.Time

	mu       sync.Mutex
	macs     map[string]*macEntry   // by name
	states   uint64                 // the number of states that were numbered
	current  []uint64               // the last state of each slot
	tenants  map[string]*requestsOf // by namespace
	bytes    int                    // of all tenants
	subjects map[string]*subject    // by inspection
	// epoch counts the changes of reports, since is that of the last Mac that joined: until then
	// its slot may have been another's.
	epoch, since uint64
	// standing is that of the Macs that were listed last, by slot; stamp numbers it.
	standing []uint64
	stamp    uint64
}

// maxInspectorBytes bounds the memory of what is kept. The namespace that uses the most gives
// way, so that no other loses anything to it.
const maxInspectorBytes = 32 << 20

// macEntry numbers the current state of a Mac: all that a placement reads of it. A number is
// never used again; the slot is, once the Mac is gone.
type macEntry struct {
	slot    int
	state   uint64
	uid     types.UID
	version string // of the object; empty if it has none
	labels  map[string]string
	taints  []v1alpha1.Taint
	chip    string
	chipAt  time.Time // when it was noted
	reports map[string]report
}

// chipTime is how long another chip of a Mac is not noted: it is another state, for which each
// deployment is judged again, and a Mac reports what it likes. A chip does not change.
const chipTime = time.Minute

// candidate is a Mac in a numbered state.
type candidate struct {
	mac   *v1alpha1.MacNode
	slot  int
	state uint64
	// ready to inspect; leaving Macs are not asked for anything.
	ready, leaving bool
}

// listing is a list of all Macs, as it was numbered.
type listing struct {
	macs []candidate
	// stamp numbers the Macs with their states, epoch their reports, round the time.
	stamp, epoch uint64
	round        int64
}

// requestsOf holds the requests of a namespace.
type requestsOf struct {
	bytes    int
	requests map[types.UID]*request
}

// request is what the spec of a deployment alone determines.
type request struct {
	generation int64
	crowded    bool
	secretUID  string // of the status
	// refused: the spec is not accepted, so that no Mac is asked.
	refused bool
	// local: the source is a file:// one.
	local bool
	// id of the inspection.
	id string
	// bytes of the inspection as JSON, and memory of the request with the verdicts.
	bytes, memory int
	// judged are the Macs that were judged in their current state, and admits those of them that
	// are admitted, as bits by slot. All verdicts on all deployments are to be kept: to judge those
	// of a namespace again for each Mac takes seconds.
	judged, admits []uint64
	// members are the ready Macs that it admits, as bits by slot, within a scope; decision is
	// the last one for them.
	members  []uint64
	within   scope
	decision *decision
}

// newRequest returns the request for a deployment's source. The affinity of a spec that is too
// large to be accepted is not checked.
func newRequest(d *v1alpha1.ModelDeployment, slots int) *request {
	r := &request{generation: d.Generation, crowded: Crowded(d), secretUID: d.Status.SecretUID, id: InspectionID(d)}
	if r.refused = OversizedDeployment(d, &d.Spec) != nil || InvalidPlacement(&d.Spec.Placement) != nil; !r.refused {
		in := inspectionFor(d, r.id)
		r.local, r.bytes = strings.HasPrefix(in.Source, FileScheme), jsonBytes(in)
		r.judged, r.admits = make([]uint64, words(slots)), make([]uint64, words(slots))
	}
	r.memory = 1024 + perWord*words(slots)
	return r
}

// inspectionFor returns the inspection of a deployment's source, with its id. It is made when it
// is needed: with adapters it has tens of KiB.
func inspectionFor(d *v1alpha1.ModelDeployment, id string) v1alpha1.Inspection {
	m := d.Spec.Model.Resolved()
	return v1alpha1.Inspection{ID: id, Namespace: d.Namespace, Source: m.Source, SHA256: m.SHA256, Revision: m.Revision, Files: m.Files, TokenRef: TokenRef(d), Adapters: d.Spec.Adapters}
}

// perWord is how many bytes a request takes for 64 Macs: their verdicts, and their bits among the
// members and in a decision.
const perWord = 4 * 8

// words of bits for this many slots.
func words(slots int) int { return (slots + 63) / 64 }

// has reports whether the bit of a slot is set.
func has(bits []uint64, slot int) bool {
	return slot/64 < len(bits) && bits[slot/64]>>(slot%64)&1 == 1
}

// request returns that of a deployment. Inspectors must be locked.
func (s *Inspectors) request(d *v1alpha1.ModelDeployment) *request {
	t := s.tenants[d.Namespace]
	if t != nil {
		if r := t.requests[d.UID]; r != nil && r.generation == d.Generation && r.crowded == Crowded(d) && r.secretUID == d.Status.SecretUID {
			return r
		}
		s.forget(d.Namespace, d.UID)
	}
	r := newRequest(d, len(s.macs))
	if d.UID == "" {
		return r
	}
	if t = s.tenants[d.Namespace]; t == nil {
		t = &requestsOf{requests: map[types.UID]*request{}}
		if s.tenants == nil {
			s.tenants = map[string]*requestsOf{}
		}
		s.tenants[d.Namespace] = t
	}
	t.requests[d.UID] = r
	t.bytes += r.memory
	s.bytes += r.memory
	s.makeRoom()
	return r
}

// makeRoom drops requests of the namespace that uses the most: any of them, because they are
// read in turns, and then the least recently used is the next that is needed.
func (s *Inspectors) makeRoom() {
	for s.bytes > maxInspectorBytes {
		heaviest := ""
		for name, t := range s.tenants {
			if most := s.tenants[heaviest]; most == nil || t.bytes > most.bytes {
				heaviest = name
			}
		}
		for uid := range s.tenants[heaviest].requests {
			s.forget(heaviest, uid)
			break
		}
	}
}

// widen makes room for the verdicts of more Macs.
func (s *Inspectors) widen(d *v1alpha1.ModelDeployment, r *request, slots int) {
	n := words(slots) - len(r.judged)
	if n <= 0 {
		return
	}
	r.judged, r.admits = append(r.judged, make([]uint64, n)...), append(r.admits, make([]uint64, n)...)
	more := perWord * n
	r.memory += more
	if s.keeps(d, r) {
		s.tenants[d.Namespace].bytes += more
		s.bytes += more
		s.makeRoom()
	}
}

// keeps reports whether the request of a deployment is kept.
func (s *Inspectors) keeps(d *v1alpha1.ModelDeployment, r *request) bool {
	t := s.tenants[d.Namespace]
	return t != nil && t.requests[d.UID] == r
}

// forget drops a request, if it is kept.
func (s *Inspectors) forget(namespace string, uid types.UID) {
	t := s.tenants[namespace]
	if t == nil || t.requests[uid] == nil {
		return
	}
	delete(s.subjects, t.requests[uid].id)
	t.bytes -= t.requests[uid].memory
	s.bytes -= t.requests[uid].memory
	if delete(t.requests, uid); len(t.requests) == 0 {
		delete(s.tenants, namespace)
	}
}

// AskedNames returns the names of the Macs that are asked for the source of any of the
// deployments, under the rules, which may be nil, and the ids of the inspections.
func (s *Inspectors) AskedNames(deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode, rules *v1alpha1.NamespaceRules) (names, ids map[string]bool) {
	if s == nil {
		s = new(Inspectors)
	}
	names, ids = map[string]bool{}, map[string]bool{}
	l, done := s.list(macs), map[*decision]bool{}
	for i := range deployments {
		r, decision := s.decide(&deployments[i], l, rules)
		ids[r.id] = true
		if r.local {
			for _, mac := range s.admitted(&deployments[i], l.under(rules, deployments[i].Namespace)) {
				names[mac.Name] = true
			}
		}
		if decision == nil || done[decision] {
			continue
		}
		done[decision] = true
		for _, name := range decision.asked {
			names[name] = true
		}
	}
	return names, ids
}

// list numbers the states of Macs, of which there must be no others.
func (s *Inspectors) list(macs []v1alpha1.MacNode) *listing {
	l := &listing{macs: make([]candidate, len(macs)), round: s.now().Unix() / int64(roundTime.Seconds())}
	s.mu.Lock()
	defer s.mu.Unlock()
	standing := make([]uint64, 0, len(macs))
	for i := range macs {
		mac, e := &macs[i], s.entry(&macs[i])
		c := candidate{mac, e.slot, e.state, StateOf(mac) == MacReady, !mac.DeletionTimestamp.IsZero()}
		l.macs[i] = c
		for len(standing) <= c.slot {
			standing = append(standing, 0)
		}
		if standing[c.slot] = c.state << 2; c.ready {
			standing[c.slot] |= 1
		}
		if c.leaving {
			standing[c.slot] |= 2
		}
	}
	if s.stamp == 0 || !slices.Equal(standing, s.standing) {
		s.stamp++
		s.standing = standing
	}
	l.stamp, l.epoch = s.stamp, s.epoch
	return l
}

// now returns the time, the same one always without a clock.
func (s *Inspectors) now() time.Time {
	if s.Now == nil {
		return time.Unix(0, 0)
	}
	return s.Now()
}

// under returns the Macs that the rules let a namespace use.
func (l *listing) under(rules *v1alpha1.NamespaceRules, namespace string) []candidate {
	return candidatesFor(rules, namespace, l.macs)
}

// entry returns that of a Mac in its current state. Inspectors must be locked.
func (s *Inspectors) entry(mac *v1alpha1.MacNode) *macEntry {
	e := s.macs[mac.Name]
	if e != nil && e.uid == mac.UID && e.version == mac.ResourceVersion && e.version != "" {
		return e
	}
	if e == nil {
		if s.macs == nil {
			s.macs = map[string]*macEntry{}
		}
		e = &macEntry{slot: s.freeSlot()}
		s.macs[mac.Name] = e
		s.epoch++
		s.since = s.epoch
	}
	s.noteReports(e, mac)
	e.version = mac.ResourceVersion
	if e.state > 0 && e.uid == mac.UID && maps.Equal(e.labels, mac.Labels) && equalTaints(e.taints, mac.Spec.Taints) {
		if e.chip == mac.Status.Chip {
			return e
		}
		if e.chip != "" && s.Now != nil && s.now().Sub(e.chipAt) < chipTime {
			e.version = "" // later
			return e
		}
	}
	if e.chip != mac.Status.Chip {
		e.chipAt = s.now()
	}
	s.states++
	e.state, e.uid, e.chip, e.labels, e.taints = s.states, mac.UID, mac.Status.Chip, mac.Labels, mac.Spec.Taints
	s.unjudge(e)
	return e
}

// unjudge drops the verdicts on a Mac that is in another state. Inspectors must be locked.
func (s *Inspectors) unjudge(e *macEntry) {
	for len(s.current) <= e.slot {
		s.current = append(s.current, 0)
	}
	s.current[e.slot] = e.state
	for _, t := range s.tenants {
		for _, r := range t.requests {
			if has(r.judged, e.slot) {
				r.judged[e.slot/64] &^= 1 << (e.slot % 64)
			}
		}
	}
}

// noteReports ends the decisions about sources on which a Mac reports another result.
func (s *Inspectors) noteReports(e *macEntry, mac *v1alpha1.MacNode) {
	now := reportsOf(mac)
	changed := differing(e.reports, now)
	e.reports = now
	if len(changed) == 0 {
		return
	}
	s.epoch++
	for _, id := range changed {
		if about := s.subjects[id]; about != nil {
			about.since = s.epoch
		}
	}
}

func equalTaints(a, b []v1alpha1.Taint) bool { return slices.EqualFunc(a, b, sameTaint) }

func sameTaint(a, b v1alpha1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

// freeSlot returns the lowest slot that no Mac has.
func (s *Inspectors) freeSlot() int {
	used := make([]bool, len(s.macs)+1)
	for _, e := range s.macs {
		if e.slot < len(used) {
			used[e.slot] = true
		}
	}
	return slices.Index(used, false)
}

// keep drops what is kept of other deployments and Macs than these.
func (s *Inspectors) keep(deployments []v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := 0
	for _, t := range s.tenants {
		kept += len(t.requests)
	}
	if kept > len(deployments) {
		living := make(map[types.UID]bool, len(deployments))
		for i := range deployments {
			living[deployments[i].UID] = true
		}
		for namespace, t := range s.tenants {
			for uid := range t.requests {
				if !living[uid] {
					s.forget(namespace, uid)
				}
			}
		}
	}
	if len(s.macs) > len(macs) {
		living := make(map[string]bool, len(macs))
		for i := range macs {
			living[macs[i].Name] = true
		}
		maps.DeleteFunc(s.macs, func(name string, _ *macEntry) bool { return !living[name] })
	}
}

// admitted returns the Macs of these that a deployment's placement admits and that are not being
// deleted, in their order.
func (s *Inspectors) admitted(d *v1alpha1.ModelDeployment, macs []candidate) []*v1alpha1.MacNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.request(d)
	if r.refused {
		return nil
	}
	var out []*v1alpha1.MacNode
	for _, c := range s.judge(d, r, macs) {
		out = append(out, c.mac)
	}
	return out
}

// judge returns the candidates that a deployment's placement admits. Inspectors must be locked.
func (s *Inspectors) judge(d *v1alpha1.ModelDeployment, r *request, macs []candidate) []candidate {
	var placement *Eligibility // once for all Macs that were not judged yet
	var out []candidate
	for _, c := range macs {
		if c.leaving {
			continue
		}
		latest := c.slot < len(s.current) && s.current[c.slot] == c.state // else the list is older
		admitted := has(r.admits, c.slot)
		if !latest || !has(r.judged, c.slot) {
			if placement == nil {
				placement = NewEligibility(d.Spec.Placement)
			}
			_, admitted = placement.Of(c.mac)
			if latest {
				s.keepVerdict(d, r, c.slot, admitted)
			}
		}
		if admitted {
			out = append(out, c)
		}
	}
	return out
}

// keepVerdict notes whether the Mac in a slot is admitted in its current state. Inspectors must be
// locked.
func (s *Inspectors) keepVerdict(d *v1alpha1.ModelDeployment, r *request, slot int, admitted bool) {
	s.widen(d, r, slot+1) // Macs may have joined
	word, bit := slot/64, uint64(1)<<(slot%64)
	r.judged[word] |= bit
	r.admits[word] &^= bit
	if admitted {
		r.admits[word] |= bit
	}
}
