package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// kind of a fault.
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

// holds is how long each kind lasts before it is healed, at least and at most.
// A killed engine is healed by its agent, and a lost Mac when its models serve
// elsewhere.
func holds() map[kind][2]time.Duration {
	const s = time.Second
	return map[kind][2]time.Duration{
		agentKilled: {s, 5 * s}, engineKilled: {}, operatorKilled: {s, 8 * s}, gatewayKilled: {s, 6 * s}, serverKilled: {2 * s, 12 * s},
		linkCut: {4 * s, 15 * s}, diskFull: {6 * s, 12 * s}, clockOff: {10 * s, 20 * s}, macLost: {},
	}
}

func allKinds() []kind {
	return []kind{agentKilled, engineKilled, operatorKilled, gatewayKilled, serverKilled, linkCut, diskFull, clockOff, macLost}
}

// ofControl says that a fault blinds the operator.
func (k kind) ofControl() bool { return k == operatorKilled || k == serverKilled }

// fault is one of a step. Of those that could be meant, target chooses: modulo
// their number, because who is there depends on what happened before.
type fault struct {
	kind   kind
	target int
	hold   time.Duration
}

// step is what happens at the same time; the next one comes when everything is
// whole again, but for a Mac that is lost.
type step []fault

// schedule is what happens, by the seed alone.
type schedule struct {
	rng   *rand.Rand
	round int
}

func newSchedule(seed uint64) *schedule {
	return &schedule{rng: rand.New(rand.NewPCG(seed, 0xc4a05))}
}

// next is a round: every kind once, in random order, and from the second round on
// half of the steps with a second fault beside. Control is left alone while a Mac
// is lost: time in which the operator sees nothing would begin that Mac's anew.
func (s *schedule) next() []step {
	s.round++
	kinds := allKinds()
	s.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	lost := slices.Index(kinds, macLost)
	var order []kind
	for i, k := range kinds {
		if i > lost && k.ofControl() {
			order = slices.Insert(order, slices.Index(order, macLost), k)
			continue
		}
		order = append(order, k)
	}
	var out []step
	for _, k := range order {
		one := step{s.fault(k)}
		if s.round > 1 && k != macLost && s.rng.IntN(2) == 0 {
			if other := s.beside(k, len(out) > slices.Index(order, macLost)); other != "" {
				one = append(one, s.fault(other))
			}
		}
		out = append(out, one)
	}
	return out
}

// beside is a second kind for a step.
func (s *schedule) beside(k kind, lost bool) kind {
	var may []kind
	for _, other := range allKinds() {
		if other != k && other != macLost && !(lost && other.ofControl()) {
			may = append(may, other)
		}
	}
	return may[s.rng.IntN(len(may))]
}

func (s *schedule) fault(k kind) fault {
	h := holds()[k]
	f := fault{kind: k, target: s.rng.IntN(1 << 16), hold: h[0]}
	if h[1] > h[0] {
		f.hold += time.Duration(s.rng.Int64N(int64(h[1] - h[0]))).Round(100 * time.Millisecond)
	}
	return f
}

func (f fault) String() string {
	if f.hold == 0 {
		return string(f.kind)
	}
	return fmt.Sprintf("%s, %.1f s", f.kind, f.hold.Seconds())
}
