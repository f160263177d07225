package pool

import (
	"cmp"
	"time"
)

// Timing are the pool's delays; a zero field means its default.
type Timing struct {
	// Poll is how often the Mac is measured while an engine works,
	// LoadedPoll while engines are there and idle, and IdlePoll while there
	// is none. The reference server's constants.
	Poll, LoadedPoll, IdlePoll time.Duration
	// Hello is how long an engine may take to answer its first call, and any
	// other that asks for an answer at once.
	Hello time.Duration
	// Adopt bounds the whole adoption: an engine that does not answer in time
	// is still ours, and is dealt with later.
	Adopt time.Duration
	// Stray bounds the wait for an engine whose process id is not known.
	Stray time.Duration
	// Stop, StopPerGiB: how long an engine may take after Shutdown. It gets StopPerGiB for
	// its memory, at most for this Mac's.
	Stop, StopPerGiB time.Duration
	// HurriedStop is Stop where its memory is needed now; Term is half as long
	// then.
	HurriedStop time.Duration
	// Term is how long it may take after SIGTERM, in addition to StopPerGiB.
	Term time.Duration
	// Killed is how long a process may take to end after SIGKILL before its
	// memory is no longer counted on.
	Killed time.Duration
	// Settle is the pause between measurements of the host after an exit.
	Settle time.Duration
	// LoadStall is how long a load may make no progress while its process
	// lives: neither another thousandth of its bytes, nor hundredth of its memory.
	LoadStall time.Duration
	// Silence is how long a loaded engine may send no status before it is given
	// up; it counts as busy after three Polls.
	Silence time.Duration
	// Iteration is how long one iteration of a loaded engine's scheduler loop may take, by
	// its status, before the engine is given up: many times what the largest step takes.
	Iteration time.Duration
	// LoadWait is how long a request waits for the load that it began, or for
	// one under way. The load continues without it.
	LoadWait time.Duration
	// RoomRetry is the pause before a start that found no memory is tried again,
	// and the RetryAfter of its requests.
	RoomRetry time.Duration
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Poll: cmp.Or(t.Poll, time.Second), LoadedPoll: cmp.Or(t.LoadedPoll, 10*time.Second), IdlePoll: cmp.Or(t.IdlePoll, 30*time.Second),
		Hello: cmp.Or(t.Hello, 15*time.Second),
		Adopt: cmp.Or(t.Adopt, 4*time.Second), Stray: cmp.Or(t.Stray, 2*time.Second),
		Stop: cmp.Or(t.Stop, time.Minute), StopPerGiB: cmp.Or(t.StopPerGiB, 500*time.Millisecond),
		HurriedStop: cmp.Or(t.HurriedStop, 15*time.Second),
		Term:        cmp.Or(t.Term, 10*time.Second), Killed: cmp.Or(t.Killed, 10*time.Second), Settle: cmp.Or(t.Settle, 500*time.Millisecond),
		LoadStall: cmp.Or(t.LoadStall, 2*time.Minute), Silence: cmp.Or(t.Silence, time.Minute),
		Iteration: cmp.Or(t.Iteration, 5*time.Minute),
		LoadWait:  cmp.Or(t.LoadWait, 10*time.Minute), RoomRetry: cmp.Or(t.RoomRetry, time.Second),
	}
}
