package memory

import (
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Reading is what one poll measured of the machine and its engines.
type Reading struct {
	Now time.Time
	// Host as measured; HostKnown is false where the probe failed.
	Host      probe.Host
	HostKnown bool
	// Limits are the fixed limits of the machine and the administrator.
	Limits footprint.Limits
	Policy footprint.Policy
	// Engines that have a process, in a fixed order.
	Engines []EngineReading
}

// EngineReading is what one poll measured of an engine, in bytes.
type EngineReading struct {
	Key Key
	// Footprint is the kernel's figure; FootprintKnown is false where it could
	// not be read in this poll.
	Footprint      int64
	FootprintKnown bool
	// Active, Pooled and Accounted are the engine's own figures.
	Active, Pooled, Accounted int64
	// Cached is the part of Accounted that caches prompts and can be dropped.
	Cached int64
	// Reserved in the ledger, and Limit of the process.
	Reserved, Limit int64
	// Loading is true until the engine is ready, Stopping once it was asked to
	// end.
	Loading, Stopping bool
	// Lasting: it is Stopping, but its requests may go on for longer than a load
	// waits. Its bytes are not expected soon.
	Lasting bool
	// Stuck: it was killed some time ago and has not ended. Its bytes are not
	// expected back.
	Stuck bool
	// OnDemand engines may be evicted; Always ones never are.
	OnDemand  bool
	Namespace string
	// LoadBegan is when it was started, or adopted, and ReadySince when it became ready;
	// zero: not yet.
	LoadBegan, ReadySince time.Time
	// Tenure is since when engines of its namespace have followed one another up to this
	// one; zero: it followed none.
	Tenure time.Time
	// Holds are the requests that the agent counts, Requests those that the
	// engine counts. BusyKnown is false if the engine has not reported lately:
	// unknown counts as busy.
	Holds, Requests int64
	BusyKnown       bool
	// LastUse is the end of its last hold, or its becoming ready.
	LastUse time.Time
	// IdleAfter is its time to live; 0 means none.
	IdleAfter time.Duration
	Priority  int32
	// TrimAsked is when it was last asked for its pooled bytes, and
	// TrimAcknowledged when it reported that they are returned; zero: never.
	TrimAsked, TrimAcknowledged time.Time
	// HeadroomWanted are the bytes that its guard asked for and has no answer
	// for.
	HeadroomWanted int64
}

// Gauge is the largest of the three gauges of an engine.
func (e EngineReading) Gauge() int64 { return max(e.Active, e.Footprint, e.Accounted) }

// overLimit reports whether the engine, with its pool, exceeds its own limit.
func (e EngineReading) overLimit() bool { return e.Limit > 0 && e.Gauge() > e.Limit }

// Idle reports whether nothing uses the engine; unknown counts as in use.
func (e EngineReading) Idle() bool { return !e.Loading && !e.Stopping && e.idle() }

// returnsPool reports whether the engine can be asked for its pool: one that loads or ends
// soon cannot.
func (e EngineReading) returnsPool() bool { return !e.Loading && (!e.Stopping || e.Lasting) }

func (e EngineReading) idle() bool { return e.Holds == 0 && e.BusyKnown && e.Requests == 0 }

// Decision is the result of a poll.
type Decision struct {
	Level v1alpha1.PressureLevel
	// Ceiling that the level was measured against, and what sets it.
	Ceiling int64
	Term    footprint.Term
	// Dynamic is the dynamic term of the ceiling; 0 if unknown.
	Dynamic int64
	// PausePrefill holds back new prompts on every engine.
	PausePrefill bool
	// Headroom is how many more bytes all engines together may use.
	Headroom int64
	Actions  []Action
	// Follow asks for another poll soon, even if all engines are idle.
	Follow bool
	// Because explains the level in a sentence.
	Because string
	// GuardInactive explains why this poll cannot act: the machine or an engine
	// could not be measured. The level is kept, there are no actions and Headroom
	// is unknown. Empty: the guard acts.
	GuardInactive string
	// Assumed names an engine that could not be measured for long, whose reservation
	// counted instead. Empty: all were measured.
	Assumed string
}

// Step is a kind of action.
type Step int

// Steps, from the mildest to the harshest.
const (
	// StepTrim asks an engine for its pooled bytes.
	StepTrim Step = iota + 1
	// StepEvict unloads an idle OnDemand engine.
	StepEvict
	// StepAbort ends the requests of an engine, which stays loaded.
	StepAbort
	// StepCancelLoad ends an engine that loads.
	StepCancelLoad
	// StepUnload ends an engine regardless of what it does.
	StepUnload
	// StepKill ends it with SIGKILL, at once: it grows, or stays over its limit, while it is to end.
	StepKill
)

// Action is one step for one engine. It is derived from one reading and not
// remembered: the next reading yields it again if it is still needed.
type Action struct {
	Key    Key
	Step   Step
	Reason v1alpha1.ReclaimReason // of StepEvict, StepCancelLoad, StepUnload and StepKill
	// Cache: StepTrim asks for the prompt cache too.
	Cache bool
	// Because is a sentence for logs and clients.
	Because string
}
