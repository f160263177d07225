package power

import (
	"context"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// TestEachSignalHasItsMeaning: they come to this very process.
func TestEachSignalHasItsMeaning(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	notices, ended := make(chan Notice, 8), make(chan error, 1)
	go func() { ended <- Watch(ctx, func(n Notice) { notices <- n }) }()
	// SIGCONT has no effect on a process that does not handle it yet.
	limit := time.After(patience.Of(t))
	for listens := false; !listens; {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-notices:
			if listens = true; n != Wakes {
				t.Errorf("SIGCONT means %d", n)
			}
		case <-time.After(10 * time.Millisecond):
		case <-limit:
			t.Fatal("no signal was received")
		}
	}
	for s, want := range map[syscall.Signal]Notice{syscall.SIGUSR1: Sleeps, syscall.SIGUSR2: ShutsDown} {
		if err := syscall.Kill(syscall.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		for n := range notices {
			if n == Wakes {
				continue // of before
			}
			if n != want {
				t.Errorf("%s means %d, want %d", s, n, want)
			}
			break
		}
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("the watch ended without a reason")
	}
}
