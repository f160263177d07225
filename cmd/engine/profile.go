package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/profile"
)

// profileOf is what bench --profile looks at.
type profileOf struct {
	streams, prompt, tokens int
	asJSON                  bool
}

// phase is one kind of step, and what its operations take of it.
type phase struct {
	Backend string `json:"backend"`
	// Phase is prefill or decode. A step has Rows rows; each sequence has at
	// least Context tokens of context.
	Phase   string `json:"phase"`
	Rows    int    `json:"rows"`
	Context int    `json:"contextTokens"`
	// Milliseconds is the duration of a step without profiling, and with
	// profiling, which waits for each operation.
	Milliseconds float64          `json:"milliseconds"`
	Measured     float64          `json:"measuredMilliseconds"`
	Operations   []operationShare `json:"operations"`
}

// operationShare is what the calls of one operation take of one step.
type operationShare struct {
	Name         string  `json:"name"`
	Calls        int64   `json:"calls"`
	Milliseconds float64 `json:"milliseconds"`
	// Share of the time of all operations.
	Share float64 `json:"share"`
	Bytes int64   `json:"bytes"`
}

// plainRuns is the number of runs of a chunk without profiling, of which the
// median is reported.
const plainRuns = 3

// benchProfile looks into one chunk of a prompt and into a step of decoding.
func benchProfile(ctx context.Context, e *env, path string, bf backendFlags, of profileOf) error {
	inner, err := bf.open()
	if err != nil {
		return err
	}
	p := profile.New(inner, footprint.KernelsOf(inner.Name()).ElementBytes)
	s, err := engine.OpenSession(ctx, path, p)
	if err != nil {
		return err
	}
	defer s.Close()
	prefill, err := profilePrefill(ctx, s, p, of)
	if err != nil {
		return err
	}
	decode, err := profileDecode(ctx, s, p, of)
	if err != nil {
		return err
	}
	if of.asJSON {
		return json.NewEncoder(e.stdout).Encode([]phase{prefill, decode})
	}
	for _, one := range []phase{prefill, decode} {
		if err := one.print(e.stdout); err != nil {
			return err
		}
	}
	return nil
}

// arbitrary tokens, as bench computes them.
func arbitrary(s *engine.Session, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32((i*7919 + 13) % s.Vocabulary())
	}
	return ids
}

// profilePrefill computes the first chunk of a prompt again and again, the last
// time under measurement.
func profilePrefill(ctx context.Context, s *engine.Session, p *profile.Backend, of profileOf) (phase, error) {
	ids := arbitrary(s, min(of.prompt, s.Chunk()))
	out := phase{Backend: s.Backend(), Phase: "prefill", Rows: len(ids)}
	chunk := func() (time.Duration, error) {
		began := time.Now()
		_, err := s.Evaluate(ctx, ids)
		return time.Since(began), err
	}
	var plain []time.Duration
	for i := range plainRuns + 1 { // the first use of a kernel may compile it
		took, err := chunk()
		if err != nil {
			return out, err
		}
		if i > 0 {
			plain = append(plain, took)
		}
	}
	p.Measure(true)
	took, err := chunk()
	out.Milliseconds, out.Measured, out.Operations = milliseconds(median(plain)), milliseconds(took), shares(p, 1)
	p.Measure(false)
	return out, err
}

// profileDecode decodes with several streams after a prompt, first without
// profiling.
func profileDecode(ctx context.Context, s *engine.Session, p *profile.Backend, of profileOf) (phase, error) {
	out := phase{Backend: s.Backend(), Phase: "decode", Rows: of.streams, Context: of.prompt}
	ids, first := make([]int64, of.streams), make([]int32, of.streams)
	for i := range ids {
		ids[i] = s.NewRequest()
		defer s.Drop(ids[i])
		if _, err := s.Extend(ctx, ids[i], arbitrary(s, of.prompt)); err != nil {
			return out, err
		}
	}
	plain, err := s.Continue(ctx, ids, first, of.tokens+warmSteps)
	if err != nil {
		return out, err
	}
	p.Measure(true)
	measured, err := s.Continue(ctx, ids, first, of.tokens)
	if err != nil {
		return out, err
	}
	out.Milliseconds, out.Measured, out.Operations = milliseconds(median(plain.Took[warmSteps:])), milliseconds(median(measured.Took)), shares(p, of.tokens)
	p.Measure(false)
	return out, nil
}

// shares are the times of operations, divided by the number of steps.
func shares(p *profile.Backend, steps int) []operationShare {
	var all time.Duration
	for _, o := range p.Operations() {
		all += o.Time
	}
	var out []operationShare
	for _, o := range p.Operations() {
		out = append(out, operationShare{
			Name: o.Name, Calls: o.Calls / int64(steps), Milliseconds: milliseconds(o.Time) / float64(steps),
			Share: float64(o.Time) / float64(max(all, 1)), Bytes: o.Bytes / int64(steps),
		})
	}
	return out
}

func (p phase) print(to io.Writer) error {
	fmt.Fprintf(to, "%s on %s: rows %d, context of at least %d tokens, %.2f ms per step (%.2f ms while profiling)\n", p.Phase, p.Backend, p.Rows, p.Context, p.Milliseconds, p.Measured)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "operation\tcalls\tms\tshare\tMB\tGB/s\t")
	for _, o := range p.Operations {
		fmt.Fprintf(w, "%s\t%d\t%.3f\t%.1f%%\t%.2f\t%.2f\t\n", o.Name, o.Calls, o.Milliseconds, 100*o.Share, float64(o.Bytes)/1e6, float64(o.Bytes)/1e6/max(o.Milliseconds, 1e-6))
	}
	return w.Flush()
}
