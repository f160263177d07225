// Package power hears that this Mac is about to sleep or to shut down, and that
// it is awake again.
//
// It owns the signals by which whoever knows that tells the agent: SIGUSR1 before
// a sleep, SIGUSR2 before a shutdown or a restart, SIGCONT after a sleep or where
// nothing came of it. It refuses to guess: an agent that is merely told to end
// (SIGTERM) is started again in a moment, and its Mac goes nowhere.
//
// Start reading at Watch.
package power

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Notice is what is heard.
type Notice int

// The notices.
const (
	Sleeps Notice = iota + 1
	ShutsDown
	Wakes
)

// meaning of the signals.
func meaning(s os.Signal) Notice {
	switch s {
	case syscall.SIGUSR1:
		return Sleeps
	case syscall.SIGUSR2:
		return ShutsDown
	default:
		return Wakes
	}
}

// Watch tells what is heard until ctx ends.
func Watch(ctx context.Context, hear func(Notice)) error {
	heard := make(chan os.Signal, 8)
	signal.Notify(heard, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
	defer signal.Stop(heard)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s := <-heard:
			hear(meaning(s))
		}
	}
}
