package fleet

import (
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// noteMacs brings the index up to date with a list of all Macs. Sites must be locked.
func (s *Sites) noteMacs(macs []v1alpha1.MacNode) {
	s.pass++
	for i := range macs {
		mac := &macs[i]
		e := s.macs[mac.Name]
		if e == nil {
			e = &siteMac{}
			put(&s.macs, mac.Name, e)
		}
		e.mac = mac
		if e.still(mac, s.pass) {
			continue
		}
		s.visits++
		s.supply(mac.Name, e, siteOf(mac), digestsOf(mac))
	}
	if len(s.macs) == len(macs) {
		return
	}
	for name, e := range s.macs {
		if e.pass != s.pass {
			s.supply(name, e, "", nil)
			delete(s.macs, name)
		}
	}
}

// digestsOf returns the digests of a Mac's weights, sorted.
func digestsOf(mac *v1alpha1.MacNode) []string {
	out := make([]string, 0, len(mac.Status.Weights))
	for _, w := range mac.Status.Weights {
		out = append(out, w.Digest)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// supply sets the site that a Mac gives to, and what it has.
func (s *Sites) supply(name string, e *siteMac, site string, digests []string) {
	moved := site != e.site
	if !moved && slices.Equal(digests, e.digests) {
		return
	}
	if e.site != "" {
		for _, d := range e.digests {
			take(s.holders, weightsAt{e.site, d}, e)
		}
	}
	e.site, e.digests = site, digests
	if e.site != "" {
		for _, d := range e.digests {
			add(&s.holders, weightsAt{e.site, d}, e)
		}
	}
	if moved {
		s.placeAll(name)
	}
}

// noteAssigned brings the index up to date with a list of all MacAssignments. Sites must be
// locked.
func (s *Sites) noteAssigned(assigned []v1alpha1.MacAssignment) {
	s.pass++
	for i := range assigned {
		a := &assigned[i]
		e := s.sent[a.Name]
		if e == nil {
			e = &sentTo{}
			put(&s.sent, a.Name, e)
		}
		if e.still(a, s.pass) {
			continue
		}
		s.visits++
		if digests := sentWeights(a); !slices.Equal(digests, e.digests) {
			e.digests = digests
			s.placeAll(a.Name)
		}
	}
	if len(s.sent) == len(assigned) {
		return
	}
	for name, e := range s.sent {
		if e.pass != s.pass {
			delete(s.sent, name)
			s.placeAll(name)
		}
	}
}

// noteReplicas brings the index up to date with a list of all replicas. Sites must be locked.
func (s *Sites) noteReplicas(replicas []v1alpha1.ModelReplica) {
	s.pass++
	for i := range replicas {
		r := &replicas[i]
		e := s.replicas[r.UID]
		if e == nil {
			e = &siteReplica{}
			put(&s.replicas, r.UID, e)
		}
		if e.still(r, s.pass) {
			continue
		}
		s.visits++
		s.order(e, factsOf(r))
	}
	if len(s.replicas) == len(replicas) {
		return
	}
	for uid, e := range s.replicas {
		if e.pass != s.pass {
			s.order(e, replicaFacts{})
			delete(s.replicas, uid)
		}
	}
}

func factsOf(r *v1alpha1.ModelReplica) replicaFacts {
	if r.Spec.Desired == v1alpha1.DesiredDrained || !r.DeletionTimestamp.IsZero() {
		return replicaFacts{}
	}
	return replicaFacts{OrderedOn(r), r.Spec.Model.Digest, r.Spec.Model.Source, r.CreationTimestamp.Time}
}

// order sets the facts of a replica.
func (s *Sites) order(e *siteReplica, facts replicaFacts) {
	if e.facts == facts {
		return
	}
	take(s.ordered, e.facts.mac, e)
	e.facts = facts
	if facts.mac != "" {
		add(&s.ordered, facts.mac, e)
	}
	s.place(e)
}

// placeAll places the replicas on a Mac of which something has changed.
func (s *Sites) placeAll(mac string) {
	for e := range s.ordered[mac] {
		s.visits++
		s.place(e)
	}
}

// place moves a replica to the candidates where it belongs.
func (s *Sites) place(e *siteReplica) {
	if c := e.among; c != nil {
		if delete(c.members, e); c.best == e {
			c.best = nil
		}
		if len(c.members) == 0 {
			delete(s.fetchers, c.at)
		}
		e.among = nil
	}
	mac, sent := s.macs[e.facts.mac], s.sent[e.facts.mac]
	if mac == nil || mac.site == "" {
		return
	}
	e.sent = false
	if sent != nil {
		_, e.sent = slices.BinarySearch(sent.digests, e.facts.digest)
	}
	at := sourceAt{mac.site, e.facts.digest, e.facts.source}
	c := s.fetchers[at]
	if c == nil {
		c = &candidates{at: at, members: map[*siteReplica]bool{}, best: e}
		put(&s.fetchers, at, c)
	}
	if c.members[e] = true; c.best != nil && e.before(c.best) {
		c.best = e
	}
	e.among = c
}

func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// add adds a value to the set of a key.
func add[K, V comparable](m *map[K]map[V]bool, key K, value V) {
	if (*m)[key] == nil {
		put(m, key, map[V]bool{})
	}
	(*m)[key][value] = true
}

// take removes a value from the set of a key.
func take[K, V comparable](m map[K]map[V]bool, key K, value V) {
	if delete(m[key], value); len(m[key]) == 0 {
		delete(m, key)
	}
}
