package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/weights"
)

// footprintOutput is what footprint prints as JSON. All figures are estimates,
// in bytes.
type footprintOutput struct {
	Estimate    bool   `json:"estimate"` // always true: nothing was measured
	Backend     string `json:"backend"`  // "largest" where none was named
	Context     int64  `json:"contextTokens"`
	Sequences   int64  `json:"sequences"`
	CacheTokens int64  `json:"cacheTokens"`
	PrefixCache int64  `json:"prefixCacheBytes"`
	Weights     int64  `json:"weightsBytes"`
	KV          int64  `json:"kvBytes"`
	Transient   int64  `json:"transientBytes"`
	Pooled      int64  `json:"pooledBytes"`
	Overhead    int64  `json:"overheadBytes"`
	Total       int64  `json:"totalBytes"`
	// Limit is the ceiling that an agent would set for the process, Cache what
	// of it the back end may keep pooled.
	Limit int64 `json:"limitBytes"`
	Cache int64 `json:"cacheLimitBytes"`
}

// estimate prints the memory that a model would take, without loading it.
func estimate(_ context.Context, e *env, args []string) error {
	f := e.flags("footprint")
	modelPath := f.String("model", "", modelHelp)
	var c footprint.Context
	f.Int64Var(&c.Tokens, "context", 0, "maximum context length in tokens, prompt and response together; 0 means the model's maximum")
	f.Int64Var(&c.Sequences, "sequences", 1, "maximum number of concurrent requests")
	f.Int64Var(&c.CacheTokens, "cache-tokens", 0, "tokens of KV cache that all requests share; 0 means context times sequences")
	f.Int64Var(&c.PrefixCache, "cache-memory", 0, "bytes of the in-memory prefix cache; 0 means none")
	f.StringVar(&c.Backend, "backend", "", "back end to estimate for: "+strings.Join(footprint.Backends(), ", ")+"; empty means the one that needs the most memory")
	asJSON := f.Bool("json", false, "print one JSON object")
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	file, err := weights.Open(*modelPath)
	if err != nil {
		return err
	}
	defer file.Close()
	facts, err := file.Facts()
	if err != nil {
		return err
	}
	out, err := estimated(facts, c)
	if err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(e.stdout).Encode(out)
	}
	return out.print(e.stdout)
}

// estimated fills the defaults, as serving does, and computes.
func estimated(facts model.Facts, c footprint.Context) (footprintOutput, error) {
	if c.Tokens == 0 {
		c.Tokens = facts.ContextTokens
	}
	if c.Tokens > facts.ContextTokens {
		return footprintOutput{}, usagef("--context is %d, but the model supports %d tokens", c.Tokens, facts.ContextTokens)
	}
	if c.Sequences < 1 || c.Sequences > 1<<20 { // so that the product fits
		return footprintOutput{}, usagef("--sequences is %d, want 1 to %d", c.Sequences, 1<<20)
	}
	if c.CacheTokens == 0 {
		c.CacheTokens = c.Tokens * c.Sequences
	}
	terms, err := footprint.Estimate(facts, c)
	if errors.Is(err, model.ErrIncomplete) {
		return footprintOutput{}, fmt.Errorf("%w: %w", weights.ErrInvalid, err)
	}
	if err != nil {
		return footprintOutput{}, usageError{err}
	}
	out := footprintOutput{
		Estimate: true, Backend: c.Backend, Context: c.Tokens, Sequences: c.Sequences, CacheTokens: c.CacheTokens,
		Weights: terms.Weights, KV: terms.KV, Transient: terms.Transient, Pooled: terms.Pooled, PrefixCache: terms.PrefixCache, Overhead: terms.Overhead, Total: terms.Total(),
		Limit: footprint.EngineLimit(terms.Total()),
	}
	out.Cache = footprint.PooledLimit(out.Limit)
	if out.Backend == "" {
		out.Backend = "largest"
	}
	return out, nil
}

func (o footprintOutput) print(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(to, "estimate for %d tokens, %d sequences, %d cache tokens; back end: %s\n", o.Context, o.Sequences, o.CacheTokens, o.Backend)
	for _, line := range []struct {
		name  string
		bytes int64
	}{
		{"weights", o.Weights}, {"KV cache", o.KV}, {"step buffers", o.Transient}, {"pooled", o.Pooled}, {"prefix cache", o.PrefixCache}, {"process", o.Overhead},
		{"total", o.Total}, {"process limit", o.Limit},
	} {
		fmt.Fprintf(w, "%s\t%d bytes\t%s\t\n", line.name, line.bytes, rounded(line.bytes))
	}
	return w.Flush()
}

// rounded writes bytes for people.
func rounded(n int64) string {
	if n >= footprint.GiB {
		return fmt.Sprintf("%.2f GiB", float64(n)/float64(footprint.GiB))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/float64(footprint.MiB))
}
