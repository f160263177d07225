// Package pool runs the engines of this Mac: one entry for each replica and
// epoch, and at most one engine process for each entry.
//
// Three types do the work. They share a registry, which has the entries and the
// one lock over them, and know each other by small interfaces alone; Pool
// connects them.
//
//   - replicas is the state machine of the replicas: desired state, plan,
//     conditions and status. plan, a pure function, compares what is assigned
//     with what is observed and names the next step of each entry.
//   - lifecycle takes engines through their states: it starts and adopts
//     processes, follows them, drains and stops them, and reclaims their memory.
//   - pressure polls the Mac's memory and does what agent/memory decides: it
//     admits, trims, aborts, evicts, and sends every engine its limits.
//
// # How an assignment becomes a serving engine
//
// Apply makes the assignments the desired state. The plan of an entry is to
// download its files, to reserve its memory in the ledger, and to load. For an
// OnDemand replica the first Acquire asks for the last two. A load needs the
// memory now: pressure evicts idle OnDemand engines for it, one at a time, and
// after a minute ends those in use that memory.Want allows. The
// journal is written before the process starts, so that no crash of the agent
// loses a process. Once the engine reports that it is ready, requests get a
// Hold, without which no engine is called.
//
// # How it is freed
//
// unload is the only way in which an engine is ended: because the assignment
// changed, because the engine is idle, or because its memory is needed. It takes
// no new requests; those that run may finish until a deadline, which has passed
// already if the memory is needed at once. What it holds is measured, and it is
// asked to exit, by SIGTERM and SIGKILL if it does not. After the observed end of
// the process the host is checked for the memory, the reclaim is written to the
// journal, and only then are the reservation and the entry free for another
// engine.
//
//	            process runs          reports ready
//	Starting ------------------> Loading ---------> Ready
//	   |      (adopted engines      |                 |
//	   |          begin here)       |     unload      |
//	   |                            +---> Draining <--+
//	   |                                     |
//	   |                                     | no request left, or deadline
//	   | no process                          v
//	   | was started                      Stopping
//	   |                                     |
//	   |     end of the process observed     v
//	   |       (from any state but    --> Exited
//	   |              Starting)              |
//	   |                                     | reclaim is in the journal
//	   v                                     v
//	   the entry is free for another engine
//
// An engine that cannot serve (it fails to load, makes no progress, or is silent)
// is unloaded like any other; the entry then waits before the next start, or has
// failed for good.
//
// The package stops nothing that is still assigned unless its memory is needed,
// and speaks no Kubernetes: assignments come in by Apply, and everything worth
// reporting leaves in a Snapshot. Steps that take long run in goroutines, which
// Run waits for. The lock is held for memory work only. Engines are reached
// through process.Engines, and time through package time: the whole pool runs on
// virtual time with enginetest.Twin.
//
// Start reading at Pool.Run, then plan; for engines at lifecycle.start and
// lifecycle.unload, for memory at pressure.poll, for requests at
// requests.acquire.
package pool
