package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// record is the way from helm install to the first token, as this run took it,
// and what a user saw on the way. docs/install.md is written from it.
type record struct {
	Machine report.Machine `json:"machine"`
	Steps   []mark         `json:"steps"`

	began    time.Time
	pictures map[string]string // by the name of their place in the page
}

// mark is one step of the way.
type mark struct {
	Step string `json:"step"`
	// Seconds from the start of helm install to the end of the step.
	Seconds float64 `json:"seconds"`
}

// begin starts the clock once: a second installation is not on the way.
func (r *record) begin() {
	if r.began.IsZero() {
		r.began = time.Now()
		r.Machine = report.ThisMachine()
		r.pictures = map[string]string{}
	}
}

// mark says that a step has ended; the first time alone counts.
func (r *record) mark(step string, at time.Time) {
	for _, m := range r.Steps {
		if m.Step == step {
			return
		}
	}
	r.Steps = append(r.Steps, mark{step, at.Sub(r.began).Seconds()})
}

// picture keeps what a command of the plugin prints.
func (r *record) picture(ctx context.Context, s *story, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.o.root, "bin", "kubectl-metalfleet"), append(args, "--kubeconfig="+s.cluster.Kubeconfig)...)
	b, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl metalfleet %s: %w: %s", strings.Join(args, " "), err, b)
	}
	r.pictures[name] = "```\n$ kubectl metalfleet " + strings.Join(args, " ") + "\n" + string(b) + "```"
	return nil
}

// table is the steps as a page shows them.
func (r *record) table() string {
	var b strings.Builder
	b.WriteString("| step | seconds since `helm install` |\n|---|---|\n")
	for _, m := range r.Steps {
		fmt.Fprintf(&b, "| %s | %.1f |\n", m.Step, m.Seconds)
	}
	fmt.Fprintf(&b, "\nOne run on one machine: %s.", r.Machine)
	return b.String()
}

// write puts the record into docs/bench/install.json and its pieces into their
// places of docs/install.md.
func (r *record) write(docs string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, "bench", "install.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	page := filepath.Join(docs, "install.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	pieces := map[string]string{"steps": r.table()}
	for name, p := range r.pictures {
		pieces[name] = p
	}
	filled, err := fill(string(text), pieces)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(filled), 0o644)
}

// fill replaces what stands between "<!-- from the run: NAME -->" and
// "<!-- end -->". A place that the page lacks is an error, and so is a place
// that nothing fills: a page that is only half written tells old figures.
func fill(text string, pieces map[string]string) (string, error) {
	const begin, end = "<!-- from the run: ", "<!-- end -->"
	var out strings.Builder
	filled := map[string]bool{}
	for {
		before, rest, found := strings.Cut(text, begin)
		out.WriteString(before)
		if !found {
			break
		}
		name, rest, _ := strings.Cut(rest, " -->")
		_, after, closed := strings.Cut(rest, end)
		piece, known := pieces[name]
		if !closed || !known {
			return "", fmt.Errorf("the place %q has no end, or nothing fills it", name)
		}
		filled[name] = true
		fmt.Fprintf(&out, "%s%s -->\n%s\n%s", begin, name, piece, end)
		text = after
	}
	var errs []error
	for name := range pieces {
		if !filled[name] {
			errs = append(errs, fmt.Errorf("there is no place for %q", name))
		}
	}
	return out.String(), errors.Join(errs...)
}
