package fleet

import (
	"cmp"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Sites decides which Macs copy weights from which, and keeps an index of the Macs by their
// weights and of the replicas by their model, so that a change costs what changed: an edit of a
// deployment derives the assignments of each of its Macs.
//
// Each call brings the index up to date with the lists of its caller: an object of the same UID
// and resourceVersion is known, and others are read again. The zero value is ready; it is safe
// for concurrent use, also with lists of different times. A nil Sites keeps nothing.
type Sites struct {
	mu       sync.Mutex
	pass     uint64 // numbers the lists
	macs     map[string]*siteMac
	sent     map[string]*sentTo // by Mac
	replicas map[types.UID]*siteReplica
	ordered  map[string]map[*siteReplica]bool // by Mac
	holders  map[weightsAt]map[*siteMac]bool
	fetchers map[sourceAt]*candidates
	// visits counts the objects that were read, and those that were compared to answer.
	visits int
}

// known identifies the state of an object that was read, and the last list that had it.
type known struct {
	uid     types.UID
	version string
	pass    uint64
}

// still reports whether an object is in the state that was read, and notes it.
func (k *known) still(o metav1.Object, pass uint64) bool {
	same := k.version != "" && k.version == o.GetResourceVersion() && k.uid == o.GetUID()
	*k = known{o.GetUID(), o.GetResourceVersion(), pass}
	return same
}

// siteMac is a Mac as a place to copy from.
type siteMac struct {
	known
	mac     *v1alpha1.MacNode // of the last list
	site    string            // empty if it gives nothing
	digests []string          // of its weights, sorted
}

// sentTo holds the digests that a Mac has assigned without peers.
type sentTo struct {
	known
	digests []string
}

// siteReplica is a replica as a reason to download.
type siteReplica struct {
	known
	facts replicaFacts
	among *candidates // nil: its Mac downloads for no other
	sent  bool        // its Mac was chosen already
}

// replicaFacts are what a choice depends on. Mac is empty if the replica needs no weights.
type replicaFacts struct {
	mac, digest, source string
	created             time.Time
}

type weightsAt struct{ site, digest string }

type sourceAt struct{ site, digest, source string }

// candidates are the replicas of the same model on Macs of a site. Best is nil if unknown.
type candidates struct {
	at      sourceAt
	members map[*siteReplica]bool
	best    *siteReplica
}

// Peers returns the Macs that a Mac may copy the weights of each of its assignments from: those
// of its site that have them; if none has, the one that downloads them for all: the one that was
// chosen already, else the one that is assigned the oldest replica. That one has no peers, and
// neither has a Mac that needs no copy: it uses the source.
//
// The Macs are all of the fleet. Others returns all MacAssignments and replicas; it is called at
// most once, and only if no Mac has some of the weights. Nothing of the lists is changed.
func (s *Sites) Peers(mac *v1alpha1.MacNode, orders []v1alpha1.Assignment, macs []v1alpha1.MacNode,
	others func() ([]v1alpha1.MacAssignment, []v1alpha1.ModelReplica, error)) ([][]*v1alpha1.MacNode, error) {
	if s == nil {
		s = new(Sites)
	}
	out := make([][]*v1alpha1.MacNode, len(orders))
	absent := s.nearest(out, mac, orders, macs)
	if len(absent) == 0 {
		return out, nil
	}
	assigned, replicas, err := others()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteMacs(macs) // another caller may have had other lists
	s.noteAssigned(assigned)
	s.noteReplicas(replicas)
	for _, i := range absent {
		m := &orders[i].Model
		if f := s.fetcher(sourceAt{mac.Labels[LabelSite], m.Digest, m.Source}); f != nil && f.Name != mac.Name {
			out[i] = []*v1alpha1.MacNode{f}
		}
	}
	return out, nil
}

// nearest sets the Macs that have the weights of each assignment, and returns the indexes of the
// assignments that no Mac has.
func (s *Sites) nearest(out [][]*v1alpha1.MacNode, mac *v1alpha1.MacNode, orders []v1alpha1.Assignment, macs []v1alpha1.MacNode) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteMacs(macs)
	var absent []int
	for i := range orders {
		if !Copies(mac, &orders[i]) {
			continue
		}
		if out[i] = s.have(mac, orders[i].Model.Digest); len(out[i]) == 0 {
			absent = append(absent, i)
		}
	}
	return absent
}

// have returns at most maxPeers other Macs of a Mac's site that have weights. Each Mac has its
// own order of them, so that not all use the same peer first. Sites must be locked.
func (s *Sites) have(mac *v1alpha1.MacNode, digest string) []*v1alpha1.MacNode {
	type peer struct {
		mac      *v1alpha1.MacNode
		distance uint64
	}
	var first []peer
	for e := range s.holders[weightsAt{mac.Labels[LabelSite], digest}] {
		s.visits++
		if e.mac.Name == mac.Name {
			continue
		}
		p := peer{e.mac, distance(mac.Name, e.mac.Name)}
		at, _ := slices.BinarySearchFunc(first, p, func(a, b peer) int {
			return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.mac.Name, b.mac.Name))
		})
		if at < maxPeers {
			first = slices.Insert(first[:min(len(first), maxPeers-1)], at, p)
		}
	}
	var out []*v1alpha1.MacNode
	for _, p := range first {
		out = append(out, p.mac)
	}
	return out
}

func distance(a, b string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a + "\n" + b))
	return h.Sum64()
}

// fetcher returns the Mac of a site that downloads a model from its source for all. Sites must
// be locked.
func (s *Sites) fetcher(at sourceAt) *v1alpha1.MacNode {
	c := s.fetchers[at]
	if c == nil {
		return nil
	}
	if c.best == nil {
		for r := range c.members {
			s.visits++
			if c.best == nil || r.before(c.best) {
				c.best = r
			}
		}
	}
	return s.macs[c.best.facts.mac].mac
}

// before reports whether the Mac of a replica is chosen rather than that of another.
func (r *siteReplica) before(o *siteReplica) bool {
	if r.sent != o.sent {
		return r.sent
	}
	return cmp.Or(r.facts.created.Compare(o.facts.created), cmp.Compare(r.uid, o.uid)) < 0
}
