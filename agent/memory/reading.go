package memory

import (
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Reading is what one poll saw of the machine and of its engines.
type Reading struct {
	Now time.Time
	// Host as measured; HostKnown is false where the probe failed.
	Host      probe.Host
	HostKnown bool
	// Limits are what the machine and the administrator allow for good.
	Limits footprint.Limits
	Policy footprint.Policy
	// Engines that have a process, in a fixed order.
	Engines []EngineReading
}

// EngineReading is one engine as a poll saw it, in bytes.
type EngineReading struct {
	Key Key
	// Footprint is the kernel's figure; FootprintKnown is false where it could
	// not be read in this poll.
	Footprint      int64
	FootprintKnown bool
	// Active, Pooled and Accounted are the engine's own figures.
	Active, Pooled, Accounted int64
	// Cached is the part of Accounted that it remembers of prompts and can drop.
	Cached int64
	// Reserved in the ledger, and Limit of the process.
	Reserved, Limit int64
	// Loading until it is ready; Stopping once it was asked to end.
	Loading, Stopping bool
	// Stuck: it was killed some time ago and has not ended. Its bytes do not
	// come back.
	Stuck bool
	// OnDemand engines may be evicted; Always ones never are.
	OnDemand bool
	// Holds, and the requests the engine itself counts. BusyKnown is false
	// where it did not say lately: unknown counts as busy.
	Holds, Requests int64
	BusyKnown       bool
	// LastUse is the end of its last hold, or its becoming ready.
	LastUse time.Time
	// IdleAfter is its time to live; 0 means none.
	IdleAfter time.Duration
	Priority  int32
	// TrimAsked and TrimAcknowledged are when it was last asked for its pooled
	// bytes, and when it said that they are returned; zero: never.
	TrimAsked, TrimAcknowledged time.Time
	// HeadroomWanted bytes that its guard asked for and was not answered.
	HeadroomWanted int64
}

// Gauge is the largest of the three gauges of an engine.
func (e EngineReading) Gauge() int64 { return max(e.Active, e.Footprint, e.Accounted) }

// overLimit reports whether it holds more than its own limit, its pool included.
func (e EngineReading) overLimit() bool { return e.Limit > 0 && e.Gauge() > e.Limit }

// Idle reports whether nothing uses it, positively known.
func (e EngineReading) Idle() bool { return !e.Loading && !e.Stopping && e.idle() }

func (e EngineReading) idle() bool { return e.Holds == 0 && e.BusyKnown && e.Requests == 0 }

// Decision is what a poll leads to.
type Decision struct {
	Level v1alpha1.PressureLevel
	// Ceiling that the level was judged by, and what binds it.
	Ceiling int64
	Term    footprint.Term
	// Dynamic is the dynamic term of the ceiling; 0 where it is not known.
	Dynamic int64
	// PausePrefill holds back new prompts on every engine.
	PausePrefill bool
	// Headroom is how many bytes all engines together may still take.
	Headroom int64
	Actions  []Action
	// Follow: look again after a Poll, also where all engines are idle.
	Follow bool
	// Because says in a sentence why the level is what it is.
	Because string
	// GuardInactive says why nothing can be done in this poll: the machine or
	// an engine could not be measured. The level is kept, there are no actions
	// and Headroom is not known. Empty: the guard acts.
	GuardInactive string
}

// Step is one thing to do.
type Step int

// The steps of the ladder.
const (
	// StepTrim asks an engine for its pooled bytes.
	StepTrim Step = iota + 1
	// StepEvict unloads an idle OnDemand engine.
	StepEvict
	// StepAbort ends the requests of an engine; it goes on.
	StepAbort
	// StepCancelLoad ends an engine that loads.
	StepCancelLoad
	// StepUnload ends an engine whatever it does.
	StepUnload
)

// Action is one step for one engine. It is derived from one reading and never
// remembered: what is still to be done is found again in the next.
type Action struct {
	Key    Key
	Step   Step
	Reason v1alpha1.ReclaimReason // of StepEvict, StepCancelLoad and StepUnload
	// Cache: StepTrim asks for the prompt cache too.
	Cache bool
	// Because is a sentence for logs and clients.
	Because string
}
