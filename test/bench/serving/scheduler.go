package serving

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/test/bench/proc"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

const (
	rows = 64
	// steps of a round, timed one by one.
	steps    = 200_000
	mostStep = 50.0 // us
	// mostGrowth of the heap in all rounds, in KiB: a list that is never cut would
	// grow by megabytes.
	mostGrowth = 64.0
)

var schedulerScenario = scenario.Scenario{
	Name: "scheduler", Title: "What a step costs the scheduler", Rounds: 5, Run: runScheduler,
	About: fmt.Sprintf(`%d answers in each step, whose requests end after about 100 tokens and are replaced; %d more wait; every third has another
priority, and the cache is full, so that the youngest is preempted. A step is everything that the scheduler does for it, without a model; the
time that the step took is invented. Each round times %d steps one by one. The heap is measured after a collection, before the first round
and after the last.`, rows, rows, steps),
}

func runScheduler(ctx context.Context, e *scenario.Env, r *report.Report) error {
	w, err := newWork()
	if err != nil {
		return err
	}
	for range steps / 10 { // until the queue is full and answers have all ages
		if _, err := w.step(); err != nil {
			return err
		}
	}
	before := proc.Heap()
	samples, err := scenario.Rounds{Count: e.Rounds, Log: e.Log}.Run(ctx, scenario.One("steps", w.measure))
	if err != nil {
		return err
	}
	samples.Set("all/growth", (proc.Heap()-before)/1024)
	samples.Set("all/preempted", float64(w.preempted))
	samples.Fill(r, schedulerFigures...)
	return nil
}

var schedulerFigures = []scenario.Figure{
	{Name: "a step of 64 rows, median", Unit: "us", Of: "steps/median", Bound: report.Under(mostStep)},
	{Name: "a step of 64 rows, p99", Unit: "us", Of: "steps/p99", Bound: report.Under(mostStep)},
	{Name: "objects allocated by a step", Unit: "objects", Of: "steps/objects"},
	{Name: "growth of the heap in all rounds", Unit: "KiB", Of: "all/growth", Bound: report.AtMost(mostGrowth)},
	{Name: "preemptions in all rounds", Unit: "requests", Of: "all/preempted", Bound: report.AtLeast(1)},
}

// work is a scheduler that always has enough to do.
type work struct {
	s         *batch.Scheduler
	pace      batch.Pace
	rng       *rand.Rand
	next      batch.ID
	preempted int
}

func newWork() (*work, error) {
	s, err := batch.New(batch.Limits{ContextTokens: 4096, CacheTokens: rows * 320, BlockTokens: 64, Sequences: rows + 4, Queue: rows})
	return &work{s: s, rng: rand.New(rand.NewPCG(1, 2))}, err
}

func (w *work) measure(context.Context) (scenario.Values, error) {
	took := make([]time.Duration, 0, steps)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range steps {
		d, err := w.step()
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	runtime.ReadMemStats(&after)
	micros := func(p float64) float64 { return float64(traffic.Percentile(took, p).Nanoseconds()) / 1000 }
	return scenario.Values{"median": micros(50), "p99": micros(99), "objects": float64(after.Mallocs-before.Mallocs) / steps}, nil
}

// step refills the queue and times one iteration of the scheduler.
func (w *work) step() (time.Duration, error) {
	for w.s.Waiting() < rows {
		w.next++
		if err := w.s.Submit(batch.Request{ID: w.next, Prompt: 16 + w.rng.IntN(400), Priority: int(w.next % 3)}); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	w.s.Admit()
	step := w.s.Plan(w.s.ProposeChunks(w.pace.Tokens(w.s.Work(), 512))...)
	w.s.CanPipeline(step)
	for _, r := range step.Rows {
		if err := w.s.Computed(r); err != nil {
			return 0, err
		}
		if r.Sample {
			if err := w.s.Grow(r.ID); err != nil {
				return 0, err
			}
		}
	}
	load := step.Load()
	w.pace.Took(load, 10*time.Millisecond+time.Duration(load.PrefillTokens)*100*time.Microsecond)
	took := time.Since(began)
	w.preempted += len(step.Preempted)
	for _, r := range step.Rows {
		if r.Decode() && w.rng.IntN(100) == 0 {
			w.s.Remove(r.ID)
		}
	}
	return took, nil
}
