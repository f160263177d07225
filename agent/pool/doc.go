// Package pool holds the engines of this Mac: one entry per replica and epoch,
// one process per entry.
//
// It owns the states of an entry, the loop that derives its next action, the
// holds by which requests reach an engine, the loads that requests begin
// (OnDemand), the one way an engine is unloaded, the polls in which it measures
// the Mac, does what agent/memory decides and tells every engine its limits,
// the reclaims, and the adoption of engines that outlived an agent. It refuses to serve what is not ready, to stop what no
// order withdrew, and to call an engine without a Hold. It speaks no
// Kubernetes: orders come in by Apply, everything worth reporting goes out as
// an immutable Snapshot.
//
// The desired state is kept apart from the observed one. plan, a pure
// function, compares them and names the next steps; steps that take long run
// in goroutines of their own, which the pool waits for. No lock is held while
// anything but memory is touched.
//
// Engines are reached through process.Engines alone, and time only through
// package time: the whole pool runs on virtual time beside enginetest.Twin.
//
// Start reading at Pool.Run, then plan; for memory at Pool.enforce, for loads
// by requests at Pool.hold.
package pool
