package agent

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

const (
	// cacheAgain is the pause before a cache that could not be opened is tried
	// again.
	cacheAgain = 30 * time.Second
	// sweepEvery is how often blocks of models without an assignment are looked
	// for, and keptFor how long they are kept after the last assignment: a
	// replica that is being replaced has none for a moment.
	sweepEvery = time.Minute
	keptFor    = time.Hour
)

// errNoCache means that engines cannot use the disk yet.
var errNoCache = errors.New("this Mac's disk cache is not open")

// diskCache is this Mac's cache on disk, once its directory is open: a failing
// disk makes prompts slower and stops nothing.
type diskCache struct {
	options cold.Options
	log     logr.Logger
	metrics prometheus.Registerer
	// desired returns the last desired state; nil before the first.
	desired func() *journal.Desired

	owner   atomic.Pointer[cold.Owner]
	trouble atomic.Pointer[string]
	// newBudget is the budget that was set since the start; nil: that of options.
	newBudget atomic.Pointer[blocks.Budget]
	// overfull ends the engines of the models with these folders; set before run.
	overfull func(folders []string)
	// tried is closed after the first attempt to open the directory.
	tried chan struct{}
	first sync.Once
}

// run opens the directory and keeps it open until ctx ends.
func (c *diskCache) run(ctx context.Context) error {
	owner := c.open(ctx)
	if owner == nil {
		return ctx.Err()
	}
	c.metrics.MustRegister(owner.Collector())
	c.opened(owner)
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { c.sweep(ctx, owner) })
	return owner.Run(ctx, c.overfull)
}

// opened publishes the open directory to the other methods.
func (c *diskCache) opened(owner *cold.Owner) {
	c.owner.Store(owner)
	owner.SetBudget(c.budget) // it may have been set meanwhile
	c.first.Do(func() { close(c.tried) })
}

// budget returns the current budget.
func (c *diskCache) budget() blocks.Budget {
	if b := c.newBudget.Load(); b != nil {
		return *b
	}
	return c.options.Budget
}

// setBudget changes the budget. It waits for the disk while the owner of the
// directory works.
func (c *diskCache) setBudget(b blocks.Budget) {
	if b == c.budget() {
		return
	}
	c.newBudget.Store(&b)
	if owner := c.owner.Load(); owner != nil {
		owner.SetBudget(c.budget)
	}
}

// open retries until it succeeds; it returns nil once ctx has ended.
func (c *diskCache) open(ctx context.Context) *cold.Owner {
	for {
		owner, err := cold.Open(c.options)
		if err == nil {
			c.trouble.Store(nil)
			return owner
		}
		why := err.Error()
		if old := c.trouble.Swap(&why); old == nil || *old != why {
			c.log.Error(err, "Failed to open the disk cache; computing all prompts instead")
		}
		c.first.Do(func() { close(c.tried) })
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cacheAgain):
		}
	}
}

// sweep removes blocks of models that have had no assignment for keptFor.
func (c *diskCache) sweep(ctx context.Context, owner *cold.Owner) {
	ordered := found(owner.Snapshot(), time.Now())
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if o := c.desired(); o != nil {
			if models, known := wanted(ordered, o, time.Now()); known {
				if freed, err := owner.Keep(models); err != nil {
					c.log.Error(err, "Failed to remove cached blocks of unassigned models")
				} else if freed > 0 {
					c.log.Info("Removed cached blocks of unassigned models", "bytes", freed)
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// found lists the models that had blocks when the agent started, with now as
// their last assignment, which is not known.
func found(s *cold.Snapshot, now time.Time) map[string]time.Time {
	ordered := map[string]time.Time{}
	for _, n := range s.Namespaces {
		if n.Model != "" {
			ordered[n.Model] = now
		}
	}
	return ordered
}

// wanted returns the models whose blocks are kept (pool.CacheModel), and notes when each
// had an assignment last. known is false while an assignment is invalid: it may
// be of any model.
func wanted(ordered map[string]time.Time, o *journal.Desired, now time.Time) (models map[string]bool, known bool) {
	for i := range o.Assignments {
		ordered[pool.CacheModel(o.Assignments[i])] = now
	}
	maps.DeleteFunc(ordered, func(_ string, last time.Time) bool { return now.Sub(last) >= keptFor })
	models = map[string]bool{}
	for digest := range ordered {
		models[digest] = true
	}
	return models, len(o.Invalid) == 0
}

// clear removes all blocks from the disk and returns how many bytes that freed.
// It waits for the first attempt to open the directory.
func (c *diskCache) clear(ctx context.Context) (freed int64, err error) {
	select {
	case <-c.tried:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	owner := c.owner.Load()
	if owner == nil {
		return 0, errNoCache
	}
	return owner.ClearAll()
}

// lease implements the pool's Cache.
func (c *diskCache) lease(o kv.Origin, most func() int64) (pool.CacheLease, error) {
	owner := c.owner.Load()
	if owner == nil {
		return nil, errNoCache
	}
	l, err := owner.Lease(o, most)
	if err != nil {
		return nil, err // a nil *Lease would not be a nil Lease
	}
	return l, nil
}

// status is the reported state of the cache; a nil cache has none.
func (c *diskCache) status() (s v1alpha1.MacCache) {
	if c == nil {
		return s
	}
	if why := c.trouble.Load(); why != nil {
		s.Message = clip(*why, 1024)
	}
	owner := c.owner.Load()
	if owner == nil {
		return s
	}
	now := owner.Snapshot()
	return v1alpha1.MacCache{
		Bytes: now.UsedBytes, LimitBytes: now.LimitBytes, WrittenBytes: now.Blocks.WrittenBytes, Hits: now.Blocks.Read,
		Dropped: now.Blocks.DroppedTotal(), Message: clip(now.Problem, 1024),
	}
}
