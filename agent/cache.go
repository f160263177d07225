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
	// cacheAgain is when a cache that could not be opened is tried again.
	cacheAgain = 30 * time.Second
	// sweepEvery is how often blocks of models that nobody orders are looked for,
	// and keptFor how long they stay behind the last order: a replica that is
	// replaced is not ordered for a moment.
	sweepEvery = time.Minute
	keptFor    = time.Hour
)

// errNoCache says that engines are given no disk yet.
var errNoCache = errors.New("this Mac's disk cache is not open")

// diskCache is this Mac's cache on disk, once its folder could be opened: a disk
// that fails makes prompts slower and stops nothing.
type diskCache struct {
	options cold.Options
	log     logr.Logger
	metrics prometheus.Registerer
	// orders as last read; nil before that.
	orders func() *journal.Orders

	owner   atomic.Pointer[cold.Owner]
	trouble atomic.Pointer[string]
	// wish is the budget that was set since; nil: that of options.
	wish atomic.Pointer[blocks.Budget]
	// tried is closed once the folder was opened, or could not be.
	tried chan struct{}
	first sync.Once
}

// run opens the folder, and keeps it until ctx ends.
func (c *diskCache) run(ctx context.Context) error {
	owner := c.open(ctx)
	if owner == nil {
		return ctx.Err()
	}
	c.metrics.MustRegister(owner.Collector())
	c.took(owner)
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { c.sweep(ctx, owner) })
	return owner.Run(ctx)
}

// took has everybody use the folder that was opened.
func (c *diskCache) took(owner *cold.Owner) {
	c.owner.Store(owner)
	owner.SetBudget(c.budget) // it may have been set meanwhile
	c.first.Do(func() { close(c.tried) })
}

// budget that holds now.
func (c *diskCache) budget() blocks.Budget {
	if b := c.wish.Load(); b != nil {
		return *b
	}
	return c.options.Budget
}

// setBudget changes it. It waits for the disk while the folder's owner works.
func (c *diskCache) setBudget(b blocks.Budget) {
	if b == c.budget() {
		return
	}
	c.wish.Store(&b)
	if owner := c.owner.Load(); owner != nil {
		owner.SetBudget(c.budget)
	}
}

// open tries until it succeeds; nil once ctx ended.
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

// sweep removes blocks of models that nobody orders any more.
func (c *diskCache) sweep(ctx context.Context, owner *cold.Owner) {
	ordered := found(owner.Snapshot(), time.Now())
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if o := c.orders(); o != nil {
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

// found are the models of which blocks were there when the agent began: it does not
// know when they were ordered last.
func found(s *cold.Snapshot, now time.Time) map[string]time.Time {
	ordered := map[string]time.Time{}
	for _, n := range s.Namespaces {
		if n.Model != "" {
			ordered[n.Model] = now
		}
	}
	return ordered
}

// wanted are the models whose blocks stay, by digest, and notes when each was
// ordered last. It does not know while an order cannot be read: that may be one.
func wanted(ordered map[string]time.Time, o *journal.Orders, now time.Time) (models map[string]bool, known bool) {
	for i := range o.Assignments {
		ordered[o.Assignments[i].Model.Digest] = now
	}
	maps.DeleteFunc(ordered, func(_ string, last time.Time) bool { return now.Sub(last) >= keptFor })
	models = map[string]bool{}
	for digest := range ordered {
		models[digest] = true
	}
	return models, len(o.Invalid) == 0
}

// clear removes all that lies on the disk, and says how many bytes came back. It
// waits until opening the folder was tried once.
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

// lease is what the pool asks for.
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

// status is what is reported; a nil cache has none.
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
