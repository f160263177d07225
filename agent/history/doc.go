// Package history plays histories: text files that drive the production pool,
// ledger and enforcer on virtual time, with scripted engines on a scripted Mac.
//
// It owns the little language below, the Mac and the clients that it plays,
// the printing of every action and figure in a fixed order, and the
// invariants that hold after each command, whatever the history. It refuses
// commands and arguments that it does not know, and it decides nothing about
// memory: all decisions are those of agent/pool and agent/memory. A new
// history, such as a bug report's timeline, is a file in testdata and no code;
// what it prints is written by `go test ./agent/history -rewrite`.
//
// # Form
//
// One command a line, then "----", then what it printed. Sizes are
// written 36GiB or 512MiB, times 10s, 500ms or 5m. What happened since the
// command before is printed first, each line with the time since the history
// began and whom it is about; lines of one instant are sorted by that name. What
// engines do at one instant is done in the order of their names.
//
// # The Mac
//
//	mac memory=64GiB
//
// begins; without memory= it changes what it names: metal= (the most that the
// GPU may wire), policy=Balanced, ceiling= (the administrator's number, 0 for
// none), foreign= (used by others), active= and inactive= (pages that the
// system would give up; without them there is no dynamic ceiling), wired= (by
// the system and other programs), stranded= (wired, and no process's), returns= (how late the
// Mac gets back what a process held), pressure=, thermal=, swap=, and
// unwired or wired-known (whether the system tells what is wired).
//
//	mac reboot            every process ends; what is stranded is freed
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
// sets the behaviour of engines that are started from now on: pooled=, prefixes=
// (remembered of prompts), wired= and compressed= (parts of what it holds),
// acks= (how late it answers), kv= (held by each request), pools-kv (and pooled after it), leak= and every=, headroom=
// (asked for by each request), token= and shutdown= (times), strands= (stays
// wired when the process ends), fails=Reason, dies=code, hangs, deaf,
// ignores=(shutdown, term, trim, abort, limits), and download=ok, fails,
// refused or hangs.
//
// # Orders
//
//	order a always reserve=38GiB
//	order b on-demand reserve=6GiB idle=5m priority=1 drain=10s model=a
//	order a drained
//	withdraw b            also: several names
//
// An order changes what it names and keeps the rest; running, downloaded and
// drained are the desired states; next-epoch, and an order after withdraw, begin
// a new epoch. Several lines under "orders" are given at once.
//
// # Requests
//
//	request a r1 tokens=5         takes a hold, generates, gives it back
//	request a r1 count=100        r1.1 to r1.100 at once
//	request a r1 unread           opens its answer and never reads it
//	hold a h1                     takes a hold and does nothing with it
//	use h1 tokens=5               generates under it
//	release h1
//	hang-up r1                    the client goes
//
// # Engines, the agent, time
//
//	engine a extra=1GiB           also: pooled=, prefixes=, exit=1, kill, stop, continue
//	agent stop                    also: start, restart
//	journal a reserved=10GiB      as an agent before wrote it; the limit stays
//	wait 10s
//	status                        states, holds, ledger, gauges, conditions, reclaims
//	limits                        what each engine was told last
//	metrics                       freed bytes and reclaims by reason
//	finish                        withdraws all orders and wants an empty Mac
//
// Start reading at World.Do.
package history
