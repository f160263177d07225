package fuzzapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// documents, each with the phases that are run and the share of the time that they
// get. Where a phase is to cover each word of its schemas, the time has to be long
// enough for the minutes that making its requests takes.
var documents = []struct {
	name, phases string
	share        float64
	covered      time.Duration
}{
	{"openai", "examples,fuzzing", 0.45, 15 * time.Minute},
	{"openai", "stateful", 0.15, 0},
	{"anthropic", "examples,fuzzing", 0.25, 30 * time.Second},
	{"rerank", "examples,fuzzing", 0.15, 20 * time.Second},
}

// checks of schemathesis, and those of hooks.py. ensure_resource_availability is left
// out: a response with "store": false is rightly not found, and the check cannot
// distinguish it; agent/serve tests that stored responses are found.
const checks = "status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance," +
	"use_after_free,promised,in_time,named,whole_stream"

// overrun is how much longer than it was given a run may take: one answer that
// takes as long as it may, and the shrinking of what was found.
const overrun = 3 * time.Minute

// schemathesis asks all documents of one door, one after the other.
func (f *fuzz) schemathesis(ctx context.Context, d door) error {
	var errs []error
	for _, doc := range documents {
		length := time.Duration(doc.share * float64(f.options.length))
		phases := doc.phases
		if doc.covered > 0 && length >= doc.covered {
			phases += ",coverage"
		}
		err := f.document(ctx, d, doc.name, phases, length)
		for range 2 { // on a busy machine making the first requests may take all the time
			if !errors.Is(err, errTooFew) {
				break
			}
			length *= 3
			err = f.document(ctx, d, doc.name, phases, length)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (f *fuzz) document(ctx context.Context, d door, name, phases string, length time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, length+overrun, fmt.Errorf("schemathesis has not ended %s after its time", overrun))
	defer cancel()
	here := filepath.Join(f.options.root, "test", "oracle", "fuzzapi")
	counts := filepath.Join(f.Dir(), fmt.Sprintf("tally-%s-%s-%s.json", d.name, name, phases))
	cmd := exec.CommandContext(ctx, f.options.schemathesis, "--config-file", filepath.Join(here, "schemathesis.toml"), "run", filepath.Join(f.options.root, "api", "openapi", name+".json"), "--url", d.url,
		"--seed", fmt.Sprint(f.options.seed), "--max-time", fmt.Sprint(max(1, int(length.Seconds()))), "--checks", checks, "--phases", phases,
		"--continue-on-failure", "--max-failures", "20", "--generation-database", "none", "--suppress-health-check", "all", "--warnings", "off",
		"--request-timeout", "90", "--output-sanitize", "false", "--output-truncate", "false", "--no-color")
	if phases == "stateful" { // else names of models, which are cheap to make, take all the time
		cmd.Args = append(cmd.Args, "--include-path-regex", "/responses")
	}
	cmd.Dir = f.Dir() // it leaves a folder behind
	cmd.Env = append(os.Environ(), "SCHEMATHESIS_HOOKS="+filepath.Join(here, "hooks.py"), "FUZZAPI_TALLY="+counts, "PYTHONDONTWRITEBYTECODE=1")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	log := filepath.Join(f.LogDir(), fmt.Sprintf("schemathesis-%s-%s-%s.log", d.name, name, phases))
	if werr := os.WriteFile(log, said.Bytes(), 0o600); werr != nil {
		return errors.Join(err, werr)
	}
	t, terr := readTally(counts, phases)
	if terr == nil {
		fmt.Printf("   %s, %s, %s: %s\n", d.name, name, phases, t)
	}
	if err != nil {
		return fmt.Errorf("schemathesis, %s at the %s: %w (%v)\n%s", name, d.name, err, context.Cause(ctx), said.String())
	}
	return terr
}

// tally is what hooks.py counts.
type tally struct {
	Statuses    map[string]int `json:"statuses"`
	Cases       int            `json:"cases"`
	Streams     int            `json:"streams"`
	Slowest     float64        `json:"slowest"`
	SlowestPath string         `json:"slowest_path"`
}

// errTooFew is a run that proves nothing: no request was answered, or none refused.
var errTooFew = errors.New("no request was answered, or none refused")

// readTally wants answers, and of requests that are wrong on purpose refusals too.
func readTally(path, phases string) (t tally, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &t)
	}
	switch {
	case err != nil:
		return t, fmt.Errorf("what schemathesis counted: %w", err)
	case t.Statuses["200"] == 0, strings.Contains(phases, "fuzzing") && t.Statuses["400"] == 0:
		return t, fmt.Errorf("%w: %v", errTooFew, t.Statuses)
	}
	return t, nil
}

func (t tally) String() string {
	var parts []string
	for _, s := range slices.Sorted(maps.Keys(t.Statuses)) {
		parts = append(parts, fmt.Sprintf("%s %d", s, t.Statuses[s]))
	}
	return fmt.Sprintf("%d requests (%s), %d streams, the slowest %.1f s (%s)", t.Cases, strings.Join(parts, ", "), t.Streams, t.Slowest, t.SlowestPath)
}
