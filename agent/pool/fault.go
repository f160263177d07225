package pool

// Points at which Config.Fault is called: between any two of them something
// became durable, or a process began or ended. A test kills the agent there.
const (
	// FaultLoadBegun: nothing was written down yet.
	FaultLoadBegun = "load/begun"
	// FaultLoadRecorded: the journal knows that a process is about to start.
	FaultLoadRecorded = "load/recorded"
	// FaultLoadStarted: it runs, and the journal does not know its id.
	FaultLoadStarted = "load/started"
	// FaultLoadIdentified: the journal knows its id.
	FaultLoadIdentified = "load/identified"
	// FaultLoadReady: it said that it is ready, and nobody was told.
	FaultLoadReady = "load/ready"
	// FaultUnloadBegun: it gives no new holds; the journal does not know.
	FaultUnloadBegun = "unload/begun"
	// FaultUnloadRecorded: the journal knows that it is to go.
	FaultUnloadRecorded = "unload/recorded"
	// FaultUnloadDrained: no request uses it, and what it holds is not measured.
	FaultUnloadDrained = "unload/drained"
	// FaultUnloadMeasured: the journal knows what it held.
	FaultUnloadMeasured = "unload/measured"
	// FaultUnloadAsked: it answered Shutdown, or did not in time; its end may
	// be seen at the same moment.
	FaultUnloadAsked = "unload/asked"
	// FaultExitSeen: its end was observed.
	FaultExitSeen = "exit/seen"
	// FaultExitSettled: the host was looked at; the journal does not know the reclaim.
	FaultExitSettled = "exit/settled"
	// FaultExitRecorded: the journal knows the reclaim, and the ledger still
	// has the reservation.
	FaultExitRecorded = "exit/recorded"
	// FaultReleased: the journal knows that a drained replica gave all back.
	FaultReleased = "exit/released"
)

// FaultPoints lists them in the order of a life.
func FaultPoints() []string {
	return []string{
		FaultLoadBegun, FaultLoadRecorded, FaultLoadStarted, FaultLoadIdentified, FaultLoadReady,
		FaultUnloadBegun, FaultUnloadRecorded, FaultUnloadDrained, FaultUnloadMeasured, FaultUnloadAsked,
		FaultExitSeen, FaultExitSettled, FaultExitRecorded, FaultReleased,
	}
}
