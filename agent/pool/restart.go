package pool

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

// failure of an engine, as it is counted.
type failure struct {
	crashes []time.Time // still in the window
	last    *v1alpha1.EngineFailure
	wait    time.Duration    // before the next start
	refused *journal.Refusal // there is no next start
}

// failed counts a crash or failed load; the caller holds registry.mu.
func (e *entry) failed(why journal.Refusal, now time.Time) failure {
	recent, wait, again := afterCrash(e.crashes, now)
	f := failure{crashes: recent, wait: wait, last: &v1alpha1.EngineFailure{
		Reason: asReason(why.Reason), Message: excerpt.Message(why.Message), Time: metav1.NewTime(now.Truncate(time.Second))}}
	switch {
	case !again:
		final := journal.Refusal{Reason: why.Reason, Message: fmt.Sprintf("the engine ended %d times in %d minutes and is not restarted for an hour; last error: %s", len(recent), int(crashWindow.Minutes()), why.Message)}.Bounded()
		f.refused = &final
	case hopeless(why.Reason):
		f.refused = &why
	}
	return f
}

// failedFor is how long a replica stays failed after its engine ended too often. What ends engines
// may pass, such as a restart of a service of the system.
const failedFor = time.Hour

// failedUntil returns when an entry that is to run, and whose engine ended too often, may start
// again; zero: never, or it has not failed. The caller holds registry.mu.
func (e *entry) failedUntil() time.Time {
	if e.want != wantRunning || e.engine != nil || e.refused == nil || len(e.crashes) <= maxCrashes ||
		e.refused.Reason == v1alpha1.ReasonInsufficientRoom || hopeless(e.refused.Reason) {
		return time.Time{}
	}
	return e.crashes[len(e.crashes)-1].Add(failedFor)
}

// startAgain ends the failure of an entry once that has lasted long enough, and reports whether it
// did. The caller holds registry.mu.
func (e *entry) startAgain(now time.Time) bool {
	until := e.failedUntil()
	if until.IsZero() || now.Before(until) {
		return false
	}
	e.refused, e.failure, e.crashes, e.state = nil, nil, nil, Absent
	e.download.done = false // its files are looked at again
	return true
}

// An engine that was ended for memory, or whose load was given up for it, stays
// away for pressurePause, and twice as long each time that it happens again
// within pressureWindow, at most for maxPressurePause. It is no failure of the
// engine, so it does not count as one.
const (
	pressurePause    = 10 * time.Second
	maxPressurePause = 5 * time.Minute
	pressureWindow   = 30 * time.Minute
)

// setBack delays the next load of an entry; the caller holds registry.mu, and
// there is no process.
func (e *entry) setBack(why journal.Refusal, now time.Time) {
	why = why.Bounded()
	recent := slices.DeleteFunc(e.setBacks, func(t time.Time) bool { return now.Sub(t) >= pressureWindow })
	e.setBacks = append(recent, now)
	e.restart = now.Add(min(maxPressurePause, pressurePause<<min(len(recent), 10)))
	e.failure, e.state = &why, Reserved
	e.failWaiters(e.failedLoad(why, now))
}

// setBackNow reports whether a failure or pressure keeps an entry from being
// loaded; the caller holds registry.mu.
func (e *entry) setBackNow(now time.Time) bool { return e.failure != nil && now.Before(e.restart) }

// hopeless reports reasons that another attempt cannot fix.
func hopeless(reason string) bool {
	return reason == v1alpha1.ReasonUnsupportedModel || reason == v1alpha1.ReasonInvalidModel
}

// persist writes the state of the entry to the journal; the caller holds mu.
func (e *entry) persist(s *journal.State) {
	r := s.Replica(e.key.UID, e.key.Epoch)
	r.Loads, r.Restarts, r.LastFailure, r.Crashes, r.Refused, r.Freed = e.loads, e.restarts, e.lastFailure, e.crashes, e.refused, e.freed
}
