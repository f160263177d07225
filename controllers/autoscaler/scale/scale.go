// Package scale decides how many replicas a deployment needs.
//
// It owns the decision and the memory for it. It is pure: it has no clock and no network,
// and a restarted operator continues with the memory that was written to status. It never
// removes a replica that is busy or whose load is unknown, never scales down by figures
// that do not include every gateway, and requests no more replicas while one has no Mac.
//
// It scales up at once, by at most a factor of two at a time. It scales down when fewer
// replicas were enough during a whole delay; time in which a gateway did not report does
// not count. So missing figures can keep unneeded replicas, but never remove needed ones.
//
// Start reading at Decide.
package scale

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Reasons for the number of replicas.
const (
	// OnTarget: the number is what the figures require.
	OnTarget = "Steady"
	// Demand: scaled up because of the number of requests.
	Demand = "Demand"
	// QueueAge: scaled up because a request waited too long.
	QueueAge = "QueueAge"
	// FromZero: a request waits, and there was no replica.
	FromZero = "FromZero"
	// Delayed: another number waits for its delay.
	Delayed = "Delayed"
	// LowDemand: fewer were enough during the whole delay.
	LowDemand = "LowDemand"
	// Idle: no requests, and the last replica was removed.
	Idle = "Idle"
	// Busy: fewer would be enough, but the remaining ones run requests.
	Busy = "Busy"
	// Unheard: fewer may be enough, but not every gateway reported.
	Unheard = "Unheard"
	// NoRoom: more are needed than fit on the Macs.
	NoRoom = "NoRoom"
	// AtMaximum: more are needed than maxReplicas allows.
	AtMaximum = "AtMaximum"
	// RollingOut: fewer would be enough, but replicas are being replaced.
	RollingOut = "RollingOut"
	// Bounds: minReplicas or maxReplicas changed.
	Bounds = "Bounds"
)

// Changes returns the reasons that come with a change of the number.
func Changes() []string { return []string{Demand, QueueAge, FromZero, LowDemand, Idle, Bounds} }

const (
	// step is the shortest time between two changes in the same direction.
	step = 15 * time.Second
	// slack: fewer replicas are enough only if a tenth of them stays free, so that a
	// borderline load does not flap.
	slack = 0.9
	// gapMax is the longest time between two evaluations that counts as observed.
	gapMax = 5 * time.Second
)

// Policy is spec.autoscaling with its defaults.
type Policy struct {
	Min, Max  int
	Target    int           // requests per replica
	QueueMax  time.Duration // 0: their age does not matter
	UpDelay   time.Duration
	DownDelay time.Duration
	Idle      time.Duration // before the last one is removed, if Min is 0
}

// Figures are the gateways' reports on a deployment.
type Figures struct {
	// Requests that run or wait, over all gateways that reported.
	Requests int
	// Waiting are those of them that wait, Oldest the longest wait.
	Waiting int
	Oldest  time.Duration
	// Asked: a request arrived since the last evaluation, even if it has ended.
	Asked bool
	// Complete: every gateway reported just now.
	Complete bool
}

// Replica is a replica that is not being deleted.
type Replica struct {
	UID string
	// Placed on a Mac; Stuck: no Mac has room for it.
	Placed, Stuck bool
	Ready         bool
	// Busy: it runs requests, or that is unknown.
	Busy bool
	// Retiring: gateways prefer others.
	Retiring bool
	// Old: of another revision than the current one.
	Old bool
}

// Memory is what a decision leaves for the next one.
type Memory struct {
	// Decided: there was a decision.
	Decided bool
	// Desired number.
	Desired int
	// Changed is when it last changed.
	Changed time.Time
	// LowSince is since when fewer would have been enough, and Low the most that was needed
	// since then; IdleSince is since when there were no requests. Each excludes unobserved
	// time.
	LowSince  time.Time
	Low       int
	IdleSince time.Time
	// HighSince is since when more are needed than there are.
	HighSince time.Time
	// Seen is the time of the last decision.
	Seen time.Time
}

// Decision is the result.
type Decision struct {
	Memory
	// Wanted is what the figures alone require.
	Wanted int
	// Remove are the UIDs of the replicas that may be removed.
	Remove []string
	// Retire are busy replicas to be removed: gateways prefer others, so that they become
	// idle. They are no longer retired when more replicas are needed again.
	Retire []string
	// Reason and Message explain it.
	Reason, Message string
}

// Decide returns how many replicas are needed.
func Decide(p Policy, m Memory, f Figures, replicas []Replica, now time.Time) Decision {
	if !m.Decided {
		m = Memory{Decided: true, Desired: min(max(p.Min, 1, len(replicas)), p.Max), Changed: now, Seen: now}
	}
	m.correct(now)
	m.skip(f, now)
	c := &choice{Policy: p, Decision: Decision{Memory: m}, f: f, replicas: replicas, now: now}
	c.want()
	c.remember()
	switch {
	case c.Desired < p.Min:
		c.set(p.Min, Bounds, fmt.Sprintf("minReplicas is %d", p.Min))
	case c.Wanted > c.Desired:
		c.up()
	case c.Wanted < c.Desired || c.Desired > p.Max:
		c.down()
	case c.stuck() > 0:
		c.noRoom()
	default:
		c.explain(OnTarget, "")
	}
	if !c.replacing() {
		c.Remove = c.idleOnes(len(replicas) - c.Desired)
	}
	c.Seen = now
	return c.Decision
}

// replacing reports whether a rollout decides which replicas are removed.
func (c *choice) replacing() bool {
	return slices.ContainsFunc(c.replicas, func(r Replica) bool { return r.Old })
}

// correct replaces times in the future: an earlier operator wrote them by a clock that was ahead,
// and nothing would be removed until then.
func (m *Memory) correct(now time.Time) {
	for _, t := range []*time.Time{&m.Changed, &m.LowSince, &m.IdleSince, &m.HighSince, &m.Seen} {
		if t.After(now) {
			*t = now
		}
	}
}

// skip moves the remembered times over unobserved time: since the last complete evaluation.
func (m *Memory) skip(f Figures, now time.Time) {
	gap := now.Sub(m.Seen)
	if f.Complete && gap <= gapMax {
		return
	}
	if gap < 0 {
		gap = 0
	}
	for _, t := range []*time.Time{&m.LowSince, &m.IdleSince} {
		if !t.IsZero() {
			*t = t.Add(gap)
		}
	}
}

// choice is a decision being made.
type choice struct {
	Policy
	Decision
	f        Figures
	replicas []Replica
	now      time.Time
	aged     bool // a request waited too long
	free     int  // what the figures require, without maxReplicas
}

// want computes what the figures require.
func (c *choice) want() {
	n := per(c.f.Requests, float64(c.Target))
	if n < c.Desired { // fewer only with some slack
		n = min(c.Desired, per(c.f.Requests, slack*float64(c.Target)))
	}
	if c.f.Waiting > 0 && c.QueueMax > 0 && c.f.Oldest > c.QueueMax && n <= c.Desired && c.settled() {
		n, c.aged = c.Desired+1, true
	}
	asked := c.f.Requests > 0 || c.f.Asked
	switch {
	case asked:
		n = max(n, 1)
	case c.Desired > 0 && !c.idle():
		n = max(n, 1) // the last one stays until its idle time is over
	}
	c.free = n
	c.Wanted = min(max(n, c.Min), c.Max)
}

// idle reports whether there were no requests for the idle time of the last replica.
func (c *choice) idle() bool {
	return c.Min == 0 && c.f.Complete && !c.IdleSince.IsZero() && c.now.Sub(c.IdleSince) >= c.Idle
}

// settled reports whether all requested replicas have been serving for a while, so that
// requests wait in spite of them.
func (c *choice) settled() bool {
	for _, r := range c.replicas {
		if !r.Ready {
			return false
		}
	}
	return len(c.replicas) >= c.Desired && c.now.Sub(c.Changed) >= max(step, c.QueueMax)
}

func per(requests int, target float64) int {
	return int(math.Ceil(float64(requests) / target))
}

// remember updates the times since which the figures hold.
func (c *choice) remember() {
	switch {
	case c.f.Requests > 0 || c.f.Asked || !slices.ContainsFunc(c.replicas, func(r Replica) bool { return r.Ready }):
		c.IdleSince = time.Time{} // a first start may take longer than the idle time
	case c.f.Complete && c.IdleSince.IsZero():
		c.IdleSince = c.now
	}
	switch {
	case c.Wanted >= c.Desired:
		c.LowSince, c.Low = time.Time{}, 0
	case c.LowSince.IsZero():
		if c.f.Complete {
			c.LowSince, c.Low = c.now, c.Wanted
		}
	default:
		c.Low = max(c.Low, c.Wanted)
	}
	switch {
	case c.Wanted <= c.Desired:
		c.HighSince = time.Time{}
	case c.HighSince.IsZero():
		c.HighSince = c.now
	}
}

// stuck counts the replicas without a Mac that has room.
func (c *choice) stuck() int {
	n := 0
	for _, r := range c.replicas {
		if r.Stuck {
			n++
		}
	}
	return n
}

func (c *choice) noRoom() {
	c.explain(NoRoom, fmt.Sprintf("%s needed, but no Mac has room for %d of them; free memory, add a Mac, or lower maxReplicas", replicas(c.Wanted), c.stuck()))
}

// up scales up.
func (c *choice) up() {
	loading := slices.ContainsFunc(c.replicas, func(r Replica) bool { return !r.Ready })
	switch {
	case c.stuck() > 0:
		c.noRoom()
		return
	case c.Desired > 0 && c.now.Sub(c.HighSince) < c.UpDelay:
		c.explain(Delayed, fmt.Sprintf("%s needed; more are added after %s", replicas(c.Wanted), c.UpDelay))
		return
	case c.Desired > 0 && loading && c.now.Sub(c.Changed) < step:
		c.explain(Delayed, fmt.Sprintf("%s needed; waiting for the most recently added ones to start", replicas(c.Wanted)))
		return
	}
	to := min(c.Wanted, max(2*c.Desired, 2))
	switch {
	case c.Desired == 0:
		c.set(to, FromZero, c.figures())
	case c.aged:
		c.set(to, QueueAge, fmt.Sprintf("a request has waited for %s, more than maxQueueSeconds", c.f.Oldest.Round(time.Second)))
	default:
		c.set(to, Demand, c.figures())
	}
}

func (c *choice) figures() string {
	return fmt.Sprintf("%d requests, %d of them waiting; the target is %d for each replica", c.f.Requests, c.f.Waiting, c.Target)
}

// down scales down, if that is safe.
func (c *choice) down() {
	to := min(max(c.Wanted, c.Low), c.Max)
	forced := c.Desired > c.Max
	switch {
	case !c.f.Complete:
		c.explain(Unheard, "not every gateway has reported recently; no replica is removed")
		return
	case forced:
		to = c.Max
	case c.idle() && c.Wanted == 0:
		to = 0
	case c.LowSince.IsZero() || c.now.Sub(c.LowSince) < c.DownDelay:
		c.explain(Delayed, fmt.Sprintf("%s would suffice; the others are removed after %s", replicas(c.Wanted), c.DownDelay))
		return
	case to >= c.Desired:
		// It was not enough all the time: start again.
		c.LowSince, c.Low = c.now, c.Wanted
		c.explain(Delayed, fmt.Sprintf("%s would suffice now, but would not have during the whole delay", replicas(c.Wanted)))
		return
	}
	if c.replacing() {
		c.explain(RollingOut, "a rollout is in progress; no replica is removed meanwhile")
		return
	}
	to = max(to, c.Desired/2)
	idle := c.idleOnes(len(c.replicas) - to)
	c.Retire = c.busyOnes(len(c.replicas)-to-len(idle), idle)
	if c.now.Sub(c.Changed) < step && !forced {
		c.explain(Delayed, fmt.Sprintf("%s would suffice; the next ones are removed shortly", replicas(c.Wanted)))
		return
	}
	c.lower(to, len(idle), forced)
}

// lower removes idle replicas, down to a number.
func (c *choice) lower(to, idle int, forced bool) {
	next := max(to, len(c.replicas)-idle)
	if next >= c.Desired {
		c.explain(Busy, fmt.Sprintf("%s would suffice, but all %d are busy; gateways prefer other replicas, and a replica is removed once it is idle", replicas(c.Wanted), len(c.replicas)))
		return
	}
	switch {
	case next == 0:
		c.set(0, Idle, fmt.Sprintf("no requests for %s", c.Idle))
	case forced:
		c.set(next, Bounds, fmt.Sprintf("maxReplicas is %d", c.Max))
	default:
		c.set(next, LowDemand, fmt.Sprintf("%s sufficed for %s", replicas(max(c.Low, c.Wanted)), c.DownDelay))
	}
}

// busyOnes returns at most n of the others, preferring those chosen before, so that they
// become idle.
func (c *choice) busyOnes(n int, idle []string) []string {
	var may []Replica
	for _, r := range c.replicas {
		if !slices.Contains(idle, r.UID) {
			may = append(may, r)
		}
	}
	slices.SortStableFunc(may, func(a, b Replica) int {
		switch {
		case a.Retiring == b.Retiring:
			return cmp.Compare(a.UID, b.UID)
		case a.Retiring:
			return -1
		}
		return 1
	})
	var out []string
	for _, r := range may[:min(len(may), max(0, n))] {
		out = append(out, r.UID)
	}
	return out
}

// idleOnes returns at most n removable replicas, the least useful first.
func (c *choice) idleOnes(n int) []string {
	var may []Replica
	for _, r := range c.replicas {
		if !r.Placed || c.f.Complete && !r.Busy {
			may = append(may, r)
		}
	}
	slices.SortStableFunc(may, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.UID, b.UID))
	})
	var out []string
	for _, r := range may[:min(len(may), max(0, n))] {
		out = append(out, r.UID)
	}
	return out
}

// rank orders replicas by how useful they are.
func (r Replica) rank() int {
	switch {
	case !r.Placed:
		return 0
	case !r.Ready:
		return 1
	}
	return 2
}

func (c *choice) set(n int, reason, message string) {
	c.Desired, c.Changed, c.HighSince = n, c.now, time.Time{}
	if c.Wanted >= n {
		c.LowSince, c.Low = time.Time{}, 0
	}
	c.explain(reason, message)
}

// explain sets the reason and the message, and mentions the upper bound if it applies.
func (c *choice) explain(reason, message string) {
	if reason == OnTarget && c.free > c.Max {
		reason, message = AtMaximum, fmt.Sprintf("%s needed, but maxReplicas is %d", replicas(c.free), c.Max)
	}
	c.Reason, c.Message = reason, message
}

// replicas formats a number of replicas: "1 replica", "3 replicas".
func replicas(n int) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}
