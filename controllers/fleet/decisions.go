package fleet

import (
	"cmp"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds of the Macs that are asked for a source that none of them can reach, or that returns
// something else to each. They try again and again, and report up to 64 KiB, so that a tenant could
// have the whole fleet do that, and the operator read it.
const (
	// mostDisputing is how many Macs may find different contents before no other one is asked.
	mostDisputing = 4
	// keptUnable is how many such Macs stay asked, those with the lowest hashes.
	keptUnable = 4
	// askedInTurns is how many of the others are asked in one round. Which, follows from the
	// time alone, so that all operators agree, also after a restart.
	askedInTurns = 4
	// roundTime is how long a Mac has to find out that it can reach the source: more than the 2
	// minutes that an agent reads a header. A Mac that did stays asked.
	roundTime = 3 * time.Minute
)

// decision is which Macs are asked for a downloaded source.
type decision struct {
	// members are the ready Macs that may be asked, as bits by slot.
	members []uint64
	// epoch of the reports.
	epoch uint64
	// rotates: others are asked in another round.
	rotates bool
	round   int64
	// asked are the names of the Macs; kept are those that are asked in every round.
	asked, kept []string
}

// subject has the decisions about a source since its last report that differs, in a round, by a
// hash of their members: tenants choose any number of sets of Macs.
type subject struct {
	since     uint64
	at        uint64 // the epoch since which decisions are right, at least since
	round     int64
	decisions map[uint64]*decision
}

// in returns the decisions since an epoch, in a round; it drops those of an earlier one.
func (s *subject) in(since uint64, round int64) map[uint64]*decision {
	if s.decisions == nil || s.at != since || s.round != round {
		s.at, s.round, s.decisions = since, round, map[uint64]*decision{}
	}
	return s.decisions
}

// hashOf is of members; two with the same merely do not share a decision.
func hashOf(members []uint64) uint64 {
	h := uint64(len(members))
	for _, m := range members {
		h = (h ^ m ^ m>>32) * 1099511628211
	}
	return h
}

// scope is what the members of a request depend on besides its spec; the zero value is none that
// can be compared.
type scope struct {
	stamp uint64
	rules string // their version, if they select Macs for the namespace
}

func scopeOf(l *listing, rules *v1alpha1.NamespaceRules, namespace string) scope {
	switch {
	case selectorOf(rules, namespace) == nil:
		return scope{stamp: l.stamp}
	case rules.ResourceVersion == "":
		return scope{}
	}
	return scope{l.stamp, string(rules.UID) + "/" + rules.ResourceVersion}
}

// asks reports whether a Mac is asked.
func (d *decision) asks(mac string) bool {
	return d != nil && slices.Contains(d.asked, mac)
}

// of reports whether the decision is about the Mac in a slot.
func (d *decision) of(slot int) bool {
	return has(d.members, slot)
}

// holds reports whether a decision of an epoch is still right in a round.
func (d *decision) holds(since uint64, round int64) bool {
	return d != nil && d.epoch >= since && (!d.rotates || d.round == round)
}

// decide returns the request of a deployment and, of a downloaded source, which Macs are asked,
// of those that the rules let its namespace use.
func (s *Inspectors) decide(d *v1alpha1.ModelDeployment, l *listing, rules *v1alpha1.NamespaceRules) (*request, *decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.request(d)
	if r.refused || r.local {
		return r, nil
	}
	if in := scopeOf(l, rules, d.Namespace); in != r.within || in == (scope{}) {
		members := make([]uint64, 0, len(r.judged))
		for _, c := range s.judge(d, r, l.under(rules, d.Namespace)) {
			if !c.ready {
				continue
			}
			for len(members) <= c.slot/64 {
				members = append(members, 0)
			}
			members[c.slot/64] |= 1 << (c.slot % 64)
		}
		if !slices.Equal(members, r.members) {
			r.members, r.decision = members, nil
		}
		r.within = in
	}
	about := s.subjects[r.id]
	since := s.since
	if about != nil {
		since = max(since, about.since)
	}
	if about != nil && l.epoch >= since {
		if r.decision.holds(since, l.round) {
			return r, r.decision
		}
		if made := about.in(since, l.round)[hashOf(r.members)]; made.holds(since, l.round) && slices.Equal(made.members, r.members) {
			r.decision = made
			return r, made
		}
	}
	made := decideAmong(d, r.id, r.members, l)
	if !s.keeps(d, r) || l.epoch < since || about == nil && l.epoch != s.epoch {
		return r, made // not kept, or of a list that is no longer the latest
	}
	if about == nil {
		if s.subjects == nil {
			s.subjects = map[string]*subject{}
		}
		about = &subject{since: l.epoch}
		s.subjects[r.id] = about
	}
	about.in(max(since, about.since), l.round)[hashOf(r.members)] = made
	r.decision = made
	return r, made
}

// ranked is a ready Mac with the hash of an inspection and its name.
type ranked struct {
	hash uint64
	mac  *v1alpha1.MacNode
}

func byHash(a, b ranked) int {
	return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.mac.Name, b.mac.Name))
}

// decideAmong decides which of the members are asked.
func decideAmong(d *v1alpha1.ModelDeployment, id string, members []uint64, l *listing) *decision {
	out := &decision{members: members, epoch: l.epoch, round: l.round}
	from, order := spreadFrom(id), make([]ranked, 0, len(l.macs))
	for _, c := range l.macs {
		if out.of(c.slot) {
			order = append(order, ranked{spread(from, c.mac), c.mac})
		}
	}
	var found testimony
	const picked = 4 // more of them are sorted
	for i := 0; i < len(order) && !found.decided(); i++ {
		if found.unable() == keptUnable {
			out.askInTurns(d, id, order[i:], &found)
			break
		}
		switch rest := order[i:]; {
		case i < picked:
			least := slices.MinFunc(rest, byHash)
			at := slices.Index(rest, least)
			rest[0], rest[at] = rest[at], rest[0]
		case i == picked:
			slices.SortFunc(rest, byHash)
		}
		out.ask(d, id, order[i].mac, &found)
	}
	if out.kept == nil {
		out.kept = out.asked
	}
	slices.Sort(out.asked)
	return out
}

// askInTurns asks those of the rest that report a result, and a few others in each round.
func (d *decision) askInTurns(of *v1alpha1.ModelDeployment, id string, rest []ranked, found *testimony) {
	slices.SortFunc(rest, byHash)
	rest = slices.DeleteFunc(rest, func(m ranked) bool {
		var alone testimony
		alone.add(of, m.mac.Name, inspectionOf(m.mac, id))
		if found.decided() || len(alone.groups)+alone.verdicts == 0 {
			return false
		}
		d.ask(of, id, m.mac, found)
		return true
	})
	d.kept = slices.Clone(d.asked)
	if found.decided() || len(rest) == 0 {
		return
	}
	d.rotates = len(rest) > askedInTurns
	first := int(d.round % int64((len(rest)+askedInTurns-1)/askedInTurns) * askedInTurns)
	for i := range min(askedInTurns, len(rest)) {
		d.ask(of, id, rest[(first+i)%len(rest)].mac, found)
	}
}

// ask adds a Mac, and its report to what was found.
func (d *decision) ask(of *v1alpha1.ModelDeployment, id string, mac *v1alpha1.MacNode, found *testimony) {
	d.asked = append(d.asked, mac.Name)
	found.add(of, mac.Name, inspectionOf(mac, id))
}
