package history

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// World is a Mac with an agent's pool on it, and clients. It lives inside one
// bubble of testing/synctest; Do is not for concurrent use.
type World struct {
	dir   string
	begun time.Time
	mac   *mac
	twin  *enginetest.Twin
	procs *watched
	disk  disk
	jump  time.Duration // of the wall clock, since the last agent started
	diary diary

	pool   *pool.Pool
	ledger *memory.Ledger
	stop   context.CancelFunc // nil while no agent runs
	ended  chan struct{}

	generation int64
	policy     v1alpha1.MacMemoryPolicy

	mu       sync.Mutex // guards what follows
	orders   map[string]v1alpha1.Assignment
	epochs   map[string]int64 // the newest of each replica
	drains   map[string]int32 // the longest that each replica was ordered with, in seconds
	models   map[string]behaviour
	requests map[string]*request
	tally    tally
}

// New makes a world without a Mac; dir is an empty folder of a short path.
func New(dir string) *World {
	w := &World{
		dir: dir, begun: time.Now(), orders: map[string]v1alpha1.Assignment{}, epochs: map[string]int64{}, drains: map[string]int32{},
		models: map[string]behaviour{}, requests: map[string]*request{}, tally: newTally(),
	}
	w.diary.begun = w.begun
	scripted := probe.NewScripted(probe.Host{})
	w.twin = enginetest.NewTwin(scripted)
	w.twin.SetApart()
	w.mac = newMac(scripted, w.twin)
	w.procs = &watched{Twin: w.twin, world: w}
	return w
}

// Close ends everything that the bubble holds.
func (w *World) Close() {
	w.hangUpAll()
	w.halt()
	w.twin.KillAll()
	synctest.Wait()
}

// boot starts an agent's pool over what lies on disk and on the Mac.
func (w *World) boot() error {
	if err := w.shift(); err != nil {
		return err
	}
	j, err := journal.Open(w.dir, time.Now())
	if err != nil {
		return err
	}
	w.ledger = memory.NewLedger()
	w.pool, err = pool.New(pool.Config{
		Log: logr.New(&logs{diary: &w.diary, world: w}), Journal: books{j, &w.disk}, Ledger: w.ledger, Probe: w.mac, Weights: &weights{w},
		Engines: w.procs, StateDir: w.dir, Reclaimed: w.reclaimed,
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.tally.again(time.Now())
	w.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	w.pool.Adopt(ctx)
	w.stop, w.ended = stop, make(chan struct{})
	go func(p *pool.Pool, ended chan struct{}) {
		defer close(ended)
		_ = p.Run(ctx)
	}(w.pool, w.ended)
	return nil
}

// halt ends the pool and leaves the engines.
func (w *World) halt() {
	if w.stop != nil {
		w.stop()
		<-w.ended
		w.stop = nil
	}
}

// apply gives the agent all orders, as they are now.
func (w *World) apply() {
	w.generation++
	o := journal.Desired{Generation: w.generation, Memory: w.policy}
	for _, a := range w.orders {
		o.Assignments = append(o.Assignments, a)
	}
	slices.SortFunc(o.Assignments, func(a, b v1alpha1.Assignment) int { return strings.Compare(a.ReplicaUID, b.ReplicaUID) })
	if w.stop != nil {
		w.pool.Apply(o)
	}
}

// path of a model's file; nothing reads it.
func (w *World) path(name string) string { return filepath.Join(w.dir, "models", name) }

// settle waits until all events of this instant have happened.
func (w *World) settle() { synctest.Wait() }

// pass lets time pass.
func (w *World) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// diary are the lines that were not printed yet. Safe for concurrent use.
type diary struct {
	begun time.Time
	quiet bool // set before any output is written: lines are not kept

	mu    sync.Mutex // guards lines
	lines []line
}

type line struct {
	at    time.Duration
	name  string
	whom  string // the name, or what several have in common
	text  string
	times int
}

func (d *diary) write(whom, format string, args ...any) {
	if d.quiet {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line{time.Since(d.begun), whom, whom, fmt.Sprintf(format, args...), 1})
}

// take returns what was written since the last time, in order; what one name
// says again and again is one line.
func (d *diary) take() string {
	d.mu.Lock()
	lines := d.lines
	d.lines = nil
	d.mu.Unlock()
	slices.SortStableFunc(lines, func(a, b line) int {
		if a, b := a.at.Truncate(instant), b.at.Truncate(instant); a != b {
			return cmp.Compare(a, b)
		}
		if repeats(a.text) && repeats(b.text) && a.whom == b.whom {
			return strings.Compare(a.text, b.text) // polls and calls fail side by side
		}
		return cmp.Or(compareNames(a.whom, b.whom), rank(a.text)-rank(b.text))
	})
	var b strings.Builder
	for _, l := range together(lines) {
		fmt.Fprintf(&b, "%s %s: %s", clock(l.at), l.whom, l.text)
		if l.times > 1 {
			fmt.Fprintf(&b, " (%d times)", l.times)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// instant is what counts as one: engines that do something at the same time are
// less than that apart, in the same order in every run.
const instant = time.Millisecond

// together makes one line of an error that polls find again, and of what
// happens to all requests of one command in one instant.
func together(lines []line) (out []line) {
	for _, l := range lines {
		if repeats(l.text) {
			if i := slices.IndexFunc(out, func(o line) bool { return o.whom == l.whom && o.text == l.text }); i >= 0 {
				out[i].times++
				continue
			}
		}
		if l.whom = strings.TrimRight(l.whom, "0123456789"); !strings.HasSuffix(l.whom, ".") {
			l.whom = l.name
		} else if n := len(out); n > 0 && out[n-1].at.Truncate(instant) == l.at.Truncate(instant) && out[n-1].text == l.text && out[n-1].whom == l.whom+"N" {
			out[n-1].times++
			continue
		} else {
			l.whom += "N"
		}
		out = append(out, l)
	}
	return out
}

// rank puts what is noted of one engine in one instant, by several goroutines,
// in the order in which it happened.
func rank(text string) int {
	for i, prefix := range [][]string{
		{"Unloading engine", "Aborting requests"}, {"Trim:", "Abort:", "Shutdown:"}, {"Engine does not exit", "signal:"}, {"reclaimed:"}, {"started"},
	} {
		for _, p := range prefix {
			if strings.HasPrefix(text, p) {
				return i
			}
		}
	}
	return 9
}

// repeats reports whether a line is printed once: errors, which every poll finds
// again.
func repeats(text string) bool { return strings.HasPrefix(text, "error: ") }

// compareNames puts r2 before r10.
func compareNames(a, b string) int {
	if len(a) != len(b) && strings.TrimRight(a, "0123456789") == strings.TrimRight(b, "0123456789") {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// clock writes a time since the beginning, such as 75.5s.
func clock(d time.Duration) string {
	return fmt.Sprintf("%.1fs", d.Truncate(instant).Seconds())
}
