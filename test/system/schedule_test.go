//go:build stories

package system

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// kind of a fault of TestChaos.
type kind string

const (
	agentKilled    kind = "agent killed"
	engineKilled   kind = "engine killed"
	operatorKilled kind = "operator killed"
	gatewayKilled  kind = "gateway killed"
	serverKilled   kind = "API server killed"
	linkCut        kind = "link of a Mac cut"
	diskFull       kind = "disk of a Mac full"
	clockOff       kind = "clock of a Mac off"
	// macLost is a link that stays cut until what ran there runs elsewhere.
	macLost kind = "Mac lost"
)

// kinds are all, in the order of the fixed schedule: a lost Mac takes three minutes
// and comes last.
func kinds() []kind {
	return []kind{agentKilled, engineKilled, gatewayKilled, linkCut, diskFull, clockOff, operatorKilled, serverKilled, macLost}
}

// lastsFor is how long each kind lasts, at least and at most. A killed engine is
// restarted by its agent, and a lost Mac returns when its models serve elsewhere.
func lastsFor(k kind) (least, most time.Duration) {
	const s = time.Second
	d := map[kind][2]time.Duration{
		agentKilled: {s, 5 * s}, engineKilled: {}, operatorKilled: {s, 8 * s}, gatewayKilled: {s, 6 * s}, serverKilled: {2 * s, 12 * s},
		linkCut: {4 * s, 15 * s}, diskFull: {6 * s, 12 * s}, clockOff: {10 * s, 20 * s}, macLost: {},
	}[k]
	return d[0], d[1]
}

// ofControl reports whether a fault blinds the operator.
func (k kind) ofControl() bool { return k == operatorKilled || k == serverKilled }

// breaks reports whether a fault ends the requests that run there.
func (k kind) breaks() bool {
	return slices.Contains([]kind{agentKilled, engineKilled, linkCut, clockOff, macLost, gatewayKilled}, k)
}

// fault is one of a schedule. target chooses among those that it can be done to,
// modulo their number: who is there depends on what happened before.
type fault struct {
	kind   kind
	target int
	lasts  time.Duration
}

func (f fault) String() string { return fmt.Sprintf("%s, %.1f s", f.kind, f.lasts.Seconds()) }

// fixedRound is every kind once; a link is cut and a clock is off in both ways.
func fixedRound() (out [][]fault) {
	for i, k := range kinds() {
		least, _ := lastsFor(k)
		out = append(out, []fault{{kind: k, target: i, lasts: least}})
		if k == linkCut || k == clockOff {
			out = append(out, []fault{{kind: k, target: i + 1, lasts: least}})
		}
	}
	return out
}

// schedule has rounds of faults in an order that a seed decides.
type schedule struct {
	rng   *rand.Rand
	round int
}

func newSchedule(seed uint64) *schedule {
	return &schedule{rng: rand.New(rand.NewPCG(seed, 0xc4a05))}
}

// next is a round: every kind once, in random order, and from the second round on
// half of the steps with a second fault at the same time. Control is left alone
// while a Mac is lost: the operator counts a Mac's silence from when it can hear.
func (s *schedule) next() (out [][]fault) {
	s.round++
	all := kinds()
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	lost := slices.Index(all, macLost)
	var order []kind
	for i, k := range all {
		if i > lost && k.ofControl() {
			order = slices.Insert(order, slices.Index(order, macLost), k)
			continue
		}
		order = append(order, k)
	}
	for i, k := range order {
		one := []fault{s.fault(k)}
		if s.round > 1 && k != macLost && s.rng.IntN(2) == 0 {
			one = append(one, s.fault(s.second(k, i > slices.Index(order, macLost))))
		}
		out = append(out, one)
	}
	return out
}

// second is another kind for the same step.
func (s *schedule) second(k kind, lost bool) kind {
	may := slices.DeleteFunc(kinds(), func(other kind) bool { return other == k || other == macLost || lost && other.ofControl() })
	return may[s.rng.IntN(len(may))]
}

func (s *schedule) fault(k kind) fault {
	least, most := lastsFor(k)
	f := fault{kind: k, target: s.rng.IntN(1 << 16), lasts: least}
	if most > least {
		f.lasts += time.Duration(s.rng.Int64N(int64(most - least))).Round(100 * time.Millisecond)
	}
	return f
}

func TestARoundHasEveryKindOnceAndLeavesControlAloneWhileAMacIsLost(t *testing.T) {
	firsts := map[kind]bool{}
	for seed := range uint64(200) {
		s := newSchedule(seed)
		for round := range 4 {
			var seen []kind
			lost := false
			for i, one := range s.next() {
				seen = append(seen, one[0].kind)
				lost = lost || one[0].kind == macLost
				if i == 0 && round == 0 {
					firsts[one[0].kind] = true
				}
				if round == 0 && len(one) > 1 || len(one) == 2 && one[0].kind == one[1].kind {
					t.Errorf("seed %d, round %d: %v", seed, round, one)
				}
				for _, f := range one {
					if lost && f.kind.ofControl() {
						t.Errorf("seed %d: %s while a Mac is lost", seed, f.kind)
					}
					if least, most := lastsFor(f.kind); f.lasts < least || f.lasts > most {
						t.Errorf("seed %d: %s", seed, f)
					}
				}
			}
			want := kinds()
			slices.Sort(want)
			if slices.Sort(seen); !slices.Equal(seen, want) {
				t.Errorf("seed %d: %v", seed, seen)
			}
		}
	}
	if len(firsts) != len(kinds())-1 { // what blinds the operator comes before a Mac is lost
		t.Errorf("rounds begin with %v alone", firsts)
	}
}

func TestTheOrderOfFaultsDependsOnTheSeedAlone(t *testing.T) {
	order := func(seed uint64) string {
		s := newSchedule(seed)
		return fmt.Sprint(s.next(), s.next())
	}
	if once, again, other := order(7), order(7), order(8); once != again || once == other {
		t.Error(once, again, other)
	}
}
