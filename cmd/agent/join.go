package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/join"
	contract "metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/logs"
)

// maxTokenBytes is far beyond a join token.
const maxTokenBytes = 128 << 10

// runJoin brings this Mac into a fleet.
func runJoin(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := flag.NewFlagSet("agent join", flag.ContinueOnError)
	set.SetOutput(stderr)
	text := set.String("token", "", "the join `token`; other users of this Mac can see it in the process list while this command runs")
	file := set.String("token-file", "", "`file` with the join token; - reads standard input")
	state := set.String("state", "", "`folder` in which the agent keeps its state; created if missing")
	set.StringVar(state, "state-dir", "", "the same as --state")
	name := set.String("name", "", "`name` of this Mac in the fleet, for an enrolment token; default: its host name")
	verbose := set.Bool("verbose", false, "log debug messages")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	switch {
	case set.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; agent join takes flags only", set.Arg(0))
	case *state == "":
		return errors.New("--state is required: the folder in which this agent keeps its state")
	case (*text == "") == (*file == ""):
		return errors.New("either --token-file or --token is required; `kubectl metalfleet join-token NAME` creates a token for one Mac, `kubectl metalfleet enrolment create NAME` one for many")
	}
	if *file != "" {
		var err error
		if *text, err = readToken(*file); err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
	}
	token, err := contract.Parse(*text)
	if err != nil {
		return err
	}
	mac, err := nameOf(token, *name)
	if err != nil {
		return err
	}
	log := logr.Discard()
	if *verbose {
		log, _ = newLogger(stderr, true, logs.Text)
	}
	klog.SetLogger(log)
	ctrllog.SetLogger(log)
	waiting := func(fingerprint string) {
		fmt.Fprintf(stderr, "Mac %s waits until a person approves its key %s: kubectl metalfleet enrolment approve %s %s\n", mac, fingerprint, token.Enrolment, mac)
	}
	err = joinOver(ctx, join.Options{Token: token, Mac: mac, StateDir: *state, UserAgent: userAgent(), Log: log, Waiting: waiting})
	if errors.Is(err, join.ErrMember) {
		_, err = fmt.Fprintln(stdout, err)
		return err
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "Mac %s has joined %s; start it with: agent --state %s\n", mac, token.Server, *state)
	return err
}

// nameOf returns the name of this Mac: the token's, or, for an enrolment token, the one that
// was given, or the first label of the host name in lower case.
func nameOf(token contract.Token, given string) (string, error) {
	switch {
	case token.Enrolment == "" && given != "" && given != token.Mac:
		return "", fmt.Errorf("--name is %s, but the token is for Mac %s", given, token.Mac)
	case token.Enrolment == "":
		return token.Mac, nil
	case given != "":
		return given, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("--name is required, because this Mac's host name is unknown: %w", err)
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	if err := contract.CheckMac(host); err != nil {
		return "", fmt.Errorf("--name is required, because the host name is none for a Mac: %w", err)
	}
	return host, nil
}

// joinOver joins while no agent runs over the folder.
func joinOver(ctx context.Context, o join.Options) error {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	lock, err := agent.Lock(o.StateDir)
	if errors.Is(err, agent.ErrRunning) {
		return fmt.Errorf("%w; stop it first (its engines keep running), join, and start it again", err)
	}
	if err != nil {
		return err
	}
	return errors.Join(join.Run(ctx, o), lock.Close())
}

func readToken(path string) (string, error) {
	f := os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return "", err
		}
		defer f.Close()
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenBytes))
	return string(b), err
}
