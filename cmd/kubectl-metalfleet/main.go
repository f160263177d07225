// Command kubectl-metalfleet is the kubectl plugin of metalfleet: what a person
// asks of a fleet, with the same words as its conditions and the same code as
// its placement.
//
// It owns the process alone: signals, streams, the terminal, the exit code. The
// commands are in package cli. Called as kubectl_complete-metalfleet, through a
// link, it answers kubectl's completion of plugins.
//
// Start reading at main, then cli.Main.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/cli"
)

// version is set when the program is linked.
var version = "unversioned"

func main() {
	cli.Quiet()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	out := int(os.Stdout.Fd())
	code := cli.Main(ctx, arguments(os.Args), cli.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Version: version, Getenv: os.Getenv, Now: time.Now,
		InTerminal: term.IsTerminal(int(os.Stdin.Fd())), OutTerminal: term.IsTerminal(out),
		Size: func() (width, height int, err error) { return term.GetSize(out) },
	})
	stop()
	os.Exit(code)
}

// arguments are the program's own. kubectl completes a plugin by calling a
// program of another name with the words so far.
func arguments(argv []string) []string {
	if strings.TrimSuffix(filepath.Base(argv[0]), ".exe") == "kubectl_complete-metalfleet" {
		return append([]string{"__complete"}, argv[1:]...)
	}
	return argv[1:]
}
