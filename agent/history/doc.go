// Package history runs histories: text files that drive the production pool,
// ledger and enforcer on virtual time, with simulated engines on a simulated Mac.
//
// It owns the language below, the simulated Mac and clients, the output of every
// action and figure in a fixed order, and the invariants that hold after each
// command of any history. It rejects unknown commands and arguments, and it
// decides nothing about memory: all decisions are those of agent/pool and
// agent/memory. A new history, such as the timeline of a bug report, is a file in
// testdata and no code; `go test ./agent/history -rewrite` writes its output.
//
// # Form
//
// One command per line, then "----", then its output. Sizes are written 36GiB or
// 512MiB, times 10s, 500ms or 5m. The output begins with the events since the
// previous command, each line with the time since the start of the history and
// its subject; lines of the same instant are sorted by subject. Engines act in
// the order of their names within an instant.
//
// # The Mac
//
//	mac memory=64GiB
//
// starts the Mac; without memory= it changes the named values: metal= (the most
// that the GPU may wire), policy=Balanced, ceiling= (the administrator's number,
// 0 for none), foreign= (used by other programs), active= and inactive= (pages
// that the system can reclaim; without them there is no dynamic ceiling), wired=
// (by the system and other programs), stranded= (wired without an owner),
// returns= (delay until the Mac gets back a process's memory), pressure=,
// thermal=, swap=, and unwired or wired-known (whether the system reports wired
// memory).
//
//	mac reboot            every process ends; stranded memory is freed
//	probe fails host      also: engines, engine=a; probe works
//	starts fail           also: starts work
//	disk full             the journal cannot be written; also: slow=2s, works
//	clock jump=-1h        the wall clock is set; the next agent reads old times
//	sleep 8h              the Mac sleeps: the clock does not stop, and clients leave
//
// # Models
//
//	model a holds=36GiB load=4s
//
// sets the behaviour of engines that start from now on: pooled=, prefixes=
// (cached prompts), wired= and compressed= (parts of its memory), acks= (delay of
// its answers), kv= (memory of each request), pools-kv (which is pooled
// afterwards), leak= and every=, headroom= (that each request asks for), token=
// and shutdown= (times), strands= (stays wired when the process ends),
// fails=Reason, dies=code, hangs, deaf, ignores=(shutdown, term, trim, abort,
// limits), and download=ok, fails, refused or hangs.
//
// # Desired state
//
//	order a always reserve=38GiB
//	order b on-demand reserve=6GiB idle=5m priority=1 drain=10s model=a
//	order a drained               also: namespace=other
//	withdraw b            also: several names
//
// An order sets the named values of an assignment and keeps the rest; running,
// downloaded and drained are the desired states; next-epoch, and an order after
// withdraw, begin a new epoch. Several lines under "orders" take effect together.
//
// # Requests
//
//	request a r1 tokens=5         takes a hold, generates, releases it
//	request a r1 count=100        r1.1 to r1.100 at once
//	request a r1 unread           opens its response and never reads it
//	hold a h1                     takes a hold without a request
//	use h1 tokens=5               generates with it
//	release h1
//	hang-up r1                    the client disconnects
//
// # Engines, the agent, time
//
//	engine a extra=1GiB           also: pooled=, prefixes=, exit=1, kill, stop, continue
//	agent stop                    also: start, restart
//	journal a reserved=10GiB      as an earlier agent wrote it; the limit stays
//	wait 10s
//	status                        states, holds, ledger, gauges, conditions, reclaims
//	limits                        the last limits of each engine
//	metrics                       freed bytes and reclaims by reason
//	finish                        removes all assignments and requires an empty Mac
//
// Start reading at World.Do.
package history
