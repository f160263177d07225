package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Pauses before a failed inspection is looked at again, which grow: what may pass soon is
// tried soon, what only a person can mend now and then. A file of this Mac costs nothing, so
// that one that is copied is found after firstRefused.
const (
	firstPause   = time.Second
	lastPause    = time.Minute
	firstRefused = 30 * time.Second
	lastRefused  = 15 * time.Minute
)

// Bounds of what runs at once. One namespace never takes all of it, so that slow
// sources of one tenant do not hold up the inspections of the others.
const (
	atOnce       = 3
	perNamespace = 2
)

// lookTurn is how long a look keeps its slot while another namespace has fewer and waits. Then
// it gives way and begins again later, with twice the time, but in one slot less than there
// are: so that a slow source is read in the end, and no others wait for it.
const lookTurn = 30 * time.Second

// errGivesWay ends a look that has had its time while others wait.
var errGivesWay = errors.New("the look takes long, and others wait")

// Resolving is one look at a source; *Resolver does it.
type Resolving interface {
	Resolve(ctx context.Context, order v1alpha1.Inspection) (model.Record, error)
}

// Inspector carries out inspections that are ordered, a few at once, and
// forgets those that no longer are.
type Inspector struct {
	resolver Resolving
	log      logr.Logger
	signal   chan struct{}
	changed  chan struct{}

	// mu guards what follows.
	mu   sync.Mutex
	jobs map[string]*job
	// working are the jobs that have a goroutine, also those that were stopped and whose
	// resolver has not returned.
	working map[*job]struct{}
	// turns counts the jobs that were started, and lastTurn is that of each namespace that has jobs.
	turns    int64
	lastTurn map[string]int64
}

// job is one ordered inspection.
type job struct {
	order  v1alpha1.Inspection
	status v1alpha1.InspectionStatus
	// cancel is set while it runs; next is when to look (again); zero: never.
	cancel context.CancelCauseFunc
	next   time.Time
	// fails counts the failures that may pass, and refusals the others.
	fails, refusals int
	// gaveWay counts the looks that gave way since the last whole one. The one that runs began
	// at began, and has its slot for turn.
	gaveWay int
	began   time.Time
	turn    time.Duration
	ending  bool // it gives way
}

// wants is how long a job would have its slot.
func (j *job) wants() time.Duration { return lookTurn << min(j.gaveWay, 8) }

// New makes an inspector; Run makes it work.
func New(r Resolving, log logr.Logger) *Inspector {
	return &Inspector{
		resolver: r, log: log, signal: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		jobs: map[string]*job{}, working: map[*job]struct{}{}, lastTurn: map[string]int64{},
	}
}

// Set replaces the inspections. One that stays keeps its result; one that was
// removed is stopped and dropped; one whose source changed starts again.
func (i *Inspector) Set(orders []v1alpha1.Inspection) {
	i.mu.Lock()
	wanted := make(map[string]bool, len(orders))
	for _, o := range orders {
		wanted[o.ID] = true
		if j := i.jobs[o.ID]; j != nil {
			if sameSource(j.order, o) {
				j.order = o
				continue
			}
			j.stop()
		}
		i.jobs[o.ID] = &job{
			order: o, next: time.Now(),
			status: v1alpha1.InspectionStatus{ID: o.ID, Source: o.Source, State: v1alpha1.InspectionRunning, Message: "inspecting the source"},
		}
	}
	for id, j := range i.jobs {
		if !wanted[id] {
			j.stop()
			delete(i.jobs, id)
		}
	}
	maps.DeleteFunc(i.lastTurn, func(namespace string, _ int64) bool {
		return !slices.ContainsFunc(orders, func(o v1alpha1.Inspection) bool { return o.Namespace == namespace })
	})
	i.mu.Unlock()
	signal(i.signal)
	signal(i.changed)
}

// sameSource reports whether two orders inspect the same. The namespace that is
// charged for it may change without another look.
func sameSource(a, b v1alpha1.Inspection) bool {
	a.Namespace = b.Namespace
	return reflect.DeepEqual(a, b)
}

func (j *job) stop() {
	if j.cancel != nil {
		j.cancel(nil)
	}
}

// Retry looks at once at every source that needs a token and is not resolved:
// tokens came or changed.
func (i *Inspector) Retry() {
	i.mu.Lock()
	for _, j := range i.jobs {
		if j.order.TokenRef != "" && !j.next.IsZero() {
			j.next, j.fails, j.refusals = time.Now(), 0, 0
		}
	}
	i.mu.Unlock()
	signal(i.signal)
}

// Snapshot is what is known, sorted by id and within the budget of a report. It is
// the caller's own copy.
func (i *Inspector) Snapshot() []v1alpha1.InspectionStatus {
	i.mu.Lock()
	defer i.mu.Unlock()
	results := make([]result, 0, len(i.jobs))
	for _, j := range i.jobs {
		results = append(results, result{j.order.Namespace, *j.status.DeepCopy(), reportBytes(j.status), filesBytes(j.status)})
	}
	return withinBudget(results)
}

// Changed receives after a snapshot changed; several changes may be one signal.
func (i *Inspector) Changed() <-chan struct{} { return i.changed }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, and returns when nothing runs any more.
func (i *Inspector) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	done := make(chan struct{}, atOnce)
	free := atOnce
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for free > 0 {
			j, jctx := i.take(ctx)
			if j == nil {
				break
			}
			free--
			running.Go(func() {
				i.look(jctx, j)
				done <- struct{}{}
			})
		}
		timer.Reset(i.untilNext(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-done:
			free++
		case <-i.signal:
		case <-timer.C:
		}
	}
}

// take marks a job as running: the one that has waited longest of the namespace that runs the
// fewest, of these the one that had no turn for longest, of those that may run another one; nil
// if none is due.
func (i *Inspector) take(ctx context.Context) (*job, context.Context) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now, running := time.Now(), i.running()
	due := i.first(now, running)
	if due == nil {
		return nil, nil
	}
	i.turns++
	i.lastTurn[due.order.Namespace] = i.turns
	ctx, due.cancel = context.WithCancelCause(ctx)
	due.began, due.turn = now, due.wants()
	long := 0
	for j := range i.working {
		if j.turn > lookTurn {
			long++
		}
	}
	if long >= atOnce-1 {
		due.turn = lookTurn
	}
	i.working[due] = struct{}{}
	return due, ctx
}

// first returns the job that take would start; the caller holds the lock.
func (i *Inspector) first(now time.Time, running map[string]int) (due *job) {
	for _, j := range i.jobs {
		if !j.due(now) || running[j.order.Namespace] >= perNamespace {
			continue
		}
		if due == nil || cmp.Or(running[j.order.Namespace]-running[due.order.Namespace], cmp.Compare(i.lastTurn[j.order.Namespace], i.lastTurn[due.order.Namespace]),
			j.next.Compare(due.next), cmp.Compare(j.order.ID, due.order.ID)) < 0 {
			due = j
		}
	}
	return due
}

// giveWay ends the look that has had its time if another namespace with fewer waits: of the
// namespace with the most, and of these the longest. It returns how long none has had it. One
// at a time ends. The caller holds the lock.
func (i *Inspector) giveWay(now time.Time, running map[string]int) time.Duration {
	wait, waits := time.Hour, i.first(now, running)
	if waits == nil {
		return wait
	}
	var late *job
	for j := range i.working {
		left := j.began.Add(j.turn).Sub(now)
		switch more := running[j.order.Namespace]; {
		case j.ending:
			return time.Hour // its end is a signal
		case more <= running[waits.order.Namespace]:
		case left > 0:
			wait = min(wait, left)
		case late == nil || cmp.Or(cmp.Compare(more, running[late.order.Namespace]), late.began.Compare(j.began)) > 0:
			late = j
		}
	}
	if late == nil {
		return wait
	}
	late.ending = true
	late.cancel(errGivesWay)
	return time.Hour
}

// due reports whether a job waits to be run.
func (j *job) due(now time.Time) bool {
	return j.cancel == nil && !j.next.IsZero() && !now.Before(j.next)
}

// running counts the slots in use, by namespace: a stopped job uses its slot until its
// resolver returns. The caller holds the lock.
func (i *Inspector) running() map[string]int {
	out := map[string]int{}
	for j := range i.working {
		out[j.order.Namespace]++
	}
	return out
}

// untilNext is how long nothing falls due and no look has to give way, an hour at most. What
// waits for another job of its namespace is woken by the end of that.
func (i *Inspector) untilNext(now time.Time) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	running := i.running()
	full := len(i.working) == atOnce
	wait := time.Hour
	if full {
		wait = i.giveWay(now, running)
	}
	for _, j := range i.jobs {
		if j.cancel == nil && !j.next.IsZero() && running[j.order.Namespace] < perNamespace && !(full && j.due(now)) {
			wait = min(wait, j.next.Sub(now))
		}
	}
	return max(wait, time.Millisecond)
}

// look carries out one job and notes what came of it.
func (i *Inspector) look(ctx context.Context, j *job) {
	i.mu.Lock()
	order := j.order
	i.mu.Unlock()
	rec, err := i.resolve(ctx, order)
	stopped, gaveWay := ctx.Err() != nil, errors.Is(context.Cause(ctx), errGivesWay)
	i.mu.Lock()
	defer i.mu.Unlock()
	j.cancel(nil)
	j.cancel, j.ending = nil, false
	delete(i.working, j)
	if gaveWay && err != nil {
		j.next = time.Now()
		if j.turn == j.wants() {
			j.gaveWay++
		}
		return
	}
	if stopped && !gaveWay {
		return // no longer ordered, or shutting down
	}
	j.gaveWay = 0
	before := j.status
	j.settle(rec, err, time.Now())
	if j.status.State == before.State && j.status.Reason == before.Reason && j.status.Message == before.Message {
		return // it failed again in the same way
	}
	i.log.Info("Source inspected", "id", j.order.ID, "source", j.order.Source, "state", j.status.State, "reason", j.status.Reason)
	signal(i.changed)
}

// resolve resolves a source. A panic is an error of that source: what reads files of
// tenants has defects, and one of them must not end the agent for the others.
func (i *Inspector) resolve(ctx context.Context, order v1alpha1.Inspection) (rec model.Record, err error) {
	defer func() {
		if p := recover(); p != nil {
			i.log.Error(fmt.Errorf("panic: %v", p), "A source could not be inspected because of a defect of the agent; please report it", "source", order.Source, "stack", string(debug.Stack()))
			rec, err = model.Record{}, failure(v1alpha1.ReasonInvalidModel, "the agent cannot read the files of the source because of a defect, which its log describes; report it, or choose another model")
		}
	}()
	return i.resolver.Resolve(ctx, order)
}

// settle decides what is reported and when to look again.
func (j *job) settle(rec model.Record, err error, now time.Time) {
	if err == nil {
		err = tooLarge(rec)
	}
	if err == nil {
		j.status = v1alpha1.InspectionStatus{ID: j.order.ID, Source: j.order.Source, State: v1alpha1.InspectionResolved, Model: &rec}
		j.next, j.fails, j.refusals = time.Time{}, 0, 0
		return
	}
	j.next = now.Add(j.pause(download.IsTransient(err)))
	if download.Reason(err, "") == v1alpha1.ReasonTokenMissing { // it is on its way
		j.status = v1alpha1.InspectionStatus{ID: j.order.ID, Source: j.order.Source, State: v1alpha1.InspectionRunning, Message: download.Sentence(err)}
		return
	}
	j.status = v1alpha1.InspectionStatus{
		ID: j.order.ID, Source: j.order.Source, State: v1alpha1.InspectionFailed,
		Reason: download.Reason(err, v1alpha1.ReasonSourceUnreachable), Message: download.Sentence(err),
	}
}

// pause counts a failure and returns when to look again.
func (j *job) pause(transient bool) time.Duration {
	pause := firstRefused
	switch {
	case transient:
		pause = min(firstPause<<min(j.fails, 10), lastPause)
		j.fails++
	case !strings.HasPrefix(j.order.Source, "file://"):
		pause = min(firstRefused<<min(j.refusals, 10), lastRefused)
		j.refusals++
	}
	return pause + rand.N(pause/4+1)
}
