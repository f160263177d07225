// Package selftest checks that a backend computes correctly on this machine. It
// is the command engine selftest, for Macs of a new kind, where neither a
// compiler nor the repository is present.
//
// It is a compact suite without package testing: it compares each operation and
// number format with plain float64 oracles, small random models with ref, and
// it checks memory, errors, threads and two speeds. Every result names its
// tolerance. Each check gets its own backend; an error or a panic fails that
// check only. The suite reads no model and uses no network. The full
// conformance suite of backends is tensortest; this one checks what may differ
// between machines.
//
// Start reading at Run, then the table in checks.go.
package selftest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// ErrFailed means that a check failed.
var ErrFailed = errors.New("self-test failed")

// Options of a run.
type Options struct {
	// Open returns a new back end for each check; Run attaches and closes it.
	Open func() (tensor.Backend, error)
	// Began and Done are called for each check and its result at once: a crash
	// of the process happened in the check that began last.
	Began func(name string)
	Done  func(Result)
	// Only, if set, chooses checks by name.
	Only func(name string) bool
}

// Result is the result of one check.
type Result struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Value is a figure in Unit; it may be Limit at most, unless that is 0.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Limit float64 `json:"limit,omitempty"`
	// Note explains the figure, Error is the reason of a failure.
	Note  string `json:"note,omitempty"`
	Error string `json:"error,omitempty"`
}

// framework is the interface of backends that call a framework, in addition to
// tensor.Backend.
type framework interface {
	// About describes the framework and its device.
	About() (map[string]string, error)
	// Provoke makes the framework throw, and returns the resulting error.
	Provoke() error
}

// About describes a back end as names and values.
func About(open func() (tensor.Backend, error)) (facts map[string]string, err error) {
	b, err := open()
	if err != nil {
		return nil, err
	}
	facts = map[string]string{}
	if err := b.Attach(); err != nil {
		return nil, errors.Join(fmt.Errorf("attach to %s: %w", b.Name(), err), b.Close())
	}
	if f, ok := b.(framework); ok {
		if facts, err = f.About(); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	facts["backend"] = b.Name()
	return facts, b.Close()
}

// Run runs every check on the calling goroutine and returns all results;
// ErrFailed if one of them is not good. Other errors are those of About and of
// ctx.
func Run(ctx context.Context, o Options) ([]Result, error) {
	about, err := About(o.Open)
	if err != nil {
		return nil, err
	}
	var results []Result
	failed := 0
	for _, c := range checks(about) {
		if o.Only != nil && !o.Only(c.name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return results, err
		}
		if o.Began != nil {
			o.Began(c.name)
		}
		x := &bench{ctx: ctx, open: o.Open, tolerance: toleranceOf(about)}
		r := x.result(c)
		if o.Done != nil {
			o.Done(r)
		}
		if results = append(results, r); !r.OK {
			failed++
		}
	}
	if failed > 0 {
		return results, fmt.Errorf("%w: %d of %d checks", ErrFailed, failed, len(results))
	}
	return results, nil
}

// result runs one check.
func (x *bench) result(c check) (r Result) {
	x.Name = c.name
	defer func() {
		if p := recover(); p != nil {
			x.fail(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
		r = x.Result
		if r.Limit > 0 && !(r.Value <= r.Limit) && r.Error == "" {
			r.Error = fmt.Sprintf("%.3g %s, want at most %.3g", r.Value, r.Unit, r.Limit)
		}
		r.OK = r.Error == ""
	}()
	c.run(x)
	x.stop()
	return
}

// check is one line of the self-test.
type check struct {
	name string
	run  func(x *bench)
}

// checks are all of them, for a back end that says this of itself.
func checks(about map[string]string) []check {
	var out []check
	for _, m := range modes() {
		out = append(out, m.checks()...)
	}
	calls := []check{{"threads", threads}}
	if about["version"] != "" {
		calls = append(calls, check{"exceptions", exceptions})
	}
	return slices.Concat(out, models(), memoryChecks(), calls, speeds())
}
