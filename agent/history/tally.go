package history

import (
	"fmt"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// tally is the plain model of the pool: what the clients hold, which processes
// lived, and what was freed. judge.mu guards it.
type tally struct {
	lives   map[string]*life  // by the id of their reclaim
	sockets map[string]string // whose they are
	freed   int64
	reasons map[v1alpha1.ReclaimReason]*reasonTally
	checks  map[v1alpha1.HostCheck]int
	// reserved at the last check: promises stay when the capacity shrinks.
	reserved int64
	unclean  time.Time // the last end that was unexpected or forced
	row      time.Time // the first of those that followed one another within a minute
	// ended is why the last engine of a replica and epoch ended, and restarts
	// are the starts after an end that the pool or a fault forced, under this
	// agent.
	ended    map[string]v1alpha1.ReclaimReason
	restarts map[string][]time.Time
	// crowded are always-resident replicas that wait for room that on-demand
	// models hold, since when.
	crowded map[string]time.Time
	gone    map[string]time.Time // when a replica's last engine was reclaimed
	tenures map[string]tenure    // of the last engine of each namespace that was reclaimed
	agent   time.Time            // when this agent started
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
	since       time.Time // when the tenure began that it continues; began where it continues none
	unloaded    time.Time // since when it is to be unloaded; zero: it is not
	drain       time.Duration
	reclaimed   bool
}

// tenure is since when engines of a namespace followed one another, and when the last ended.
type tenure struct{ since, until time.Time }

// continues notes the tenure that a life of a namespace continues.
func (t *tally) continues(l *life, namespace string) {
	l.since = t.sinceOf(namespace, l.began, l.began)
}

// sinceOf is when the tenure began that engines of a namespace which began at since continue
// now: some of them may have served at once.
func (t *tally) sinceOf(namespace string, since, now time.Time) time.Time {
	if before, ok := t.tenures[namespace]; ok && now.Sub(before.until) <= busyWait && before.since.Before(since) {
		return before.since
	}
	return since
}

func newTally() tally {
	return tally{lives: map[string]*life{}, sockets: map[string]string{}, reasons: map[v1alpha1.ReclaimReason]*reasonTally{}, checks: map[v1alpha1.HostCheck]int{},
		ended: map[string]v1alpha1.ReclaimReason{}, restarts: map[string][]time.Time{}, gone: map[string]time.Time{}, tenures: map[string]tenure{}}
}

func reclaimID(uid string, epoch, load int64) string {
	return fmt.Sprintf("%s/%d/%d", uid, epoch, load)
}

func (t *tally) fault(format string, args ...any) {
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

// start notes a life. After an unclean end of an engine on a Mac that reports wired bytes,
// nothing starts before the Mac was looked at twice, 10 s apart, or once if such ends followed
// one another for 20 s.
func (t *tally) start(l *life, reportsWired bool) {
	id := reclaimID(l.uid, l.epoch, l.load)
	if t.lives[id] != nil {
		t.fault("reservations: %s was started twice", id)
	}
	t.lives[id] = l
	if since := l.began.Sub(t.unclean); reportsWired && !t.unclean.IsZero() && since > 0 && since < 10*time.Second && l.began.Sub(t.row) < 20*time.Second {
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

// without is since when a replica that was ordered then has had no engine; now
// where it has one.
func (t *tally) without(uid string, ordered time.Time) time.Time {
	if t.living(uid) != nil {
		return time.Now()
	}
	return slices.MaxFunc([]time.Time{ordered, t.gone[uid], t.agent}, time.Time.Compare)
}

// again: a new agent begins the ladder of each unload again that the journal has, by the process
// ids, and does not know when memory was short.
func (t *tally) again(now time.Time, stops map[int]bool) {
	clear(t.restarts)
	clear(t.crowded)
	t.agent = now
	for _, l := range t.lives {
		if l.unloaded = (time.Time{}); stops[l.pid] {
			l.unloaded = now
		}
	}
}
