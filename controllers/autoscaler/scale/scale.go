// Package scale decides how many replicas a deployment is to have.
//
// It owns the decision and what has to be remembered for it. It is pure: it has
// no clock and speaks to nobody, and an operator that starts anew goes on with
// the memory that the one before wrote down. It refuses to take away a replica
// that is busy or of which nobody knows, to take anything away by figures that
// are not those of every gateway, and to ask for more replicas while one has no
// Mac.
//
// More replicas come at once, at most twice as many at a time. Fewer come when
// fewer were enough for the whole of a delay; time in which not every gateway
// was heard does not count. So figures that are missing can keep replicas that
// nobody needs, and never take away one that somebody does.
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

// Reasons of a number.
const (
	// Steady: it is what the figures ask for.
	Steady = "Steady"
	// Demand: more were asked for by the number of requests.
	Demand = "Demand"
	// QueueAge: more were asked for because a request waited too long.
	QueueAge = "QueueAge"
	// FromZero: a request waits, and there was none.
	FromZero = "FromZero"
	// Delayed: another number waits for its delay.
	Delayed = "Delayed"
	// LowDemand: fewer were enough for the whole of the delay.
	LowDemand = "LowDemand"
	// Idle: nothing was asked, and the last one went.
	Idle = "Idle"
	// Busy: fewer would be enough, and those that are left run requests.
	Busy = "Busy"
	// Unheard: fewer may be enough, and not every gateway was heard.
	Unheard = "Unheard"
	// NoRoom: more are wanted than fit on the Macs.
	NoRoom = "NoRoom"
	// AtMaximum: more would be wanted than maxReplicas allows.
	AtMaximum = "AtMaximum"
	// RollingOut: fewer would be enough, and replicas are being replaced.
	RollingOut = "RollingOut"
	// Bounds: minReplicas or maxReplicas changed.
	Bounds = "Bounds"
)

// Changes are the reasons for which the number changes.
func Changes() []string { return []string{Demand, QueueAge, FromZero, LowDemand, Idle, Bounds} }

const (
	// step is how long after a change of the number the next one of the same
	// direction comes.
	step = 15 * time.Second
	// slack: fewer replicas are enough only if that leaves a tenth of them free, so
	// that a load at the edge does not flap.
	slack = 0.9
	// gapMost is the longest time between two looks that counts as seen.
	gapMost = 5 * time.Second
)

// Policy is what a user wrote, resolved.
type Policy struct {
	Min, Max  int
	Target    int           // requests per replica
	QueueMost time.Duration // 0: their age does not matter
	UpDelay   time.Duration
	DownDelay time.Duration
	Idle      time.Duration // before the last one goes, where Min is 0
}

// Figures are what the gateways say of a deployment.
type Figures struct {
	// Requests that run or wait, of all gateways that were heard.
	Requests int
	// Waiting are those of them that wait, Oldest the longest time of one.
	Waiting int
	Oldest  time.Duration
	// Asked: a request came since the last look, though it may have ended.
	Asked bool
	// Complete: every gateway was heard just now.
	Complete bool
}

// Replica is one that is not on its way out.
type Replica struct {
	UID string
	// Placed on a Mac; Stuck: no Mac has room for it.
	Placed, Stuck bool
	Ready         bool
	// Busy: it runs requests, or nobody knows.
	Busy bool
	// Retiring: gateways were told to prefer others.
	Retiring bool
	// Old: of another revision than the wanted one.
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
	// LowSince is since when fewer would have been enough, and Low the most that was
	// wanted since then; IdleSince is since when nothing was asked. Each leaves out
	// the time that was not seen.
	LowSince  time.Time
	Low       int
	IdleSince time.Time
	// HighSince is since when more are wanted than there are.
	HighSince time.Time
	// Seen is when the last decision was made.
	Seen time.Time
}

// Decision is what is to be done.
type Decision struct {
	Memory
	// Wanted is what the figures alone ask for.
	Wanted int
	// Remove are the UIDs of the replicas that may go.
	Remove []string
	// Retire are those that are busy and would go: gateways prefer others, so that
	// they come to be idle. It is taken back when more are wanted again.
	Retire []string
	// Reason and Message say why.
	Reason, Message string
}

// Decide says how many replicas there are to be.
func Decide(p Policy, m Memory, f Figures, replicas []Replica, now time.Time) Decision {
	if !m.Decided {
		m = Memory{Decided: true, Desired: min(max(p.Min, 1, len(replicas)), p.Max), Changed: now, Seen: now}
	}
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
		c.say(Steady, "")
	}
	if !c.replacing() {
		c.Remove = c.idleOnes(len(replicas) - c.Desired)
	}
	c.Seen = now
	return c.Decision
}

// replacing says that a rollout decides which replicas go.
func (c *choice) replacing() bool {
	return slices.ContainsFunc(c.replicas, func(r Replica) bool { return r.Old })
}

// skip moves what is remembered over time that was not seen: since the last look
// by every gateway.
func (m *Memory) skip(f Figures, now time.Time) {
	gap := now.Sub(m.Seen)
	if f.Complete && gap <= gapMost {
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

// choice is one decision on its way.
type choice struct {
	Policy
	Decision
	f        Figures
	replicas []Replica
	now      time.Time
	aged     bool // a request waited too long
	free     int  // what the figures ask for, without maxReplicas
}

// want is what the figures ask for.
func (c *choice) want() {
	n := per(c.f.Requests, float64(c.Target))
	if n < c.Desired { // fewer only with room to spare
		n = min(c.Desired, per(c.f.Requests, slack*float64(c.Target)))
	}
	if c.f.Waiting > 0 && c.QueueMost > 0 && c.f.Oldest > c.QueueMost && n <= c.Desired && c.settled() {
		n, c.aged = c.Desired+1, true
	}
	asked := c.f.Requests > 0 || c.f.Asked
	switch {
	case asked:
		n = max(n, 1)
	case c.Desired > 0 && !c.idle():
		n = max(n, 1) // the last one stays until its time is over
	}
	c.free = n
	c.Wanted = min(max(n, c.Min), c.Max)
}

// idle says that nothing was asked for as long as the last replica stays.
func (c *choice) idle() bool {
	return c.Min == 0 && c.f.Complete && !c.IdleSince.IsZero() && c.now.Sub(c.IdleSince) >= c.Idle
}

// settled says that all that were asked for serve, and have for a while: what
// waits now waits in spite of them.
func (c *choice) settled() bool {
	for _, r := range c.replicas {
		if !r.Ready {
			return false
		}
	}
	return len(c.replicas) >= c.Desired && c.now.Sub(c.Changed) >= max(step, c.QueueMost)
}

func per(requests int, target float64) int {
	return int(math.Ceil(float64(requests) / target))
}

// remember notes since when the figures are as they are.
func (c *choice) remember() {
	switch {
	case c.f.Requests > 0 || c.f.Asked || !slices.ContainsFunc(c.replicas, func(r Replica) bool { return r.Ready }):
		c.IdleSince = time.Time{} // a first start may take longer than the last one stays
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

// stuck is how many of those that were asked for have no Mac with room.
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
	c.say(NoRoom, fmt.Sprintf("%s needed, but no Mac has room for %d of them; free memory, add a Mac, or lower maxReplicas", replicas(c.Wanted), c.stuck()))
}

// up asks for more.
func (c *choice) up() {
	loading := slices.ContainsFunc(c.replicas, func(r Replica) bool { return !r.Ready })
	switch {
	case c.stuck() > 0:
		c.noRoom()
		return
	case c.Desired > 0 && c.now.Sub(c.HighSince) < c.UpDelay:
		c.say(Delayed, fmt.Sprintf("%s needed; more are added after %s", replicas(c.Wanted), c.UpDelay))
		return
	case c.Desired > 0 && loading && c.now.Sub(c.Changed) < step:
		c.say(Delayed, fmt.Sprintf("%s needed; waiting for the most recently added ones to start", replicas(c.Wanted)))
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

// down asks for fewer, if that is safe.
func (c *choice) down() {
	to := min(max(c.Wanted, c.Low), c.Max)
	forced := c.Desired > c.Max
	switch {
	case !c.f.Complete:
		c.say(Unheard, "not every gateway has reported recently; no replica is removed")
		return
	case forced:
		to = c.Max
	case c.idle() && c.Wanted == 0:
		to = 0
	case c.LowSince.IsZero() || c.now.Sub(c.LowSince) < c.DownDelay:
		c.say(Delayed, fmt.Sprintf("%s would suffice; the others are removed after %s", replicas(c.Wanted), c.DownDelay))
		return
	case to >= c.Desired:
		// It was not enough all the time: what is remembered begins anew.
		c.LowSince, c.Low = c.now, c.Wanted
		c.say(Delayed, fmt.Sprintf("%s would suffice now, but would not have during the whole delay", replicas(c.Wanted)))
		return
	}
	if c.replacing() {
		c.say(RollingOut, "a rollout is in progress; no replica is removed meanwhile")
		return
	}
	to = max(to, c.Desired/2)
	idle := c.idleOnes(len(c.replicas) - to)
	c.Retire = c.busyOnes(len(c.replicas)-to-len(idle), idle)
	if c.now.Sub(c.Changed) < step && !forced {
		c.say(Delayed, fmt.Sprintf("%s would suffice; the next ones are removed shortly", replicas(c.Wanted)))
		return
	}
	c.lower(to, len(idle), forced)
}

// lower takes away what is idle, down to a number.
func (c *choice) lower(to, idle int, forced bool) {
	next := max(to, len(c.replicas)-idle)
	if next >= c.Desired {
		c.say(Busy, fmt.Sprintf("%s would suffice, but all %d are busy; gateways prefer other replicas, and a replica is removed once it is idle", replicas(c.Wanted), len(c.replicas)))
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

// busyOnes are at most n of the others: the same as before, as far as they are
// there, so that they come to their end.
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

// idleOnes are at most n replicas that may go, those first that are missed least.
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

// rank orders replicas by how little they are missed.
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
	c.say(reason, message)
}

// say explains the number; at the upper bound it says so.
func (c *choice) say(reason, message string) {
	if reason == Steady && c.free > c.Max {
		reason, message = AtMaximum, fmt.Sprintf("%s needed, but maxReplicas is %d", replicas(c.free), c.Max)
	}
	c.Reason, c.Message = reason, message
}

// replicas is a number of replicas in words: "1 replica", "3 replicas".
func replicas(n int) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}
