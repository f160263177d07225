package pool

import (
	"cmp"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// State is the observed state of an entry or its engine.
type State string

// The states of an entry are all of these but Starting: while its engine starts
// it is Loading. Those of an engine are Starting to Exited, in this order; the
// package comment has the diagram.
const (
	Absent   State = "absent"   // no memory is reserved
	Reserved State = "reserved" // memory is reserved, and there is no engine
	Starting State = "starting" // it has no process yet
	Loading  State = "loading"  // its process loads the model
	Ready    State = "ready"    // it takes requests
	Draining State = "draining" // it takes no new requests; those that run may finish
	Stopping State = "stopping" // it was asked to exit
	Exited   State = "exited"   // the end of its process was observed
	Failed   State = "failed"   // refused for good
)

// want is the desired state of an entry.
type want int

const (
	// wantUnknown: no assignments were read yet. Nothing is started or stopped.
	wantUnknown want = iota
	// wantInvalid: the assignment cannot be followed. Nothing is started or stopped.
	wantInvalid
	wantDownloaded
	wantRunning
	wantDrained
	// wantGone: assignments were read and do not name it.
	wantGone
)

// leaves reports whether a running engine must be unloaded.
func (w want) leaves() bool {
	return w == wantDownloaded || w == wantDrained || w == wantGone
}

// view is the input of plan for one entry.
type view struct {
	key  memory.Key
	want want
	// download: is it done, is it running, was it cancelled, when may it be
	// tried again.
	downloaded, downloading, downloadEnding bool
	downloadNotBefore                       time.Time
	// admission and failure: reserved in the ledger; refused for good.
	reserved, refused bool
	refusedUntil      time.Time // zero: for good
	// engine: a process is there or about to be; it is being started; an unload
	// is running; it serves another configuration.
	engine, starting, unloading, outdated bool
	loadNotBefore                         time.Time
	// released, and recording: the last step is being written down.
	released, recording bool
	// onDemand: a load begins with a request only; demanded: since when one
	// waits. No room was found before roomNotBefore; unsettled: the host's
	// memory is not in order, or something must be written to the journal first.
	onDemand, demanded, unsettled bool
	since, roomNotBefore          time.Time
}

// step is the next action for an entry.
type step int

const (
	stepDownload step = iota + 1
	stepCancelDownload
	stepReserve
	stepReserveOnly // a reservation alone, without asking whether it can be loaded
	stepLoad
	stepUnload
	stepUnreserve // the reservation is given back
	stepRelease   // and Released reported
	stepForget
)

// action is one step of one entry.
type action struct {
	key    memory.Key
	step   step
	reason v1alpha1.ReclaimReason // of an unload
	since  time.Time              // of a demand
}

// plan derives the next step of each entry from its desired and its observed
// state, and when to plan again although nothing changed (zero: never).
func plan(views []view, now time.Time) (actions []action, again time.Time) {
	engines := map[string]int{} // per UID: epochs of it that have a process
	for _, v := range views {
		if v.engine {
			engines[v.key.UID]++
		}
	}
	for _, v := range views {
		next, at := planOne(v, engines[v.key.UID] > 0, now)
		if next.step != 0 {
			next.key, next.since = v.key, v.since
			actions = append(actions, next)
		}
		if !at.IsZero() && (again.IsZero() || at.Before(again)) {
			again = at
		}
	}
	slices.SortStableFunc(actions, func(a, b action) int { return cmp.Or(takes(a)-takes(b), a.since.Compare(b.since)) })
	return actions, again
}

// takes sorts steps that free memory before those that need it; of the latter,
// always-resident replicas come first, then the longest waiting.
func takes(a action) int {
	if a.step == stepReserve || a.step == stepReserveOnly || a.step == stepLoad {
		return 1
	}
	return 0
}

// planOne decides for one entry; predecessor reports whether a process
// of this replica lives, of this epoch or another: there are never two at once.
func planOne(v view, predecessor bool, now time.Time) (action, time.Time) {
	switch v.want {
	case wantRunning:
		return planRunning(v, predecessor, now)
	case wantDownloaded:
		if a := planStop(v, v1alpha1.ReclaimDrained); a.step != 0 || v.engine {
			return a, time.Time{}
		}
		if v.reserved {
			return action{step: stepUnreserve}, time.Time{}
		}
		return planDownload(v, now)
	case wantDrained:
		return planEnd(v, v1alpha1.ReclaimDrained, stepRelease), time.Time{}
	case wantGone:
		return planEnd(v, v1alpha1.ReclaimUnassigned, stepForget), time.Time{}
	}
	return action{}, time.Time{}
}

func planRunning(v view, predecessor bool, now time.Time) (action, time.Time) {
	if v.engine {
		if v.outdated {
			return planStop(v, v1alpha1.ReclaimReplaced), time.Time{}
		}
		if v.downloaded {
			return action{}, time.Time{}
		}
		// An adopted engine serves; whether its files are still there is only reported.
		return planDownload(v, now)
	}
	switch {
	case v.refused:
		return action{}, v.refusedUntil
	case !v.downloaded:
		return planDownload(v, now)
	case v.onDemand && !v.demanded:
		if v.reserved {
			return action{step: stepUnreserve}, time.Time{}
		}
		if now.Before(v.loadNotBefore) {
			return action{}, v.loadNotBefore // from then on requests may come: the status must change
		}
		return action{}, time.Time{}
	case v.unsettled: // the poll that settles it has the loop plan again
		return planReservation(v, now)
	case v.onDemand && now.Before(v.loadNotBefore): // others may have the memory until then
		if v.reserved {
			return action{step: stepUnreserve}, time.Time{}
		}
		return action{}, v.loadNotBefore
	case now.Before(v.roomNotBefore):
		return action{}, v.roomNotBefore // an exit or a release comes before, mostly
	case predecessor: // its exit has the loop plan again; until then nothing is ended for this one
		return planReservation(v, now)
	case !v.reserved:
		return action{step: stepReserve}, time.Time{}
	case now.Before(v.loadNotBefore):
		return action{}, v.loadNotBefore
	}
	return action{step: stepLoad}, time.Time{}
}

// planReservation keeps the memory of a replica that is wanted resident, also while
// it may not be started: an agent that restarts asks for it again, and one epoch waits for another.
func planReservation(v view, now time.Time) (action, time.Time) {
	switch {
	case v.onDemand || v.reserved:
		return action{}, time.Time{}
	case now.Before(v.roomNotBefore):
		return action{}, v.roomNotBefore
	}
	return action{step: stepReserveOnly}, time.Time{}
}

func planDownload(v view, now time.Time) (action, time.Time) {
	switch {
	case v.downloaded || v.downloading:
		return action{}, time.Time{}
	case now.Before(v.downloadNotBefore):
		return action{}, v.downloadNotBefore
	}
	return action{step: stepDownload}, time.Time{}
}

// planStop unloads an engine once, and not before it was started.
func planStop(v view, reason v1alpha1.ReclaimReason) action {
	if v.engine && !v.starting && !v.unloading {
		return action{step: stepUnload, reason: reason}
	}
	return action{}
}

// planEnd unloads, unreserves and then does the last step, once.
func planEnd(v view, reason v1alpha1.ReclaimReason, last step) action {
	switch {
	case v.engine:
		return planStop(v, reason)
	case v.downloadEnding, v.recording:
		return action{} // its end has the loop plan again
	case v.downloading:
		return action{step: stepCancelDownload}
	case last == stepRelease && v.released:
		return action{}
	}
	return action{step: last}
}

// Restarts of an engine are bounded: after maxCrashes within crashWindow the
// replica has failed. The first restart waits firstBackoff, each next twice as long.
const (
	maxCrashes   = 5
	crashWindow  = 10 * time.Minute
	firstBackoff = time.Second
)

// afterCrash adds a crash to the recent ones. It returns those still in the
// window, how long to wait before the next start, and whether there is one.
func afterCrash(crashes []time.Time, now time.Time) (recent []time.Time, wait time.Duration, again bool) {
	for _, c := range crashes {
		if now.Sub(c) < crashWindow {
			recent = append(recent, c)
		}
	}
	recent = append(recent, now)
	if len(recent) > maxCrashes {
		return recent, 0, false
	}
	return recent, firstBackoff << (len(recent) - 1), true
}

// Downloads are retried indefinitely, with growing pauses. One that was refused is retried after
// long ones: a server may deny a file, or have another in its place, for a while only, and a
// person may correct it.
const (
	firstDownloadPause = time.Second
	maxDownloadPause   = time.Minute
	firstRefusedPause  = 10 * time.Minute
	maxRefusedPause    = 24 * time.Hour
)

// refusedPause returns the pause after a number of refusals in a row.
func refusedPause(refusals int) time.Duration {
	return min(maxRefusedPause, firstRefusedPause<<min(refusals-1, 10))
}

func downloadPause(attempts int) time.Duration {
	return min(maxDownloadPause, firstDownloadPause<<min(attempts-1, 10))
}
