package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// tally is the plain model of the pool: what the clients hold, which processes
// lived, and what was freed. World.mu guards it.
type tally struct {
	lives   map[string]*life  // by the id of their reclaim
	sockets map[string]string // whose they are
	freed   int64
	reasons map[v1alpha1.ReclaimReason]*reasonTally
	checks  map[v1alpha1.HostCheck]int
	// reserved at the last check: promises stay when the capacity shrinks.
	reserved int64
	unclean  time.Time // the last end that was unexpected or forced
	// ended is why the last engine of a replica and epoch ended, and restarts
	// are the starts after an end that the pool or a fault forced, under this
	// agent.
	ended    map[string]v1alpha1.ReclaimReason
	restarts map[string][]time.Time
	// murky: what is wired does not show what engines left, because the history
	// changed it otherwise, or kept the agent from seeing or remembering it.
	murky bool
	// lossy: the journal could not be written at some time. An engine that an
	// agent started and ended then is unknown to the next one.
	lossy  bool
	faults []string
}

// maxRestarts in restartWindow of one replica and epoch: back-off grows.
const (
	maxRestarts   = 12
	restartWindow = 10 * time.Minute
)

type reasonTally struct {
	reclaims int
	bytes    int64
}

// life is one process.
type life struct {
	uid         string
	epoch, load int64
	pid         int
	limit       int64
	began       time.Time
	unloaded    time.Time // since when it is to be unloaded; zero: it is not
	drain       time.Duration
	reclaimed   bool
}

func newTally() tally {
	return tally{lives: map[string]*life{}, sockets: map[string]string{}, reasons: map[v1alpha1.ReclaimReason]*reasonTally{}, checks: map[v1alpha1.HostCheck]int{},
		ended: map[string]v1alpha1.ReclaimReason{}, restarts: map[string][]time.Time{}}
}

func reclaimID(uid string, epoch, load int64) string {
	return fmt.Sprintf("%s/%d/%d", uid, epoch, load)
}

func (t *tally) fault(format string, args ...any) {
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

// start notes a life; after an unclean end nothing starts before the Mac was
// looked at twice, 10 s apart.
func (t *tally) start(l *life, tells bool) {
	id := reclaimID(l.uid, l.epoch, l.load)
	if t.lives[id] != nil {
		t.fault("reservations: %s was started twice", id)
	}
	t.lives[id] = l
	if since := l.began.Sub(t.unclean); tells && !t.unclean.IsZero() && since > 0 && since < 10*time.Second {
		t.fault("empty Mac: %s was started %v after an unclean end, before the Mac was looked at twice", id, since)
	}
}

// restarted counts a start after a forced end: there is no endless loop of them.
func (t *tally) restarted(l *life) {
	id := epochID(l.uid, l.epoch)
	switch t.ended[id] {
	case v1alpha1.ReclaimCrashed, v1alpha1.ReclaimLoadFailed, v1alpha1.ReclaimOverLimit, v1alpha1.ReclaimHardPressure,
		v1alpha1.ReclaimEmergency, v1alpha1.ReclaimLoadCancelled:
	default:
		return
	}
	recent := slices.DeleteFunc(t.restarts[id], func(at time.Time) bool { return l.began.Sub(at) >= restartWindow })
	if t.restarts[id] = append(recent, l.began); len(t.restarts[id]) > maxRestarts {
		t.fault("starts: %s was started %d times in %v, and had to end each time", id, len(t.restarts[id]), restartWindow)
	}
}

func epochID(uid string, epoch int64) string { return fmt.Sprintf("%s/%d", uid, epoch) }

// living is the life of a replica that was not reclaimed; nil where none is.
func (t *tally) living(uid string) *life {
	for _, l := range t.lives {
		if l.uid == uid && !l.reclaimed {
			return l
		}
	}
	return nil
}

// again: a new agent begins the ladder of each unload again, and does not know
// when memory was short.
func (t *tally) again(now time.Time) {
	clear(t.restarts)
	for _, l := range t.lives {
		if !l.unloaded.IsZero() {
			l.unloaded = now
		}
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
func (w *World) unloads(uid string, reason v1alpha1.ReclaimReason) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.tally.living(uid)
	if l == nil {
		return // it ended in the same instant
	}
	order, ordered := w.orders[uid]
	if !l.unloaded.IsZero() {
		return // an agent before this one chose it
	}
	l.unloaded, l.drain = time.Now(), time.Duration(w.drains[uid])*time.Second
	if !ownChoice(reason) {
		return
	}
	if ordered && !order.Residency.OnDemand() {
		w.tally.fault("evictions: %s is always resident and was chosen for %s", uid, reason)
	}
	for _, r := range w.requests {
		if r.held && r.pool == w.pool && r.pid == l.pid {
			w.tally.fault("evictions: %s was chosen for %s while %s held it", uid, reason, r.id)
		}
	}
}

// reclaimed judges and counts what the pool reports of an end.
func (w *World) reclaimed(r v1alpha1.Reclaim) {
	freed := "unknown"
	if r.FreedBytes != nil {
		freed = v1alpha1.FormatBytes(*r.FreedBytes)
	}
	w.diary.write(r.Name, "reclaimed: %s, exit %s, freed %s, host check %s, after %.1fs", r.Reason, r.Exit, freed, r.HostCheck, float64(r.DurationMilliseconds)/1000)
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &w.tally
	of := t.reasons[r.Reason]
	if of == nil {
		of = &reasonTally{}
		t.reasons[r.Reason] = of
	}
	of.reclaims++
	t.checks[r.HostCheck]++
	t.ended[epochID(r.ReplicaUID, r.Epoch)] = r.Reason
	if r.Exit != v1alpha1.ExitClean && r.Exit != v1alpha1.ExitTerminated {
		t.unclean = r.Time.Time
	}
	l := t.lives[r.ID]
	if l == nil {
		if r.FreedBytes != nil {
			of.bytes += *r.FreedBytes
			t.freed += *r.FreedBytes
		}
		return // it ended before the pool had its handle
	}
	if l.reclaimed {
		t.fault("freed bytes: %s was reclaimed twice", r.ID)
	}
	l.reclaimed = true
	if w.procs.engine(l.pid) != nil {
		t.fault("reservations: %s was reclaimed and process %d lives", r.ID, l.pid)
	}
	if r.FreedBytes != nil {
		of.bytes += *r.FreedBytes
		t.freed += *r.FreedBytes
		if n := *r.FreedBytes; n < 0 || n > w.mac.peak(l.pid) {
			t.fault("freed bytes: %s freed %d bytes, and process %d never held more than %d", r.ID, n, l.pid, w.mac.peak(l.pid))
		}
	}
}

// errBroken is wrapped by what Check returns.
var errBroken = errors.New("invariant is broken")

// Check compares the pool with the model, where nothing is due at this instant.
func (w *World) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stop != nil {
		w.checkHolds()
		w.checkBytes()
	}
	w.checkWaits()
	if len(w.tally.faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", errBroken, strings.Join(w.tally.faults, "; "))
}

// checkHolds: the pool counts what the clients hold, and no request ended
// twice.
func (w *World) checkHolds() {
	held := map[int]int{} // by process
	for _, r := range w.requests {
		if r.held && r.pool == w.pool {
			held[r.pid]++
		}
		if r.ends > 1 {
			w.tally.fault("requests: %s ended %d times", r.id, r.ends)
		}
	}
	for _, e := range w.pool.Endpoints() {
		want := 0
		for _, l := range w.tally.lives {
			if l.uid == e.UID && l.epoch == e.Epoch && !l.reclaimed {
				want += held[l.pid]
			}
		}
		if e.Holds != want {
			w.tally.fault("holds: %s has %d holds, its clients have %d", e.UID, e.Holds, want)
		}
	}
}

// checkBytes: every process has its promise and only one, promises fit, and
// sums are sums; what was freed is counted once.
func (w *World) checkBytes() {
	s, a := w.pool.Snapshot(), w.ledger.Account()
	seen := map[string]bool{}
	for _, e := range w.twin.Engines() {
		c := e.Config()
		if _, ok := a.Holders[memory.Key{UID: c.ReplicaUID, Epoch: c.Epoch}]; !ok {
			w.tally.fault("reservations: process %d of %s lives without a reservation", e.PID(), c.ReplicaUID)
		}
		if seen[c.ReplicaUID] {
			w.tally.fault("reservations: two processes of %s live", c.ReplicaUID)
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
			w.tally.fault("reservations: figures of %s are negative", r.ReplicaUID)
		}
	}
	switch m := s.Memory; {
	case sum != a.Reserved || sum != m.ReservedBytes:
		w.tally.fault("reservations: %d bytes are promised, the status says %d", sum, m.ReservedBytes)
	case a.Limits.Ceiling > 0 && sum > max(a.Limits.Capacity, w.tally.reserved):
		w.tally.fault("reservations: %d bytes are promised of a capacity of %d", sum, a.Limits.Capacity)
	case !w.older() && (accounted != m.AccountedBytes || held != m.FootprintBytes):
		w.tally.fault("reservations: residents account for %d and hold %d, the status says %d and %d", accounted, held, m.AccountedBytes, m.FootprintBytes)
	case m.FreedBytesTotal != w.tally.freed:
		w.tally.fault("freed bytes: reclaims freed %d bytes, the status says %d", w.tally.freed, m.FreedBytesTotal)
	}
	w.tally.reserved = sum
}

// older reports whether an engine of an earlier epoch still runs, which only the
// Mac's sums show: a report has one line per replica.
func (w *World) older() bool {
	for _, l := range w.tally.lives {
		if !l.reclaimed && l.epoch < w.epochs[l.uid] {
			return true
		}
	}
	return false
}

// checkWaits: unloads and loads end within their bounds.
func (w *World) checkWaits() {
	now := time.Now()
	for id, l := range w.tally.lives {
		if w.stop == nil || l.reclaimed || l.unloaded.IsZero() {
			continue
		}
		// The ladder of pool.Timing, each rung with 0.5 s for each GiB: the
		// engine may have grown since it was asked, if it ignores that.
		// A disk that does not answer holds each of three writes up for a second.
		allowed := l.drain + 75*time.Second + time.Duration(w.mac.peak(l.pid)/footprint.GiB+1)*time.Second
		if now.Sub(l.unloaded) > allowed && w.procs.engine(l.pid) != nil {
			w.tally.fault("waits: %s is unloaded for %v, of %v that it may take", id, now.Sub(l.unloaded), allowed)
		}
	}
	stranded := w.stranded()
	for _, r := range w.requests {
		if r.ends > 0 || r.held {
			continue
		}
		waits := now.Sub(r.began)
		switch {
		case waits > longestLoad:
			w.tally.fault("waits: %s waits for %v", r.id, waits)
		case min(waits, stranded) > strandedWait && w.tally.living(r.replica) == nil:
			w.tally.fault("waits: %s waits for %v for a load, and nothing is loaded on this Mac since %v", r.id, waits, stranded)
		}
	}
}

// strandedWait is how long a request may wait for a load on a Mac with stranded
// memory: two looks, and some polls.
const strandedWait = 30 * time.Second

// stranded is for how long the agent knows that engines left too much wired; 0
// where they did not, or where it cannot know.
func (w *World) stranded() time.Duration {
	since := w.mac.strandedSince()
	if since.IsZero() || w.stop == nil || w.tally.murky || !w.mac.reportsWired() {
		return 0
	}
	return time.Since(since)
}

// longestLoad is pool.Timing.LoadWait, and the instant after it.
const longestLoad = 10*time.Minute + time.Second

// Finish removes all assignments and waits until the Mac must be empty, then
// checks that it is, and that every request ended once.
func (w *World) Finish() error {
	w.hangUpAll()
	w.mac.fail(nil, nil)
	w.disk.set(false, 0)
	w.twin.RefuseStarts(nil)
	w.settle()
	if w.stop == nil && w.pool != nil {
		if err := w.boot(); err != nil {
			return err
		}
	}
	if w.pool == nil {
		return nil
	}
	w.mu.Lock()
	clear(w.orders)
	w.mu.Unlock()
	w.apply()
	w.settle()
	for range 5 { // drains and ladders, one after another
		w.pass(time.Minute)
	}
	if err := w.Check(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkEmpty()
	if len(w.tally.faults) > 0 {
		return fmt.Errorf("%w: %s", errBroken, strings.Join(w.tally.faults, "; "))
	}
	return nil
}

func (w *World) checkEmpty() {
	s, a := w.pool.Snapshot(), w.ledger.Account()
	if n := len(w.twin.Engines()); n > 0 || a.Reserved != 0 || s.Memory.FootprintBytes != 0 || s.Memory.AccountedBytes != 0 || len(s.Assignments) > 0 {
		w.tally.fault("empty Mac: all orders are withdrawn and %d processes live, %d bytes are promised, %d held, %d replicas reported",
			n, a.Reserved, s.Memory.FootprintBytes, len(s.Assignments))
	}
	for id, l := range w.tally.lives {
		if !l.reclaimed && !w.tally.lossy {
			w.tally.fault("empty Mac: %s ended and was never reclaimed", id)
		}
	}
	for _, r := range w.requests {
		if r.ends != 1 {
			w.tally.fault("requests: %s ended %d times", r.id, r.ends)
		}
	}
}
