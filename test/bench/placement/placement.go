// Package placement measures how long placement takes: one pass over a large
// fleet, and the way from a manifest to a model that serves.
//
// It owns the fleet that passes are timed on, and the bounds. It refuses a pass
// that places fewer replicas than it has to.
//
// Start reading at Subject.
package placement

import (
	"context"
	"fmt"
	"os"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// Subject is `bench placement`.
func Subject() scenario.Subject {
	return scenario.Subject{Name: "placement", Help: "a pass over 1,000 Macs, and the time from apply to Ready", Scenarios: []scenario.Scenario{passScenario, readyScenario}}
}

const (
	macs     = 1000
	replicas = 10_000
	// passes of each kind in a round, timed one by one.
	passes   = 300
	mostPass = 50.0 // ms
)

var passScenario = scenario.Scenario{
	Name: "pass", Title: "What a placement pass costs", Rounds: 5, Run: runPasses,
	About: fmt.Sprintf(`1,000 Macs of five sizes in 20 rooms and 10,000 replicas of 250 deployments: a fifth on demand, a quarter spread over rooms,
a quarter with an affinity, three priorities. A pass reads all of them into a new snapshot, sorts the unplaced replicas, picks Macs and
assumes the picks, as the operator does, without an API server. Each round times %d passes of each kind. Replicas that no Mac can hold are
the most expensive: every Mac gets a reason, and for a high priority every Mac is searched for victims.`, passes),
}

// kind of a pass: the replicas that are unplaced when it begins.
type kind struct {
	name     string
	unplaced []v1alpha1.ModelReplica
	// placed is how many of them have to find a Mac.
	placed int
}

func kinds(f *fleet) []kind {
	return []kind{
		{"1 replica", f.more(1, 8), 1},
		{"100 replicas of 20 deployments", f.more(100, 8), 100},
		{"100 replicas that no Mac can hold", f.more(100, 511), 0},
	}
}

func runPasses(ctx context.Context, e *scenario.Env, r *report.Report) error {
	f := newFleet(1)
	groups := []scenario.Group{scenario.One("empty", f.fill)}
	var figures []scenario.Figure
	for _, k := range kinds(f) {
		groups = append(groups, scenario.One(k.name, func(ctx context.Context) (scenario.Values, error) { return f.time(ctx, k) }))
		figures = append(figures, passFigures(k.name)...)
	}
	figures = append(figures, scenario.Figure{Name: "10,000 replicas in an empty fleet, one pass", Unit: "ms", Of: "empty/took"})
	return e.Measure(ctx, r, 0, figures, groups...)
}

func passFigures(kind string) []scenario.Figure {
	return []scenario.Figure{
		{Name: kind + ": p99", Unit: "ms", Of: kind + "/p99", Bound: report.Under(mostPass)},
		{Name: kind + ": median", Unit: "ms", Of: kind + "/median"},
		{Name: kind + ": processor time, mean", Unit: "ms", Of: kind + "/cpu"},
	}
}

// fill places all replicas in one pass.
func (f *fleet) fill(context.Context) (scenario.Values, error) {
	for i := range f.all {
		f.all[i].Spec.NodeName = ""
	}
	began := time.Now()
	n := f.pass(nil, func(r *v1alpha1.ModelReplica, mac string) { r.Spec.NodeName = mac })
	if n != replicas {
		return nil, fmt.Errorf("a fleet with room placed %d of %d", n, replicas)
	}
	return scenario.Values{"took": traffic.Milliseconds(time.Since(began))}, nil
}

// time runs passes of one kind. Their processor time includes garbage
// collections: it is what a pass costs on a busy machine.
func (f *fleet) time(ctx context.Context, k kind) (scenario.Values, error) {
	took := make([]time.Duration, 0, passes)
	before, err := proc.CPUTime(os.Getpid())
	if err != nil {
		return nil, err
	}
	for range passes {
		began := time.Now()
		n := f.pass(k.unplaced, func(*v1alpha1.ModelReplica, string) {})
		took = append(took, time.Since(began))
		if n != k.placed {
			return nil, fmt.Errorf("%d replicas were placed, want %d", n, k.placed)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	after, err := proc.CPUTime(os.Getpid())
	return scenario.Values{"median": traffic.Milliseconds(traffic.Percentile(took, 50)), "p99": traffic.Milliseconds(traffic.Percentile(took, 99)),
		"cpu": traffic.Milliseconds((after - before) / passes)}, err
}

// pass does what the operator's reconciler does, without writes. The extra
// replicas are unplaced in addition to those of the fleet.
func (f *fleet) pass(extra []v1alpha1.ModelReplica, bind func(*v1alpha1.ModelReplica, string)) int {
	s := plan.NewSnapshot(f.macs, f.all, f.now)
	var unplaced []*v1alpha1.ModelReplica
	for _, list := range [][]v1alpha1.ModelReplica{f.all, extra} {
		for i := range list {
			if list[i].Spec.NodeName == "" {
				unplaced = append(unplaced, &list[i])
			}
		}
	}
	plan.Sort(unplaced)
	n := 0
	for _, r := range unplaced {
		if d := s.Pick(r); d.Mac != "" {
			s.Assume(r, d.Mac)
			bind(r, d.Mac)
			n++
		}
	}
	return n
}
