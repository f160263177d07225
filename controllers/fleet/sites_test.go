//go:build !race

package fleet

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// peersOf returns the peers of one assignment.
func peersOf(t *testing.T, s *Sites, mac *v1alpha1.MacNode, order v1alpha1.Assignment, macs []v1alpha1.MacNode, assigned []v1alpha1.MacAssignment, replicas []v1alpha1.ModelReplica) []*v1alpha1.MacNode {
	t.Helper()
	out, err := s.Peers(mac, []v1alpha1.Assignment{order}, macs, func() ([]v1alpha1.MacAssignment, []v1alpha1.ModelReplica, error) { return assigned, replicas, nil })
	if err != nil {
		t.Fatal(err)
	}
	return out[0]
}

// siteFleet is a fleet whose objects have versions, as those of an API server.
type siteFleet struct {
	version  int
	macs     []v1alpha1.MacNode
	assigned []v1alpha1.MacAssignment
	replicas []v1alpha1.ModelReplica
}

func (f *siteFleet) next() string {
	f.version++
	return fmt.Sprint(f.version)
}

func (f *siteFleet) join(name, site string) {
	m := ready(name, at(site))
	m.UID, m.ResourceVersion = types.UID(fmt.Sprint(name, f.version)), f.next()
	f.macs = append(f.macs, m)
}

func (f *siteFleet) place(mac, digest string, age time.Duration) {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint("r", f.version)), CreationTimestamp: metav1.NewTime(now.Add(-age)), ResourceVersion: f.next()}}
	r.Spec.NodeName, r.Spec.Model, r.Spec.Desired = mac, modelOf(digest), v1alpha1.DesiredRunning
	f.replicas = append(f.replicas, r)
}

// assign writes the assignment of a Mac, as its orders are written.
func (f *siteFleet) assign(mac, digest string, peers []*v1alpha1.MacNode) {
	a := v1alpha1.Assignment{Model: modelOf(digest), Desired: v1alpha1.DesiredRunning}
	for _, p := range peers {
		a.Peers = append(a.Peers, v1alpha1.Peer{Mac: p.Name})
	}
	i := slices.IndexFunc(f.assigned, func(a v1alpha1.MacAssignment) bool { return a.Name == mac })
	if i < 0 {
		i, f.assigned = len(f.assigned), append(f.assigned, v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: mac, UID: types.UID(fmt.Sprint("a", f.version))}})
	}
	f.assigned[i].ResourceVersion, f.assigned[i].Spec.Assignments = f.next(), []v1alpha1.Assignment{a}
}

func modelOf(digest string) (m model.Record) {
	m.Digest, m.Source = digest, "hf://org/"+digest[:1]
	return m
}

// plainPeers derives the peers from the lists alone.
func (f *siteFleet) plainPeers(mac *v1alpha1.MacNode, order *v1alpha1.Assignment) (out []string) {
	if !Copies(mac, order) {
		return nil
	}
	site := mac.Labels[LabelSite]
	for i := range f.macs {
		if m := &f.macs[i]; m.Name != mac.Name && siteOf(m) == site && HasWeights(m, order.Model.Digest) {
			out = append(out, m.Name)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(distance(mac.Name, a), distance(mac.Name, b)) })
	if len(out) > 0 {
		return out[:min(len(out), maxPeers)]
	}
	type candidate struct {
		mac  string
		sent bool
		r    *v1alpha1.ModelReplica
	}
	var all []candidate
	for i := range f.replicas {
		r := &f.replicas[i]
		m := slices.IndexFunc(f.macs, func(m v1alpha1.MacNode) bool { return m.Name == OrderedOn(r) })
		if m < 0 || siteOf(&f.macs[m]) != site || r.Spec.Model.Digest != order.Model.Digest || r.Spec.Model.Source != order.Model.Source ||
			r.Spec.Desired == v1alpha1.DesiredDrained || !r.DeletionTimestamp.IsZero() {
			continue
		}
		sent := slices.ContainsFunc(f.assigned, func(a v1alpha1.MacAssignment) bool {
			return a.Name == f.macs[m].Name && slices.ContainsFunc(a.Spec.Assignments, func(a v1alpha1.Assignment) bool {
				return a.Model.Digest == order.Model.Digest && a.Desired != v1alpha1.DesiredDrained && len(a.Peers) == 0
			})
		})
		all = append(all, candidate{f.macs[m].Name, sent, r})
	}
	if len(all) == 0 {
		return nil
	}
	first := slices.MinFunc(all, func(a, b candidate) int {
		switch {
		case a.sent && !b.sent:
			return -1
		case b.sent && !a.sent:
			return 1
		}
		return cmp.Or(a.r.CreationTimestamp.Compare(b.r.CreationTimestamp.Time), cmp.Compare(a.r.UID, b.r.UID))
	})
	if first.mac == mac.Name {
		return nil
	}
	return []string{first.mac}
}

// step changes one thing of the fleet at random.
func (f *siteFleet) step(rng *rand.Rand) {
	digest := fmt.Sprint("ab"[rng.IntN(2):][:1], rng.IntN(2))
	var m *v1alpha1.MacNode
	if len(f.macs) > 0 {
		m = &f.macs[rng.IntN(len(f.macs))]
		*m = *m.DeepCopy() // callers of before may keep the old one
	}
	var r *v1alpha1.ModelReplica
	if len(f.replicas) > 0 {
		r = &f.replicas[rng.IntN(len(f.replicas))]
	}
	kind := rng.IntN(14)
	switch {
	case kind == 0 || m == nil:
		if name := fmt.Sprint("m", rng.IntN(12)); !slices.ContainsFunc(f.macs, func(m v1alpha1.MacNode) bool { return m.Name == name }) {
			f.join(name, []string{"", "x", "x", "x", "y"}[rng.IntN(5)])
		}
		return
	case kind == 1 && rng.IntN(3) == 0:
		f.macs = slices.DeleteFunc(f.macs, func(o v1alpha1.MacNode) bool { return o.Name == m.Name })
		return
	case kind == 2:
		m.Labels = map[string]string{LabelSite: []string{"", "x", "x", "x", "y"}[rng.IntN(5)]}
	case kind == 3:
		ready := rng.IntN(3) > 0
		m.Status.Conditions[0].Status, m.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonReporting
		if !ready {
			silent(m)
		}
	case kind == 4 && len(m.Status.Weights) > 0 && rng.IntN(2) == 0:
		m.Status.Weights = m.Status.Weights[1:]
	case (kind == 5 || kind == 12) && !HasWeights(m, digest):
		m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest})
	case kind == 6 || kind == 7 || r == nil:
		f.place(m.Name, digest, time.Duration(rng.IntN(5))*time.Second)
		return
	case kind == 8:
		f.replicas = slices.DeleteFunc(f.replicas, func(o v1alpha1.ModelReplica) bool { return o.UID == r.UID })
		return
	case kind == 9:
		r.Spec.NodeName, r.ResourceVersion = m.Name, f.next()
	case kind == 10:
		r.Spec.Desired, r.ResourceVersion = []v1alpha1.DesiredState{v1alpha1.DesiredDrained, v1alpha1.DesiredRunning}[rng.IntN(2)], f.next()
	case kind == 11 && len(f.assigned) > 0 && rng.IntN(4) == 0:
		f.assigned = f.assigned[1:]
	default:
		f.assign(m.Name, digest, []*v1alpha1.MacNode{m}[:rng.IntN(2)])
	}
	m.ResourceVersion = f.next()
}

// TestSitesAreThoseOfTheLists compares what is kept from list to list with what the lists alone
// give.
func TestSitesAreThoseOfTheLists(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	found := map[int]int{}
	for range 15 {
		var f siteFleet
		var s Sites
		for range 300 {
			f.step(rng)
			for i := range f.macs {
				digest := fmt.Sprint("ab"[rng.IntN(2):][:1], rng.IntN(2))
				order := v1alpha1.Assignment{Model: modelOf(digest), Desired: v1alpha1.DesiredRunning}
				var got []string
				for _, m := range peersOf(t, &s, &f.macs[i], order, f.macs, f.assigned, f.replicas) {
					got = append(got, m.Name)
				}
				want := f.plainPeers(&f.macs[i], &order)
				if found[len(want)]++; !slices.Equal(got, want) {
					t.Fatalf("seed %d: %s copies %s from %v, want %v", seed, f.macs[i].Name, digest, got, want)
				}
			}
		}
		if len(f.macs) > 0 { // weights that no Mac has: all lists are read
			f.macs[0].Labels = map[string]string{LabelSite: "x"}
			peersOf(t, &s, &f.macs[0], v1alpha1.Assignment{Model: modelOf("c"), Desired: v1alpha1.DesiredRunning}, f.macs, f.assigned, f.replicas)
		}
		if len(s.macs) > len(f.macs) || len(s.replicas) > len(f.replicas) || len(s.fetchers) > len(f.replicas) {
			t.Errorf("seed %d: %d Macs and %d replicas are kept of %d and %d", seed, len(s.macs), len(s.replicas), len(f.macs), len(f.replicas))
		}
	}
	for n := range maxPeers + 1 {
		if found[n] < 10 {
			t.Errorf("%d cases have %d peers: too few to compare", found[n], n)
		}
	}
}

// TestAnEditCostsWhatItChanges: an edit of a deployment derives the assignments of all its Macs,
// each from lists of all of the fleet.
func TestAnEditCostsWhatItChanges(t *testing.T) {
	edit := func(macs int) int {
		var f siteFleet
		var s Sites
		for i := range macs {
			name := fmt.Sprintf("m%03d", i)
			f.join(name, "x")
			f.assign(name, "a0", nil)
			f.place(name, "b0", time.Duration(i)*time.Second)
		}
		order := v1alpha1.Assignment{Model: modelOf("b0"), Desired: v1alpha1.DesiredRunning}
		for i := range f.macs {
			f.assign(f.macs[i].Name, "b0", peersOf(t, &s, &f.macs[i], order, f.macs, f.assigned, f.replicas))
		}
		alone := 0
		for _, a := range f.assigned {
			if len(a.Spec.Assignments[0].Peers) == 0 {
				alone++
			}
		}
		if alone != 1 {
			t.Errorf("%d of %d Macs download from the source, want one", alone, macs)
		}
		return s.visits
	}
	// Each Mac, assignment and replica is read, and an assignment again after it was written.
	for _, macs := range []int{50, 500} {
		if visits := edit(macs); visits > 8*macs {
			t.Errorf("an edit for %d Macs looks at %d objects, want at most %d", macs, visits, 8*macs)
		}
	}
}

// concerned returns the names of the Macs that a change of one concerns.
func (f *siteFleet) concerned(before, now *v1alpha1.MacNode) []string {
	change := SupplyChanged(before, now)
	if change == nil {
		return nil
	}
	return change.Concerned(f.macs, f.assigned)
}

// TestWhomAChangeOfWeightsConcerns: a Mac whose peers differ after a change of another one is
// concerned.
func TestWhomAChangeOfWeightsConcerns(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	differed, spared := 0, 0
	for range 300 {
		var f siteFleet
		var orders []v1alpha1.Assignment
		for i := range 14 {
			f.join(fmt.Sprint("m", i), []string{"", "x", "x", "x", "x", "y"}[rng.IntN(6)])
			digest := fmt.Sprint("a", rng.IntN(2))
			f.place(f.macs[i].Name, digest, time.Duration(i)*time.Second)
			f.assign(f.macs[i].Name, digest, nil)
			orders = append(orders, f.assigned[i].Spec.Assignments[0])
		}
		for range 40 {
			m := &f.macs[rng.IntN(len(f.macs))]
			before, was := m.DeepCopy(), map[string][]string{}
			for i := range f.macs {
				was[f.macs[i].Name] = f.plainPeers(&f.macs[i], &orders[i])
			}
			switch digest := fmt.Sprint("a", rng.IntN(2)); rng.IntN(12) {
			case 0:
				m.Labels = map[string]string{LabelSite: []string{"", "x", "y"}[rng.IntN(3)]}
			case 1:
				silent(m)
			case 2:
				m.Status.Conditions[0].Status, m.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonReporting
			case 3:
				m.Status.Address = &v1alpha1.MacAddress{Host: fmt.Sprint(rng.IntN(100)), Port: 1}
			case 4, 5:
				m.Status.Weights = slices.DeleteFunc(m.Status.Weights, func(w v1alpha1.StoredWeights) bool { return w.Digest == digest })
			default:
				if !HasWeights(m, digest) {
					m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest})
				}
			}
			got := f.concerned(before, m)
			for i := range f.macs {
				name := f.macs[i].Name
				now := f.plainPeers(&f.macs[i], &orders[i])
				moved := slices.Contains(now, m.Name) && !equalAddress(before.Status.Address, m.Status.Address)
				differs := name != m.Name && f.macs[i].Labels[LabelSite] != "" && (moved || !slices.Equal(now, was[name]))
				switch {
				case differs && !slices.Contains(got, name):
					t.Fatalf("seed %d: the peers of %s become %v from %v, and it is not concerned by %s", seed, name, now, was[name], m.Name)
				case differs:
					differed++
				case !slices.Contains(got, name):
					spared++
				}
			}
		}
	}
	if differed < 1000 || spared < 1000 {
		t.Errorf("%d Macs with other peers and %d that are spared: too few to compare", differed, spared)
	}
}

// TestADownloadConcernsFewMacs: all Macs of a site download the same weights, one after the
// other. Each one that has them is a peer of some of the rest.
func TestADownloadConcernsFewMacs(t *testing.T) {
	const macs = 500
	var f siteFleet
	for i := range macs {
		name := fmt.Sprintf("m%03d", i)
		f.join(name, "x")
		f.assign(name, "b0", nil)
	}
	total := 0
	for i := range f.macs {
		before := f.macs[i].DeepCopy()
		f.macs[i].Status.Weights = []v1alpha1.StoredWeights{{Digest: "b0"}}
		total += len(f.concerned(before, &f.macs[i]))
	}
	if total > 50*macs {
		t.Errorf("assignments are derived %d times for %d Macs, want at most %d", total, macs, 50*macs)
	}
	before := f.macs[0].DeepCopy()
	f.macs[0].Status.Weights = append(f.macs[0].Status.Weights, v1alpha1.StoredWeights{Digest: "c0"})
	if got := f.concerned(before, &f.macs[0]); !slices.Equal(got, []string{"m000"}) {
		t.Errorf("weights that no other is assigned concern %v", got)
	}
}
