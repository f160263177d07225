// Package power receives the signals that this Mac is about to sleep or to shut
// down, and that it is awake again.
//
// It owns their meaning: SIGUSR1 before a sleep, SIGUSR2 before a shutdown or a
// restart, SIGCONT after a sleep or if the shutdown was canceled. SIGTERM alone
// means neither: the agent is started again in a moment, and its Mac stays
// available.
//
// Start reading at Watch.
package power

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Notice is a change of the Mac's power state.
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

// Signals are those with a meaning.
func Signals() []os.Signal { return []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT} }

// Watch calls notify for each signal until ctx ends.
func Watch(ctx context.Context, notify func(Notice)) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, Signals()...)
	defer signal.Stop(signals)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s := <-signals:
			notify(meaning(s))
		}
	}
}
