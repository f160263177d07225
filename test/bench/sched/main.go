// Command sched measures what a step costs the scheduler: 64 answers in every
// step, requests that come and end, priorities, prompts beside them, and a
// queue that is never empty. What the heap keeps is looked at before and after a
// million steps.
//
// It owns the traffic, its bounds and the record in docs/bench. No model
// computes; it refuses nothing.
//
//	go run ./test/bench/sched        (make bench-sched)
//
// Start reading at measure.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
	"metalfleet.dev/metalfleet/test/bench/report"
)

const (
	rows = 64
	// steps of one run, which are timed one by one.
	steps = 200_000
	// most is the bound of the issue.
	most = 50.0
	// mostGrowth is what the heap may grow by in all runs: a list that is never
	// cut would grow by megabytes.
	mostGrowth = 64.0
)

const about = "`make bench-sched`: 64 answers in each step, whose requests end after some 100 tokens and are replaced; 64 more wait; every third has another\n" +
	"priority, and the cache is full, so that the youngest gives way. A step is Admit, the pace's Tokens of Work, Prompts, Plan, Steady, Computed and\n" +
	"Grow for every row, and what the pace is told of how long such a step took (invented).\n" +
	"Each run times 200,000 steps one by one; the heap is looked at after a collection, before the first run and after the last."

func main() {
	out := flag.String("out", filepath.Join("docs", "bench"), "folder for sched.json and sched.md; empty writes none")
	runs := flag.Int("runs", 5, "runs of 200,000 steps")
	flag.Parse()
	if err := run(*runs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench-sched:", err)
		os.Exit(1)
	}
}

func run(runs int, out string) error {
	t, err := newTraffic()
	if err != nil {
		return err
	}
	for range steps / 10 { // until the queue is full and answers are of all ages
		if _, err := t.step(); err != nil {
			return err
		}
	}
	r := report.New("sched", "What a step costs the scheduler", about)
	var median, p99, objects []float64
	before := heap()
	for range runs {
		took, allocated, err := measure(t)
		if err != nil {
			return err
		}
		median, p99, objects = append(median, took[len(took)/2]), append(p99, took[len(took)*99/100]), append(objects, allocated)
	}
	r.Add("a step of 64 rows, median", "us", report.Under(most), median...)
	r.Add("a step of 64 rows, p99", "us", report.Under(most), p99...)
	r.Add("objects allocated by a step", "objects", report.Bound{}, objects...)
	r.Add("growth of the heap in all runs", "KiB", report.AtMost(mostGrowth), (heap()-before)/1024)
	r.Add("preemptions in all runs", "requests", report.AtLeast(1), float64(t.preempted))
	return r.Finish(out)
}

// measure times steps, in microseconds, in order.
func measure(t *traffic) (took []float64, allocated float64, err error) {
	took = make([]float64, 0, steps)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range steps {
		d, err := t.step()
		if err != nil {
			return nil, 0, err
		}
		took = append(took, float64(d.Nanoseconds())/1000)
	}
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	return took, float64(after.Mallocs-before.Mallocs) / steps, nil
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// traffic is a scheduler that always has enough to do.
type traffic struct {
	s         *batch.Scheduler
	pace      batch.Pace
	rng       *rand.Rand
	next      batch.ID
	preempted int
}

func newTraffic() (*traffic, error) {
	s, err := batch.New(batch.Limits{ContextTokens: 4096, CacheTokens: rows * 320, BlockTokens: 64, Sequences: rows + 4, Queue: rows})
	return &traffic{s: s, rng: rand.New(rand.NewPCG(1, 2))}, err
}

// step refills the queue and times one turn of the scheduler.
func (t *traffic) step() (time.Duration, error) {
	for t.s.Waiting() < rows {
		t.next++
		if err := t.s.Submit(batch.Request{ID: t.next, Prompt: 16 + t.rng.IntN(400), Priority: int(t.next % 3)}); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	t.s.Admit()
	step := t.s.Plan(t.s.Prompts(t.pace.Tokens(t.s.Work(), 512))...)
	t.s.Steady(step)
	for _, r := range step.Rows {
		if err := t.s.Computed(r); err != nil {
			return 0, err
		}
		if r.Sample {
			if err := t.s.Grow(r.ID); err != nil {
				return 0, err
			}
		}
	}
	load := step.Load()
	t.pace.Took(load, 10*time.Millisecond+time.Duration(load.Tokens)*100*time.Microsecond)
	took := time.Since(began)
	t.preempted += len(step.Preempted)
	for _, r := range step.Rows {
		if r.Decode() && t.rng.IntN(100) == 0 {
			t.s.Remove(r.ID)
		}
	}
	return took, nil
}
