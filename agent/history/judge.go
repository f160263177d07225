package history

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// judge compares the pool with a plain model of it, the tally. Where it needs
// several parts of the world at once, its mutex is taken first.
type judge struct {
	mac     *mac
	twin    *enginetest.Twin
	agent   *agent
	desired *desired
	clients *clients

	mu    sync.Mutex // guards tally
	tally tally
}

func newJudge(m *mac, twin *enginetest.Twin, g *agent, d *desired) *judge {
	return &judge{mac: m, twin: twin, agent: g, desired: d, tally: newTally()}
}

// newAgent notes that an agent starts.
func (j *judge) newAgent() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tally.again(time.Now(), j.agent.stops())
}

// muddle notes that what is wired does not show any more what engines left.
func (j *judge) muddle(yes bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tally.murky = j.tally.murky || yes
}

// lose notes that the journal could not be written.
func (j *judge) lose(yes bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tally.lossy = j.tally.lossy || yes
}

// forgetReserved allows promises that are more than the capacity.
func (j *judge) forgetReserved() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tally.reserved = math.MaxInt64
}

// process is that of a load; 0 where it is not known.
func (j *judge) process(uid string, epoch, load int64) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if l := j.tally.lives[reclaimID(uid, epoch, load)]; l != nil {
		return l.pid
	}
	return 0
}

// replica that has a socket.
func (j *judge) replica(socket string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.tally.sockets[socket]
}

// strandedStart is how late a start may be that was under way when memory was
// left.
const strandedStart = time.Second

// began judges a start.
func (j *judge) began(l *life, socket string) {
	alive := 0
	for _, e := range j.twin.Engines() {
		if e.Config().ReplicaUID == l.uid {
			alive++
		}
	}
	_, promised := j.agent.ledger.Account().Holders[memory.Key{UID: l.uid, Epoch: l.epoch}]
	order, _, _ := j.desired.order(l.uid)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tally.sockets[socket] = l.uid
	j.tally.start(l, j.mac.reportsWired())
	j.tally.continues(l, order.Namespace)
	j.tally.restarted(l)
	if stranded := j.stranded(); stranded > strandedStart {
		j.tally.fault("stranded: process %d of %s was started %v after engines left too much wired", l.pid, l.uid, stranded)
	}
	if alive > 1 {
		j.tally.fault("reservations: %d processes of %s live at once", alive, l.uid)
	}
	if !promised {
		j.tally.fault("reservations: process %d of %s was started without a reservation", l.pid, l.uid)
	}
}

// ownChoice are the reasons for which the pool picks a victim itself.
func ownChoice(r v1alpha1.ReclaimReason) bool {
	switch r {
	case v1alpha1.ReclaimIdle, v1alpha1.ReclaimMadeRoom, v1alpha1.ReclaimHeadroom, v1alpha1.ReclaimSoftPressure, v1alpha1.ReclaimHardPressure:
		return true
	}
	return false
}

// unloads judges the beginning of an unload.
func (j *judge) unloads(uid string, reason v1alpha1.ReclaimReason) {
	j.mu.Lock()
	defer j.mu.Unlock()
	l := j.tally.living(uid)
	if l == nil {
		return // it ended in the same instant
	}
	order, ordered, drain := j.desired.order(uid)
	if !l.unloaded.IsZero() {
		return // an agent before this one chose it
	}
	l.unloaded, l.drain = time.Now(), drain
	if !ownChoice(reason) {
		return
	}
	if ordered && !order.Residency.OnDemand() {
		j.tally.fault("evictions: %s is always resident and was chosen for %s", uid, reason)
	}
	for id, pid := range j.clients.holding() {
		if pid == l.pid && (reason != v1alpha1.ReclaimMadeRoom || !j.mustYield(l)) {
			j.tally.fault("evictions: %s was chosen for %s while %s held it", uid, reason, id)
		}
	}
}

// How long others wait for an engine in use, and how long it serves before it
// ends for an on-demand model of another namespace: as agent/memory has them.
const (
	busyWait   = time.Minute
	busyTenure = 5 * time.Minute
)

// mustYield reports whether an engine in use may be ended for a replica that has
// had no engine for busyWait.
func (j *judge) mustYield(l *life) bool {
	now := time.Now()
	orders, since := j.desired.all()
	for uid, o := range orders {
		without := now.Sub(j.tally.without(uid, since[uid]))
		always := !o.Residency.OnDemand()
		if uid == l.uid || o.Desired != v1alpha1.DesiredRunning || without < busyWait {
			continue
		}
		if always || o.Namespace != orders[l.uid].Namespace && now.Sub(l.since) >= busyTenure {
			return true
		}
	}
	return false
}

// reclaimed judges and counts what the pool reports of an end.
func (j *judge) reclaimed(r v1alpha1.Reclaim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := &j.tally
	of := t.reasons[r.Reason]
	if of == nil {
		of = &reasonTally{}
		t.reasons[r.Reason] = of
	}
	of.reclaims++
	t.checks[r.HostCheck]++
	t.ended[epochID(r.ReplicaUID, r.Epoch)], t.gone[r.ReplicaUID] = r.Reason, r.Time.Time
	if r.Exit != v1alpha1.ExitClean && r.Exit != v1alpha1.ExitTerminated {
		if r.Time.Sub(t.unclean) >= time.Minute {
			t.row = r.Time.Time
		}
		t.unclean = r.Time.Time
	}
	if r.FreedBytes != nil {
		of.bytes += *r.FreedBytes
		t.freed += *r.FreedBytes
	}
	l := t.lives[r.ID]
	if l == nil {
		return // it ended before the pool had its handle
	}
	if l.reclaimed {
		t.fault("freed bytes: %s was reclaimed twice", r.ID)
	}
	l.reclaimed = true
	t.tenures[r.Namespace] = tenure{t.sinceOf(r.Namespace, l.since, r.Time.Time), r.Time.Time}
	if engineOf(j.twin, l.pid) != nil {
		t.fault("reservations: %s was reclaimed and process %d lives", r.ID, l.pid)
	}
	if r.FreedBytes != nil {
		if n := *r.FreedBytes; n < 0 || n > j.mac.peak(l.pid) {
			t.fault("freed bytes: %s freed %d bytes, and process %d never held more than %d", r.ID, n, l.pid, j.mac.peak(l.pid))
		}
	}
}

// errBroken is wrapped by what Check returns.
var errBroken = errors.New("invariant is broken")

// check compares the pool with the tally, where nothing is due at this instant.
func (j *judge) check() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.agent.running() {
		j.checkHolds()
		j.checkBytes()
	}
	j.checkWaits()
	j.checkLimits()
	j.checkRoom()
	return j.broken()
}

// finished checks that the Mac is empty, and that every request ended once.
func (j *judge) finished() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.checkEmpty()
	return j.broken()
}

func (j *judge) broken() error {
	if len(j.tally.faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errBroken, strings.Join(j.tally.faults, "; "))
}

// checkHolds: the pool counts what the clients hold, and no request ended
// twice.
func (j *judge) checkHolds() {
	held := map[int]int{} // by process
	for _, pid := range j.clients.holding() {
		held[pid]++
	}
	for id, ends := range j.clients.ends() {
		if ends > 1 {
			j.tally.fault("requests: %s ended %d times", id, ends)
		}
	}
	for _, e := range j.agent.pool.Endpoints() {
		want := 0
		for _, l := range j.tally.lives {
			if l.uid == e.UID && l.epoch == e.Epoch && !l.reclaimed {
				want += held[l.pid]
			}
		}
		if e.Holds != want {
			j.tally.fault("holds: %s has %d holds, its clients have %d", e.UID, e.Holds, want)
		}
	}
}

// checkBytes: every process has its promise and only one, promises fit, and
// sums are sums; what was freed is counted once.
func (j *judge) checkBytes() {
	s, a := j.agent.pool.Snapshot(), j.agent.ledger.Account()
	seen := map[string]bool{}
	for _, e := range j.twin.Engines() {
		c := e.Config()
		if _, ok := a.Holders[memory.Key{UID: c.ReplicaUID, Epoch: c.Epoch}]; !ok {
			j.tally.fault("reservations: process %d of %s lives without a reservation", e.PID(), c.ReplicaUID)
		}
		if seen[c.ReplicaUID] {
			j.tally.fault("reservations: two processes of %s live", c.ReplicaUID)
		}
		seen[c.ReplicaUID] = true
	}
	var sum, accounted, held int64
	for _, bytes := range a.Holders {
		sum += bytes
	}
	for _, r := range s.Assignments {
		accounted += r.Memory.AccountedBytes
		held += r.Memory.FootprintBytes
		if r.Memory.AccountedBytes < 0 || r.Memory.FootprintBytes < 0 || r.Freed.TotalBytes < 0 {
			j.tally.fault("reservations: figures of %s are negative", r.ReplicaUID)
		}
	}
	switch m := s.Memory; {
	case sum != a.Reserved || sum != m.ReservedBytes:
		j.tally.fault("reservations: %d bytes are promised, the status says %d", sum, m.ReservedBytes)
	case a.Limits.Ceiling > 0 && sum > max(a.Limits.Capacity, j.tally.reserved):
		j.tally.fault("reservations: %d bytes are promised of a capacity of %d", sum, a.Limits.Capacity)
	case !j.older() && (accounted != m.AccountedBytes || held != m.FootprintBytes):
		j.tally.fault("reservations: residents account for %d and hold %d, the status says %d and %d", accounted, held, m.AccountedBytes, m.FootprintBytes)
	case m.FreedBytesTotal != j.tally.freed:
		j.tally.fault("freed bytes: reclaims freed %d bytes, the status says %d", j.tally.freed, m.FreedBytesTotal)
	}
	j.tally.reserved = sum
}

// older reports whether an engine of an earlier epoch still runs, which only the
// Mac's sums show: a report has one line per replica.
func (j *judge) older() bool {
	for _, l := range j.tally.lives {
		if !l.reclaimed && l.epoch < j.desired.newest(l.uid) {
			return true
		}
	}
	return false
}

// checkWaits: unloads and loads end within their bounds.
func (j *judge) checkWaits() {
	now := time.Now()
	for id, l := range j.tally.lives {
		if !j.agent.running() || l.reclaimed || l.unloaded.IsZero() {
			continue
		}
		// The ladder of pool.Timing, each rung with 0.5 s for each GiB of the Mac's
		// memory: the engine may have grown since it was asked, if it ignores that.
		// A disk that does not answer holds each of three writes up for a second.
		allowed := l.drain + 76*time.Second + j.mac.perGiB(l.pid)
		if now.Sub(l.unloaded) > allowed && engineOf(j.twin, l.pid) != nil {
			j.tally.fault("waits: %s is unloaded for %v, of %v that it may take", id, now.Sub(l.unloaded), allowed)
		}
	}
	stranded := j.stranded()
	for _, r := range j.clients.waiting() {
		waits := now.Sub(r.began)
		switch {
		case waits > longestLoad:
			j.tally.fault("waits: %s waits for %v", r.id, waits)
		case min(waits, stranded) > strandedWait && j.tally.living(r.replica) == nil:
			j.tally.fault("waits: %s waits for %v for a load, and nothing is loaded on this Mac since %v", r.id, waits, stranded)
		}
	}
}

// longestOver, and a second for each GiB, is how long a process may hold more than its
// limit: a minute by a pool that it returns and fills again, and then until its requests
// and the process have ended.
const longestOver = 2 * time.Minute

// checkLimits: a process that holds more than its limit gives it back, or ends.
func (j *judge) checkLimits() {
	if !j.agent.running() {
		return
	}
	for id, l := range j.tally.lives {
		since := j.mac.overSince(l.pid)
		if l.reclaimed || since.IsZero() || engineOf(j.twin, l.pid) == nil {
			continue
		}
		if since.Before(j.tally.agent) {
			since = j.tally.agent
		}
		allowed := longestOver + j.mac.perGiB(l.pid)
		if over := time.Since(since); over > allowed {
			j.tally.fault("limits: %s has held more than its limit of %s for %v, of %v that it may", id, v1alpha1.FormatBytes(l.limit), over, allowed)
		}
	}
}

// longestRoom is how long an always-resident replica may wait for room that
// on-demand models hold: busyWait, a minute for their requests, the ladder of
// pool.Timing for the largest Mac of a history, and some polls.
const longestRoom = 5 * time.Minute

// checkRoom: an always-resident replica gets the room that on-demand models hold,
// also if they are always in use.
func (j *judge) checkRoom() {
	crowded := map[string]time.Time{}
	if j.agent.running() {
		a := j.agent.ledger.Account()
		orders, _ := j.desired.all()
		for _, r := range j.agent.pool.Snapshot().Assignments {
			if since, is := j.crowded(r, orders, a); is {
				crowded[r.ReplicaUID] = since
			}
		}
	}
	j.tally.crowded = crowded
	for uid, since := range crowded {
		if waits := time.Since(since); waits > longestRoom {
			j.tally.fault("waits: %s is always resident and waits for %v for room that on-demand models hold", uid, waits)
		}
	}
}

// crowded returns since when a replica waits for room that on-demand models alone
// hold, if it does.
func (j *judge) crowded(r v1alpha1.AssignmentStatus, orders map[string]v1alpha1.Assignment, a memory.Account) (since time.Time, is bool) {
	o, ordered := orders[r.ReplicaUID]
	loaded := meta.FindStatusCondition(r.Conditions, v1alpha1.ConditionLoaded)
	if !ordered || o.Residency.OnDemand() || o.Epoch != r.Epoch || loaded == nil || loaded.Reason != v1alpha1.ReasonWaitingRoom {
		return since, false
	}
	if _, reserved := a.Holders[memory.Key{UID: o.ReplicaUID, Epoch: o.Epoch}]; reserved && j.mac.loadsNothing() || j.twin.Engine(r.ReplicaUID) != nil {
		return since, false // it waits for the system, or for the end of an engine of an earlier epoch
	}
	sum, stays := o.ReservedBytes, o.ReservedBytes
	for k, bytes := range a.Holders {
		if k.UID == r.ReplicaUID && k.Epoch == r.Epoch {
			continue // counted already: it waits for memory, with its room
		}
		sum += bytes
		if h, ok := orders[k.UID]; ok && h.Epoch == k.Epoch && h.Residency.OnDemand() && h.Desired == v1alpha1.DesiredRunning {
			continue
		}
		if l := j.tally.living(k.UID); l != nil {
			bytes = max(bytes, j.mac.peak(l.pid))
		}
		stays += bytes
	}
	if stays > a.Limits.Capacity || sum <= a.Limits.Capacity {
		return since, false
	}
	if since, is = j.tally.crowded[r.ReplicaUID]; !is {
		since = time.Now()
	}
	return since, true
}

// strandedWait is how long a request may wait for a load on a Mac with stranded
// memory: two looks, and some polls.
const strandedWait = 30 * time.Second

// stranded is for how long the agent knows that engines left too much wired; 0
// where they did not, or where it cannot know.
func (j *judge) stranded() time.Duration {
	since := j.mac.strandedSince()
	if since.IsZero() || !j.agent.running() || j.tally.murky || !j.mac.reportsWired() {
		return 0
	}
	return time.Since(since)
}

// longestLoad is pool.Timing.LoadWait, and the instant after it.
const longestLoad = 10*time.Minute + time.Second

func (j *judge) checkEmpty() {
	s, a := j.agent.pool.Snapshot(), j.agent.ledger.Account()
	if n := len(j.twin.Engines()); n > 0 || a.Reserved != 0 || s.Memory.FootprintBytes != 0 || s.Memory.AccountedBytes != 0 || len(s.Assignments) > 0 {
		j.tally.fault("empty Mac: all orders are withdrawn and %d processes live, %d bytes are promised, %d held, %d replicas reported",
			n, a.Reserved, s.Memory.FootprintBytes, len(s.Assignments))
	}
	for id, l := range j.tally.lives {
		if !l.reclaimed && !j.tally.lossy {
			j.tally.fault("empty Mac: %s ended and was never reclaimed", id)
		}
	}
	for id, ends := range j.clients.ends() {
		if ends != 1 {
			j.tally.fault("requests: %s ended %d times", id, ends)
		}
	}
}

// metrics are those that the agent counts from each reported reclaim.
func (j *judge) metrics(a *arguments) (string, error) {
	if err := a.done(); err != nil {
		return "", err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(j.tally.reasons)) {
		of := j.tally.reasons[reason]
		out = append(out, fmt.Sprintf("%s: %d, freed %s", reason, of.reclaims, v1alpha1.FormatBytes(of.bytes)))
	}
	for _, check := range slices.Sorted(maps.Keys(j.tally.checks)) {
		out = append(out, fmt.Sprintf("%s: %d", check, j.tally.checks[check]))
	}
	return strings.Join(out, "\n"), nil
}
