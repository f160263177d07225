package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// owner is the state machine as the engine life cycle sees it; its methods are
// called under the lock.
type owner interface {
	// ready: the engine of the entry takes requests.
	ready(e *entry, g *engine, now time.Time)
	// gaveUp: the engine cannot serve and is being unloaded.
	gaveUp(e *entry, why journal.Refusal, now time.Time)
	// failed: there is no process, for a fault of the engine.
	failed(e *entry, why journal.Refusal, now time.Time)
	// putOff: there is no process, for a reason that is no fault of the engine.
	putOff(e *entry, why journal.Refusal, now time.Time)
	// ended: the end of the engine was observed, and its reclaim is on disk; why
	// is the engine's fault, if any.
	ended(e *entry, r v1alpha1.Reclaim, why *journal.Refusal, now time.Time)
	// vacated: the entry is free for another engine, after the end of its last one.
	vacated(e *entry, ended time.Time)
}

// macMemory measures; *meter is the real one.
type macMemory interface {
	// sample measures the Mac and its engines once.
	sample() memory.Reading
	// measure reads the footprint of one engine.
	measure(g *engine) (bytes int64, ok bool)
	// hostNow measures the host, and last returns what was measured last (under
	// the lock).
	hostNow() (probe.Host, error)
	last() probe.Host
}

// exitGate checks the host after exits; *startGate is the real one. All but
// settle are called under the lock.
type exitGate interface {
	mayStart() bool
	// unsettled reports whether a restarted agent must check the Mac's memory,
	// and noteUnsettled records the journal's value of that.
	unsettled() bool
	noteUnsettled(stored bool)
	// exited counts an observed end.
	exited(unclean bool)
	// unclean: an engine ended unobserved.
	unclean()
	// settle checks that the host got back what an engine held.
	settle(g *engine, freed *int64) v1alpha1.HostCheck
}

// lifecycle takes engines through their states: it starts or adopts a process,
// follows it until it is ready, drains and stops it, and reclaims what it held
// once its end was observed.
type lifecycle struct {
	*registry
	Config
	recorder *recorder
	files    files
	owner    owner
	mac      macMemory
	gate     exitGate

	// registry.mu guards what follows.
	reclaims   []v1alpha1.Reclaim
	freedTotal int64
	// indeterminate counts reclaims whose host check could not be made.
	indeterminate int64
	backend       string    // of the engines, as the last one reported it
	swept         time.Time // when old logs were looked for
	// cacheless has until when engines are started without these folders of the disk cache.
	cacheless map[string]time.Time
}
