// Package failpoint lets a test end an agent, or look at it, between any two
// steps in an engine's life that become durable or that begin or end a process.
//
// Wrap puts itself between a pool and its journal and engines, and recognises
// the points by what passes: the pool itself knows nothing of them. Start
// reading at All and Wrap.
package failpoint

import (
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool/process"
)

// The points.
const (
	// LoadBegun: the journal does not know of the load yet.
	LoadBegun = "load/begun"
	// LoadRecorded: the journal knows that a process is about to start.
	LoadRecorded = "load/recorded"
	// LoadStarted: it runs, and the journal does not know its id.
	LoadStarted = "load/started"
	// LoadIdentified: the journal knows its id.
	LoadIdentified = "load/identified"
	// LoadReady: it reported that it is ready, and the pool has not seen that.
	LoadReady = "load/ready"
	// UnloadBegun: it takes no new requests; the journal does not know.
	UnloadBegun = "unload/begun"
	// UnloadRecorded: the journal knows that it is to be unloaded.
	UnloadRecorded = "unload/recorded"
	// UnloadDrained: no request uses it; the journal does not know what it holds.
	UnloadDrained = "unload/drained"
	// UnloadMeasured: the journal knows what it held.
	UnloadMeasured = "unload/measured"
	// UnloadAsked: it answered Shutdown, or did not in time; its end may be
	// observed at the same moment.
	UnloadAsked = "unload/asked"
	// ExitSeen: its process has ended, and the pool is about to see that.
	ExitSeen = "exit/seen"
	// ExitSettled: the host was checked; the journal does not know the reclaim.
	ExitSettled = "exit/settled"
	// ExitRecorded: the journal knows the reclaim, and the ledger still has the
	// reservation.
	ExitRecorded = "exit/recorded"
	// Released: the journal knows that a drained replica gave everything back.
	Released = "exit/released"
)

// All lists the points in the order of a life.
func All() []string {
	return []string{
		LoadBegun, LoadRecorded, LoadStarted, LoadIdentified, LoadReady,
		UnloadBegun, UnloadRecorded, UnloadDrained, UnloadMeasured, UnloadAsked,
		ExitSeen, ExitSettled, ExitRecorded, Released,
	}
}

// Journal is that of a pool.
type Journal interface {
	Snapshot() journal.State
	Update(change func(*journal.State)) error
	Release(change func(*journal.State)) error
}

// Wrap calls at whenever a pool over the returned journal and engines passes a
// point. The pool does not go on until at returns. Some calls hold the lock of
// the journal, so at must not use that.
func Wrap(j Journal, e process.Engines, at func(point string)) (Journal, process.Engines) {
	return &watchedJournal{Journal: j, at: at}, &watchedEngines{Engines: e, at: at}
}
