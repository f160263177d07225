// Package agents shows that coding agents, pinned and as they are on package
// indexes, work with a gateway: each fixes a failing test in a small repository.
//
// programs.go lists them and what is expected of each; run has a script for each
// that starts it. Their model is a template (agent.jinja) that plays a competent
// agent with the tools that a program offers; the model repeats what the template
// dictates (tinymodel.Dictation). Everything else is real: the template engine,
// tokens, engine, parser of calls, agent and gateway.
//
// Each program is interrupted while its first answer is streamed, resumes the same
// session to fix the test, and resumes it again to report what it changed. A
// recorder between program and gateway keeps the requests and responses, so that
// tool calls, usage, and ignored fields are compared with what is expected.
//
// A program starts with an empty environment, its own home folder and a bounded
// time. The test runs in a sandbox, which has no network but the loopback.
//
// The test carries the build tag oracle (make test-agents; Linux, root). Start
// reading at play.
package agents

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
)

// options are what the test's flags select.
type options struct {
	root, installed, only string
	envs                  []string
	show                  bool
}

// contextTokens has room for the prompts of coding agents, written with the few
// merges of a tiny vocabulary.
const contextTokens = 100_000

//go:embed agent.jinja
var template string

// The models' names: they differ in how they write calls.
const (
	hermes = "agent"
	xml    = "agent-xml"
)

// templateOf is the template of a model.
func templateOf(name string) string {
	return fmt.Sprintf("{%%- set xml = %v -%%}\n", name == xml) + template
}

func run(ctx context.Context, o options) (err error) {
	chosen := slices.DeleteFunc(programs(), func(p Program) bool { return !strings.Contains(p.Name, o.only) || !slices.Contains(o.envs, p.Env) })
	if len(chosen) == 0 {
		return fmt.Errorf("no program of %q has a name that contains %q", o.envs, o.only)
	}
	models, err := os.MkdirTemp("", "mf-models-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(models)) }()
	for _, name := range []string{hermes, xml} {
		if err := tinymodel.Write(filepath.Join(models, name+".gguf"), tinymodel.Dictated(name, templateOf(name))); err != nil {
			return err
		}
	}
	began := time.Now()
	options := fleet.Options{Root: o.root, ModelRoot: models, Say: func(step string) { fmt.Println("  ", step) },
		Macs: []fleet.Mac{{Name: "mac-a", Chip: "M4Max", Memory: "64Gi"}}}
	return fleet.With(ctx, options, filepath.Join(o.root, ".run", "agents-failed"), func(ctx context.Context, f *fleet.Fleet) error {
		for _, name := range []string{hermes, xml} {
			if err := f.Deploy(ctx, fleet.Model{Name: name, File: name + ".gguf", MaxTokens: contextTokens, MaxConcurrentRequests: 2}); err != nil {
				return err
			}
		}
		fmt.Printf("   the gateway is ready after %.0f s\n", time.Since(began).Seconds())
		var errs []error
		for _, p := range chosen {
			errs = append(errs, playAt(ctx, o, f.FirstGateway(), p))
		}
		return errors.Join(errs...)
	})
}

// playAt plays a program at a gateway and prints what was seen.
func playAt(ctx context.Context, o options, g *fleet.Gateway, p Program) error {
	r, err := record(g.URL)
	if err != nil {
		return err
	}
	defer r.Close()
	began := time.Now()
	seen, err := play(ctx, o, g, r, p)
	fmt.Printf("   %-28s %5.1f s, requests %v, calls %d, tokens %d in (%d cached) and %d out, ignored %v\n",
		p.Name, time.Since(began).Seconds(), seen.Requests, len(seen.Calls), seen.Input, seen.Cached, seen.Output, seen.Ignored)
	if o.show {
		for _, e := range r.exchanges(0) {
			fmt.Printf("== %s %s %d, ended %v, ignored %v\n%s\n-- \n%s\n", e.Method, e.Path, e.Status, e.Ended, e.Ignored, e.Request, e.Response)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}
