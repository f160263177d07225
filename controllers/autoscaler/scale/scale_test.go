//go:build !race

package scale_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
)

var epoch = time.Unix(1_800_000_000, 0)

// fleet is a deployment on virtual time: replicas serve some time after they were
// requested.
type fleet struct {
	t        *testing.T
	policy   scale.Policy
	memory   scale.Memory
	now      time.Time
	replicas []scale.Replica
	ready    map[string]time.Time
	born     int
	loads    time.Duration
	room     int // Macs; -1 is any number
	last     scale.Decision
}

func newFleet(t *testing.T, p scale.Policy) *fleet {
	return &fleet{t: t, policy: p, now: epoch, ready: map[string]time.Time{}, loads: 10 * time.Second, room: -1}
}

func policy() scale.Policy {
	return scale.Policy{Min: 1, Max: 8, Target: 4, QueueMax: 15 * time.Second, DownDelay: 5 * time.Minute, Idle: 10 * time.Minute}
}

// look advances one second: a decision, and its effects.
func (f *fleet) look(g scale.Figures) scale.Decision {
	f.t.Helper()
	f.now = f.now.Add(time.Second)
	for i := range f.replicas {
		r := &f.replicas[i]
		r.Placed = r.Placed || f.room < 0 || i < f.room
		r.Stuck = !r.Placed
		r.Ready = r.Placed && !f.now.Before(f.ready[r.UID])
	}
	d := scale.Decide(f.policy, f.memory, g, f.replicas, f.now)
	for _, uid := range d.Remove {
		i := slices.IndexFunc(f.replicas, func(r scale.Replica) bool { return r.UID == uid })
		if r := f.replicas[i]; r.Busy && r.Placed {
			f.t.Fatalf("%s: %s is busy and is taken away", f.at(), uid)
		} else if r.Placed && !g.Complete {
			f.t.Fatalf("%s: %s is taken away though not every gateway was heard", f.at(), uid)
		}
		f.replicas = slices.Delete(f.replicas, i, i+1)
	}
	for i := range f.replicas {
		f.replicas[i].Retiring = slices.Contains(d.Retire, f.replicas[i].UID)
	}
	for len(f.replicas) < d.Desired {
		f.born++
		uid := fmt.Sprintf("r%03d", f.born)
		f.replicas = append(f.replicas, scale.Replica{UID: uid})
		f.ready[uid] = f.now.Add(f.loads)
	}
	f.memory, f.last = d.Memory, d
	return d
}

func (f *fleet) at() time.Duration { return f.now.Sub(epoch) }

// pass advances some time with the same figures.
func (f *fleet) pass(d time.Duration, g scale.Figures) scale.Decision {
	f.t.Helper()
	for range int(d / time.Second) {
		f.look(g)
	}
	return f.last
}

func (f *fleet) want(n int, reason string) {
	f.t.Helper()
	if f.last.Desired != n || reason != "" && f.last.Reason != reason {
		f.t.Fatalf("%s: %d wanted for %s (%s), want %d for %s", f.at(), f.last.Desired, f.last.Reason, f.last.Message, n, reason)
	}
}

func running(n int) scale.Figures { return scale.Figures{Requests: n, Complete: n >= 0} }

func TestMoreComeAtOnceAndFewerAfterTheDelay(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(time.Minute, running(4))
	f.want(1, scale.OnTarget)
	f.look(running(5))
	f.want(2, scale.Demand)
	f.pass(time.Minute, running(5))
	f.want(2, scale.OnTarget)
	f.pass(5*time.Minute, running(1))
	f.want(2, scale.Delayed)
	f.look(running(1))
	f.want(1, scale.LowDemand)
}

func TestManyComeInSteps(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(time.Minute, running(1))
	f.look(running(32))
	f.want(2, scale.Demand)
	f.pass(14*time.Second, running(32))
	f.want(4, "")
	f.pass(40*time.Second, running(32))
	f.want(8, "")
	f.pass(time.Minute, running(100))
	f.want(8, scale.AtMaximum)
}

func TestMoreComeAfterTheirDelay(t *testing.T) {
	p := policy()
	p.UpDelay = 30 * time.Second
	f := newFleet(t, p)
	f.pass(time.Minute, running(1))
	f.pass(29*time.Second, running(8))
	f.want(1, scale.Delayed)
	f.look(running(1)) // a burst that ends requires nothing
	f.pass(29*time.Second, running(8))
	f.want(1, scale.Delayed)
	f.pass(2*time.Second, running(8))
	f.want(2, "")
}

func TestAPeakWithinTheDelayKeepsWhatItNeeded(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(2*time.Minute, running(16))
	f.want(4, scale.OnTarget)
	f.pass(3*time.Minute, running(1))
	f.look(running(10)) // three were needed for a moment
	f.pass(2*time.Minute, running(1))
	f.want(3, "")
	f.pass(4*time.Minute, running(1))
	f.want(3, scale.Delayed)
	f.pass(2*time.Minute, running(1))
	f.want(1, "")
}

func TestALoadAtTheEdgeDoesNotFlap(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(time.Minute, running(4))
	changes, before := 0, f.last.Desired
	for i := range 3600 {
		f.look(running(4 + i%2)) // one replica is enough for 4, and not for 5
		if f.last.Desired != before {
			changes, before = changes+1, f.last.Desired
		}
	}
	if changes > 1 {
		t.Errorf("the number changed %d times in an hour", changes)
	}
	f.pass(20*time.Minute, running(4)) // four on one leave no slack
	f.want(2, "")
	f.pass(20*time.Minute, running(3))
	f.want(1, "")
}

func TestABusyReplicaIsNeverTakenAway(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(time.Minute, running(12))
	f.want(3, scale.OnTarget)
	for i := range f.replicas {
		f.replicas[i].Busy = true
	}
	f.pass(20*time.Minute, running(3))
	f.want(3, scale.Busy)
	// Gateways prefer others to two of them, always the same ones, so that they become
	// idle; until more are needed again.
	first := slices.Clone(f.last.Retire)
	if len(first) != 2 || !slices.Equal(f.look(running(3)).Retire, first) {
		t.Errorf("retire %v, then %v, want the same two", first, f.last.Retire)
	}
	if d := f.look(running(12)); len(d.Retire) > 0 {
		t.Errorf("retire %v, though all are wanted", d.Retire)
	}
	f.pass(20*time.Minute, running(3))
	f.replicas[1].Busy = false
	idle := f.replicas[1].UID
	d := f.look(running(3))
	f.want(2, scale.LowDemand)
	if !slices.Equal(d.Remove, []string{idle}) {
		t.Errorf("removes %v, want the one that is idle, %s", d.Remove, idle)
	}
	f.pass(20*time.Minute, running(3))
	f.want(2, scale.Busy)
}

func TestTheSameRetireAsBefore(t *testing.T) {
	p := policy()
	p.DownDelay = 0
	replicas := []scale.Replica{{UID: "a"}, {UID: "b", Retiring: true}}
	for i := range replicas {
		replicas[i].Placed, replicas[i].Ready, replicas[i].Busy = true, true, true
	}
	m := scale.Memory{Decided: true, Desired: 2, Changed: epoch.Add(-time.Hour), LowSince: epoch.Add(-time.Hour), Low: 1, Seen: epoch}
	if d := scale.Decide(p, m, running(2), replicas, epoch.Add(time.Second)); !slices.Equal(d.Retire, []string{"b"}) || len(d.Remove) > 0 {
		t.Errorf("retire %v, remove %v; want b to retire on", d.Retire, d.Remove)
	}
}

func TestNothingIsTakenAwayByFiguresThatAreNotWhole(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(2*time.Minute, running(12))
	part := scale.Figures{Requests: 0}
	f.pass(time.Hour, part)
	f.want(3, scale.Unheard)
	// Unobserved time does not count.
	f.pass(4*time.Minute, running(1))
	f.want(3, scale.Delayed)
	f.pass(90*time.Second, running(1))
	f.want(1, "")
	f.look(scale.Figures{Requests: 8}) // incomplete figures are enough to scale up
	f.want(2, scale.Demand)
}

// The delay neither starts again with each operator, nor continues while no operator runs
// (LWS #225: a restart changes nothing by itself).
func TestTheDelaySurvivesARestart(t *testing.T) {
	restart := func(f *fleet, away time.Duration) {
		m := f.memory // as it is stored: to the second, up to 30 s old
		f.memory = scale.Memory{Decided: true, Desired: m.Desired, Changed: m.Changed.Truncate(time.Second), LowSince: m.LowSince.Truncate(time.Second),
			Low: m.Low, IdleSince: m.IdleSince.Truncate(time.Second), Seen: m.Seen.Truncate(time.Second)}
		if m.LowSince.IsZero() {
			f.memory.LowSince = time.Time{}
		}
		if m.IdleSince.IsZero() {
			f.memory.IdleSince = time.Time{}
		}
		f.now = f.now.Add(away)
	}
	f := newFleet(t, policy())
	f.pass(time.Minute, running(12))
	f.pass(4*time.Minute, running(1))
	restart(f, time.Hour)
	f.look(running(1))
	f.want(3, scale.Delayed) // an unobserved hour proves nothing
	f.pass(50*time.Second, running(1))
	f.want(3, scale.Delayed)
	f.pass(40*time.Second, running(1))
	f.want(1, "") // but the four minutes before it count

	f = newFleet(t, policy())
	f.pass(time.Minute, running(12))
	for range 12 { // an operator that restarts all the time succeeds, too
		f.pass(30*time.Second, running(1))
		restart(f, 10*time.Second)
	}
	f.pass(30*time.Second, running(1))
	if f.last.Desired == 3 {
		t.Errorf("still 3 after 6 minutes with a restart every 30 s (%s: %s)", f.last.Reason, f.last.Message)
	}
}

// The clock of the operator that wrote the times was a day ahead.
func TestTimesOfAClockThatWasAhead(t *testing.T) {
	p := policy()
	p.Min = 0
	f := newFleet(t, p)
	f.pass(time.Minute, running(12))
	f.pass(time.Minute, running(0))
	f.now = f.now.Add(-24 * time.Hour)
	clear(f.ready) // they serve
	f.pass(20*time.Minute, running(0))
	f.want(0, "")
}

func TestToZeroAndBack(t *testing.T) {
	p := policy()
	p.Min = 0
	f := newFleet(t, p)
	f.look(scale.Figures{Complete: true})
	f.want(1, "") // the first one shows that the model serves
	f.pass(10*time.Minute, scale.Figures{Complete: true})
	f.want(1, "")
	f.pass(20*time.Second, scale.Figures{Complete: true})
	f.want(0, "")
	f.pass(time.Hour, scale.Figures{Complete: true})
	f.want(0, scale.OnTarget)
	f.look(scale.Figures{Requests: 1, Waiting: 1})
	f.want(1, scale.FromZero)
	f.pass(30*time.Minute, scale.Figures{Requests: 1, Complete: true})
	f.want(1, scale.OnTarget)
	// Requests that come and end between two evaluations keep it as well.
	for range 10 {
		f.pass(9*time.Minute, scale.Figures{Complete: true})
		f.look(scale.Figures{Asked: true, Complete: true})
	}
	f.want(1, scale.OnTarget)
	f.pass(11*time.Minute, scale.Figures{Complete: true})
	f.want(0, "")
}

func TestTheFirstStartIsNoIdling(t *testing.T) {
	p := policy()
	p.Min = 0
	f := newFleet(t, p)
	f.loads = time.Hour // a download
	f.pass(70*time.Minute-20*time.Second, scale.Figures{Complete: true})
	f.want(1, "")
	f.pass(time.Minute, scale.Figures{Complete: true})
	f.want(0, "")
}

func TestALongWaitAsksForOneMore(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(time.Minute, running(2))
	waits := scale.Figures{Requests: 3, Waiting: 1, Oldest: 16 * time.Second, Complete: true}
	f.look(waits)
	f.want(2, scale.QueueAge)
	f.pass(10*time.Second, waits)
	f.want(2, "") // the new replicas get time to help
	f.pass(14*time.Second, waits)
	f.want(3, "")
	f.policy.QueueMax = 0
	f.pass(2*time.Minute, waits)
	f.want(3, scale.Delayed)
}

func TestNoMoreAreAskedForThanFit(t *testing.T) {
	f := newFleet(t, policy())
	f.room = 2
	f.pass(2*time.Minute, running(32))
	f.want(4, scale.NoRoom) // one step too many; from there it waits for room
	f.pass(time.Hour, running(32))
	f.want(4, scale.NoRoom)
	f.look(running(16)) // as many as were requested
	f.want(4, scale.NoRoom)
	f.room = 8
	f.pass(2*time.Minute, running(32))
	f.want(8, scale.OnTarget)
	f.room = 2
	f.pass(10*time.Minute, running(1))
	f.want(1, "")
}

func TestBoundsThatChangeAreKept(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(2*time.Minute, running(16))
	f.want(4, scale.OnTarget)
	f.policy.Max = 2
	for i := range f.replicas {
		f.replicas[i].Busy = true
	}
	f.pass(time.Minute, running(16))
	f.want(4, scale.Busy)
	f.replicas[0].Busy, f.replicas[3].Busy = false, false
	f.look(running(16))
	f.want(2, scale.Bounds)
	f.policy.Min = 2
	f.pass(time.Hour, running(0))
	f.want(2, scale.OnTarget)
	f.policy.Min, f.policy.Max = 3, 8
	f.look(running(0))
	f.want(3, scale.Bounds)
}

func TestARolloutKeepsItsReplicas(t *testing.T) {
	f := newFleet(t, policy())
	f.pass(2*time.Minute, running(8))
	f.want(2, scale.OnTarget)
	f.replicas[0].Old = true
	f.pass(20*time.Minute, running(1))
	f.want(2, scale.RollingOut)
	f.replicas[0].Old = false
	f.pass(20*time.Second, running(1))
	f.want(1, "")
}

// TestRandomHistories: the number stays within its bounds, is lowered only after fewer were
// enough for the whole delay, and changes keep their distance.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 11))
		p := policy()
		p.Min, p.Max, p.DownDelay = rng.IntN(2), 1+rng.IntN(9), time.Duration(30+rng.IntN(120))*time.Second
		p.Idle = p.DownDelay
		f := newFleet(t, p)
		f.loads = time.Duration(rng.IntN(60)) * time.Second
		load, whole := 0, true
		var seen []int // recently required numbers, in observed seconds
		for step := range 4000 {
			switch rng.IntN(60) {
			case 0:
				load = rng.IntN(4 * (p.Max + 2))
			case 1:
				load = 0
			case 2:
				whole = rng.IntN(3) > 0
			case 3:
				f.memory.HighSince = time.Time{} // a restarted operator has lost it
				f.now = f.now.Add(time.Duration(rng.IntN(100)) * time.Second)
			}
			for i := range f.replicas {
				f.replicas[i].Busy = rng.IntN(3) == 0
			}
			before := f.last.Desired
			d := f.look(scale.Figures{Requests: load, Complete: whole})
			if step > 0 && (d.Desired < p.Min || d.Desired > p.Max) {
				t.Fatalf("seed %d step %d: %d replicas, bounds %d to %d", seed, step, d.Desired, p.Min, p.Max)
			}
			if whole {
				seen = append(seen, d.Wanted)
			}
			if step == 0 || d.Desired >= before {
				continue
			}
			late := seen[max(0, len(seen)-int(p.DownDelay/time.Second)+6):]
			if most := slices.Max(late); most > d.Desired && d.Desired > 0 {
				t.Fatalf("seed %d step %d: from %d to %d, and %d were wanted within the delay", seed, step, before, d.Desired, most)
			}
		}
	}
}
