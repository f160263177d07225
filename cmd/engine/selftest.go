package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/selftest"
	"metalfleet.dev/metalfleet/metal/tensor"
)

// examination is what selftest prints as JSON.
type examination struct {
	Version string            `json:"version"`
	Facts   map[string]string `json:"facts"`
	Checks  []selftest.Result `json:"checks"`
	OK      bool              `json:"ok"`
	Seconds float64           `json:"seconds"`
}

// examine finds out whether this engine computes right on this machine.
func examine(ctx context.Context, e *env, args []string) error {
	f := e.flags("selftest")
	asJSON := f.Bool("json", false, "print one JSON object at the end")
	only := f.String("only", "", "run only the checks whose names contain this text")
	bf := addExactBackend(f)
	if err := parse(f, args); err != nil {
		return err
	}
	began := time.Now()
	open := func() (tensor.Backend, error) { return bf.open() }
	about, err := selftest.About(open)
	if err != nil {
		return backendFault(err)
	}
	out := examination{Version: version, Facts: selftest.Machine()}
	maps.Copy(out.Facts, renamed(about))
	options := selftest.Options{Open: open, Only: func(name string) bool { return strings.Contains(name, *only) }}
	if !*asJSON {
		fmt.Fprintln(e.stdout, "engine", version)
		for _, name := range slices.Sorted(maps.Keys(out.Facts)) {
			fmt.Fprintf(e.stdout, "%-40s %s\n", name, out.Facts[name])
		}
		options.Began = func(name string) { fmt.Fprintf(e.stdout, "%-40s ", name) }
		options.Done = func(r selftest.Result) { fmt.Fprintln(e.stdout, line(r)) }
	}
	if out.Checks, err = selftest.Run(ctx, options); err == nil && len(out.Checks) == 0 {
		return usagef("--only %q matches no check", *only)
	}
	out.OK, out.Seconds = err == nil, time.Since(began).Seconds()
	if *asJSON {
		if err := json.NewEncoder(e.stdout).Encode(out); err != nil {
			return err
		}
	} else if err == nil {
		fmt.Fprintf(e.stdout, "all %d checks passed in %.0f s\n", len(out.Checks), out.Seconds)
	}
	return backendFault(err)
}

// backendFault marks what the back end did wrong, for the exit code.
func backendFault(err error) error {
	var usage usageError
	if err == nil || errors.As(err, &usage) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", engine.ErrBackend, err)
}

// renamed are the facts of a framework, told apart from those of the machine.
func renamed(about map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range about {
		switch name {
		case "backend":
		case "version":
			name = "framework version"
		default:
			name = "device: " + name
		}
		out[name] = value
	}
	return out
}

// line is a result for people.
func line(r selftest.Result) string {
	verdict := "ok    "
	if !r.OK {
		verdict = "FAILED"
	}
	value := fmt.Sprintf("%.3g", r.Value)
	if r.Value == math.Trunc(r.Value) {
		value = fmt.Sprintf("%.0f", r.Value)
	}
	out := fmt.Sprintf("%s %s %s", verdict, value, r.Unit)
	if r.Limit > 0 {
		out += fmt.Sprintf(" (limit %.3g)", r.Limit)
	}
	if r.Note != "" {
		out += "; " + r.Note
	}
	if r.Error != "" {
		out += "; " + r.Error
	}
	return out
}
