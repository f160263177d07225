//go:build !race

package fleet

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// written gives a Mac a version, as an API server does for each write.
func written(mac *v1alpha1.MacNode) {
	n, _ := strconv.Atoi(mac.ResourceVersion)
	mac.ResourceVersion = strconv.Itoa(n + 1)
}

// readyFleet returns a number of ready Macs.
func readyFleet(n int) []v1alpha1.MacNode {
	macs := make([]v1alpha1.MacNode, n)
	for i := range macs {
		macs[i] = ready(fmt.Sprintf("m%03d", i))
		written(&macs[i])
	}
	return macs
}

// TestAttackASourceThatNoMacReaches: many deployments name it, and its server answers each Mac
// with another error, again and again. Who is asked is decided once for all of them, and again
// only for another result.
func TestAttackASourceThatNoMacReaches(t *testing.T) {
	macs := readyFleet(100)
	deployments := make([]v1alpha1.ModelDeployment, 300)
	for i := range deployments {
		deployments[i] = deployment(fmt.Sprint("d", i), "https://evil.example/m.gguf", time.Hour)
		deployments[i].Namespace, deployments[i].UID = "evil", types.UID(fmt.Sprint(i))
	}
	for i := range macs {
		macs[i].Status.Inspections = []v1alpha1.InspectionStatus{failedWith(&deployments[0], v1alpha1.ReasonSourceUnreachable)}
	}
	var s Inspectors
	made := map[*decision]bool{}
	pass := func() (asked int) {
		for i := range macs {
			asked += len(s.Inspections(macs[i].Name, deployments, macs, nil))
			for _, r := range s.tenants["evil"].requests {
				made[r.decision] = true
			}
		}
		return asked
	}
	if asked := pass(); asked != keptUnable+askedInTurns || len(made) != 1 || made[nil] {
		t.Errorf("%d Macs are asked, by %d decisions, want %d by one", asked, len(made), keptUnable+askedInTurns)
	}
	for i := range macs {
		macs[i].Status.Inspections[0].Message = fmt.Sprint("HTTP ", i)
		written(&macs[i])
	}
	if pass(); len(made) != 1 {
		t.Errorf("%d decisions after other messages, want still one", len(made))
	}
	macs[0].Status.Inspections[0].Reason = v1alpha1.ReasonSourceForbidden
	written(&macs[0])
	if pass(); len(made) != 2 {
		t.Errorf("%d decisions after another result, want two", len(made))
	}
	if s.Inspections("m000", nil, nil, nil); len(s.subjects) != 0 {
		t.Errorf("%d decisions are kept of no deployment", len(s.subjects))
	}
}

// network has Macs report as agents do: only what they are asked for, and at once.
type network struct {
	deployment *v1alpha1.ModelDeployment
	macs       []v1alpha1.MacNode
	reaches    []string
	now        time.Time
	seen       map[string]bool
}

// settle lets the Macs report until nothing changes, and returns the result.
func (n *network) settle(t *testing.T, s *Inspectors) Finding {
	for range 20 {
		asked, changed := s.Asked(n.deployment, n.macs), false
		if len(asked) > keptUnable+askedInTurns+len(n.reaches) {
			t.Fatalf("%d Macs are asked", len(asked))
		}
		for i := range n.macs {
			mac := &n.macs[i]
			var want []v1alpha1.InspectionStatus
			if slices.Contains(asked, mac) {
				n.seen[mac.Name] = true
				want = []v1alpha1.InspectionStatus{failedWith(n.deployment, v1alpha1.ReasonSourceUnreachable)}
				if slices.Contains(n.reaches, mac.Name) {
					want = []v1alpha1.InspectionStatus{resolvedAs(n.deployment, fleettest.Model(n.deployment.Spec.Model.Source, "good", 1<<30))}
				}
			}
			if !reflect.DeepEqual(mac.Status.Inspections, want) {
				mac.Status.Inspections, changed = want, true
				written(mac)
			}
		}
		if !changed {
			return s.Inspect(n.deployment, n.macs, nil)
		}
	}
	t.Fatal("the Macs that are asked change for ever")
	return Finding{}
}

// TestMacsTakeTurnsAtASourceThatFewReach: all are asked in the end, a few at a time, so that one
// Mac alone that reaches the source is found, also by an operator that started meanwhile.
func TestMacsTakeTurnsAtASourceThatFewReach(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	d.UID = "d"
	order := readyFleet(30)
	slices.SortFunc(order, func(a, b v1alpha1.MacNode) int {
		return byHash(ranked{spread(spreadFrom(InspectionID(&d)), &a), &a}, ranked{spread(spreadFrom(InspectionID(&d)), &b), &b})
	})
	for name, tc := range map[string]struct {
		reaches  []string
		vouchers int
		rounds   int // at most; a round asks four of the 26 that do not stay asked
	}{
		"none":                   {rounds: 7},
		"the last":               {reaches: []string{order[29].Name}, vouchers: 1, rounds: 7},
		"one in the middle":      {reaches: []string{order[15].Name}, vouchers: 1, rounds: 7},
		"two of different turns": {reaches: []string{order[9].Name, order[28].Name}, vouchers: 1, rounds: 7},
		"the first":              {reaches: []string{order[0].Name}, vouchers: 1, rounds: 7},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{deployment: &d, macs: readyFleet(30), reaches: tc.reaches, now: time.Unix(1_800_000_000, 0), seen: map[string]bool{}}
			s := &Inspectors{Now: func() time.Time { return n.now }}
			refusal := ""
			for range tc.rounds {
				found := n.settle(t, s)
				if restarted := (&Inspectors{Now: s.Now}).Asked(&d, n.macs); !slices.Equal(restarted, s.Asked(&d, n.macs)) {
					t.Error("an operator that starts asks others")
				}
				if found.Record != nil && len(found.Record.VouchedBy) >= tc.vouchers && tc.vouchers > 0 {
					refusal = ""
					break
				}
				if found.Refusal == nil || found.Refusal.Reason != v1alpha1.ReasonSourceUnreachable || refusal != "" && refusal != found.Refusal.Message {
					t.Fatalf("%+v, want the same refusal in each round (%s)", found, refusal)
				}
				refusal = found.Refusal.Message
				n.now = n.now.Add(roundTime)
			}
			if (tc.vouchers == 0) != (refusal != "") {
				t.Fatalf("the source is refused: %q", refusal)
			}
			if tc.vouchers == 0 && len(n.seen) != 30 {
				t.Errorf("%d of 30 Macs were asked", len(n.seen))
			}
			for range 8 { // who found it stays asked, and a second one is found
				n.now = n.now.Add(roundTime)
				if found := n.settle(t, s); found.Record == nil && tc.vouchers > 0 {
					t.Fatalf("the result is lost: %+v", found)
				}
			}
			if found := n.settle(t, s); len(tc.reaches) > 0 && !slices.Equal(found.Record.VouchedBy, slices.Sorted(slices.Values(tc.reaches))) {
				t.Errorf("%v vouch, want %v", found.Record.VouchedBy, tc.reaches)
			}
		})
	}
}

// TestOrdersLastForARound: only those of Macs that may take a turn.
func TestOrdersLastForARound(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	d.Spec.Placement.NodeSelector = map[string]string{"room": "lab"}
	n := &network{deployment: &d, macs: readyFleet(12), now: time.Unix(1_800_000_030, 0), seen: map[string]bool{}}
	for i := range 11 {
		n.macs[i].Labels = d.Spec.Placement.NodeSelector
	}
	s := &Inspectors{Now: func() time.Time { return n.now }}
	lasts := func(mac string) time.Duration {
		_, out := s.InspectionsFor(mac, []v1alpha1.ModelDeployment{d}, n.macs, nil)
		return out
	}
	if got := lasts("m000"); got != 0 {
		t.Errorf("%v before any Mac failed, want for ever", got)
	}
	n.settle(t, s)
	if in, out := lasts("m000"), lasts("m011"); in != roundTime-30*time.Second || out != 0 {
		t.Errorf("%v, and %v for a Mac that is never asked", in, out)
	}
}

// TestWhatIsDecidedIsRight: Macs report, fall silent and return while time passes; who is asked is
// what a decision without memory asks, also with a list that is no longer the latest.
func TestWhatIsDecidedIsRight(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	s := &Inspectors{Now: clock}
	var deployments []v1alpha1.ModelDeployment
	for i := range 4 {
		d := deployment(fmt.Sprint("d", i), fmt.Sprint("hf://org/", i/2), time.Hour)
		d.UID = types.UID(d.Name)
		deployments = append(deployments, d)
	}
	deployments[1].Spec.Placement.NodeSelector = map[string]string{"room": "lab"}
	macs := readyFleet(16)
	for step := range 600 {
		before := slices.Clone(macs)
		i := r.IntN(len(macs))
		mac := macs[i].DeepCopy()
		written(mac)
		switch d := &deployments[r.IntN(4)]; r.IntN(8) {
		case 0:
			mac.Labels = map[string]string{"room": []string{"lab", "hall"}[r.IntN(2)]}
		case 1:
			*mac = ready(mac.Name)
			mac.ResourceVersion = fmt.Sprint(1000 + step)
			if r.IntN(2) == 0 {
				silent(mac)
			}
		case 2:
			now = now.Add(time.Minute)
			d.Generation++
		case 3:
			mac.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(d, fleettest.Model(d.Spec.Model.Source, fmt.Sprint(r.IntN(3)), 1<<30))}
		default:
			mac.Status.Inspections = []v1alpha1.InspectionStatus{failedWith(d, []string{v1alpha1.ReasonSourceNotFound, v1alpha1.ReasonSourceUnreachable, v1alpha1.ReasonSourceUnreachable}[r.IntN(3)])}
		}
		macs[i] = *mac
		older, newer := s.list(before), s.list(macs)
		for n, l := range []*listing{older, newer, older, newer, s.list(before), s.list(macs), older} {
			list := [][]v1alpha1.MacNode{before, macs}[n%2]
			for k := range deployments {
				d := &deployments[k]
				_, got := s.asked(d, l, nil)
				want := (&Inspectors{Now: clock}).Asked(d, list)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d: %d Macs are asked for %s, want %d", seed, step, len(got), d.Name, len(want))
				}
			}
		}
	}
}

// TestANameDoesNotChooseWhatAMacInspects: the owner of an enrolment token chooses it, and would get
// the credential of the source, and be believed of it.
func TestANameDoesNotChooseWhatAMacInspects(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	asked := func(name string) (uids []types.UID) {
		macs := readyFleet(30)
		for i := range macs {
			macs[i].UID = types.UID(fmt.Sprint("uid-", i))
		}
		macs[7].Name = name
		for _, mac := range Asked(&d, macs) {
			uids = append(uids, mac.UID)
		}
		slices.Sort(uids)
		return uids
	}
	want := asked("m007")
	for i := range 200 {
		if got := asked(fmt.Sprint("lab-", i)); !slices.Equal(got, want) {
			t.Fatalf("with the name lab-%d, %v are asked, want %v", i, got, want)
		}
	}
}

// TestAChipThatChangesAllTheTime: each change would have all deployments judged again.
func TestAChipThatChangesAllTheTime(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	s := Inspectors{Now: func() time.Time { return at }}
	macs := readyFleet(3)
	list := func(chip string) uint64 {
		macs[0].Status.Chip = chip
		written(&macs[0])
		return s.list(macs).stamp
	}
	list("")
	first := list("M2")
	for i := range 50 {
		at = at.Add(time.Second)
		if got := list(fmt.Sprint("M", i%2)); got != first {
			t.Fatalf("after %d s the chip is noted", i)
		}
	}
	at = at.Add(time.Minute)
	if s.list(macs).stamp == first || s.macs[macs[0].Name].chip != "M1" {
		t.Errorf("later it is not noted: %+v", s.macs[macs[0].Name])
	}
}
