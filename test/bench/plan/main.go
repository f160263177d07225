// Command plan measures what a pass of placement costs: a thousand Macs and ten
// thousand replicas are read into a snapshot, and those without a Mac are
// decided upon.
//
// It owns the fleet, its bounds and the record in docs/bench. There is no API
// server and no write; it refuses to call a pass measured that placed less than
// it had to.
//
//	go run ./test/bench/plan        (make bench-plan)
//
// Start reading at measure.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
	"metalfleet.dev/metalfleet/test/bench/report"
)

const (
	macs     = 1000
	replicas = 10_000
	// cycles of one run, which are timed one by one.
	cycles = 300
	// most is the bound of the issue, in milliseconds.
	most = 50.0
)

const about = "`make bench-plan`: 1,000 Macs of five sizes in 20 rooms and 10,000 replicas of 250 deployments: a fifth on demand, a quarter spread over rooms, a\n" +
	"quarter with an affinity, three priorities. A pass reads all of them into a new snapshot, sorts what is open, picks and assumes; nothing is kept from\n" +
	"the pass before, as in the operator. Each run times 300 passes of each kind one by one, after a collection. Replicas that nobody can hold are the dearest:\n" +
	"every Mac gets a reason, and for a high priority every Mac is asked for victims."

func main() {
	out := flag.String("out", filepath.Join("docs", "bench"), "folder for plan.json and plan.md; empty writes none")
	runs := flag.Int("runs", 5, "runs of 300 passes of each kind")
	flag.Parse()
	if err := run(*runs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench-plan:", err)
		os.Exit(1)
	}
}

// kind of a pass: how many replicas have no Mac when it begins.
type kind struct {
	name string
	open []v1alpha1.ModelReplica
	// placed is how many of them must find one.
	placed int
	bound  report.Bound
	p99    []float64
	median []float64
	cpu    []float64
	cpu99  []float64
	kib    []float64
}

func run(runs int, out string) error {
	f := newFleet(1)
	var cold []float64
	for range runs {
		began := time.Now()
		n := f.pass(f.all, nil, func(r *v1alpha1.ModelReplica, mac string) { r.Spec.NodeName = mac })
		cold = append(cold, milliseconds(time.Since(began)))
		if n != replicas {
			return fmt.Errorf("a fleet with room placed %d of %d", n, replicas)
		}
		f.unbind()
	}
	f.pass(f.all, nil, func(r *v1alpha1.ModelReplica, mac string) { r.Spec.NodeName = mac })
	limit := report.Under(most).Of("issue 9")
	kinds := []*kind{
		{name: "1 replica to place beside 10,000", open: f.more(1, 8), placed: 1, bound: limit},
		{name: "100 replicas of 20 deployments to place beside 10,000", open: f.more(100, 8), placed: 100, bound: limit},
		{name: "100 replicas that no Mac has room for", open: f.more(100, 511), bound: limit},
	}
	r := report.New("plan", "What a pass of placement costs", about)
	for range runs {
		for _, k := range kinds {
			if err := measure(f, k); err != nil {
				return err
			}
		}
	}
	for _, k := range kinds {
		r.Add(k.name+": p99", "ms", k.bound, k.p99...)
		r.Add(k.name+": median", "ms", report.Bound{}, k.median...)
		r.Add(k.name+": processor time, mean", "ms", report.Bound{}, k.cpu...)
		r.Add(k.name+": processor time, p99", "ms", report.Bound{}, k.cpu99...)
		r.Add(k.name+": allocated by a pass", "KiB", report.Bound{}, k.kib...)
	}
	r.Add("10,000 replicas to place in an empty fleet, one pass", "ms", report.Bound{}, cold...)
	r.Add("heap that a snapshot keeps", "KiB", report.Bound{}, f.snapshotKiB(runs)...)
	return r.Finish(out)
}

// measure times the passes of one kind.
func measure(f *fleet, k *kind) error {
	took, cost := make([]float64, 0, cycles), make([]float64, 0, cycles)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	first, err := processor()
	if err != nil {
		return err
	}
	worked := first
	for range cycles {
		began := time.Now()
		n := f.pass(f.all, k.open, func(*v1alpha1.ModelReplica, string) {})
		took = append(took, milliseconds(time.Since(began)))
		if n != k.placed {
			return fmt.Errorf("%s: %d were placed, want %d", k.name, n, k.placed)
		}
		now, err := processor()
		if err != nil {
			return err
		}
		cost = append(cost, milliseconds(now-worked))
		worked = now
	}
	k.cpu = append(k.cpu, milliseconds(worked-first)/cycles)
	slices.Sort(cost)
	k.cpu99 = append(k.cpu99, cost[len(cost)*99/100])
	runtime.ReadMemStats(&after)
	slices.Sort(took)
	k.p99, k.median = append(k.p99, took[len(took)*99/100]), append(k.median, took[len(took)/2])
	k.kib = append(k.kib, float64(after.TotalAlloc-before.TotalAlloc)/cycles/1024)
	return nil
}

// processor is the time that the process computed so far, collections included:
// what a pass costs, whoever else is busy.
func processor() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the time of the process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// pass does what the operator's reconciler does, without its writes. The
// replicas of extra are open beside what all holds.
func (f *fleet) pass(all, extra []v1alpha1.ModelReplica, bind func(*v1alpha1.ModelReplica, string)) int {
	s := plan.NewSnapshot(f.macs, all, f.now)
	var open []*v1alpha1.ModelReplica
	for _, list := range [][]v1alpha1.ModelReplica{all, extra} {
		for i := range list {
			if list[i].Spec.NodeName == "" {
				open = append(open, &list[i])
			}
		}
	}
	slices.SortFunc(open, plan.Before)
	n := 0
	for _, r := range open {
		if d := s.Pick(r); d.Mac != "" {
			s.Assume(r, d.Mac)
			bind(r, d.Mac)
			n++
		}
	}
	return n
}

// snapshotKiB is what the heap keeps of a snapshot with its classes.
func (f *fleet) snapshotKiB(runs int) []float64 {
	var out []float64
	for range runs {
		before := heap()
		s := plan.NewSnapshot(f.macs, f.all, f.now)
		open := f.more(100, 8)
		for i := range open {
			s.Pick(&open[i])
		}
		out = append(out, (heap()-before)/1024)
		runtime.KeepAlive(s)
	}
	return out
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
