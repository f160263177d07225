package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// clearAgain is the pause before a clear that could not be recorded is tried
// again.
const clearAgain = 30 * time.Second

// cacheClearing executes the requests of the desired state to clear caches.
type cacheClearing struct {
	log     logr.Logger
	journal *journal.Journal
	pool    *pool.Pool
	cache   *diskCache    // nil where there is none
	changed func()        // called after a request was executed
	signal  chan struct{} // receives after a new desired state was accepted
}

// run executes requests until ctx ends. A request is done when the journal records it: an
// agent that ends before that clears again.
func (c *cacheClearing) run(ctx context.Context) error {
	var done *v1alpha1.CacheCleared // not in the journal yet
	for {
		order := toClear(c.journal.Snapshot())
		if order != nil && (done == nil || done.Request != order.Request) {
			done = c.execute(ctx, *order)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var again <-chan time.Time
		if order != nil {
			if err := c.journal.Update(func(s *journal.State) { s.CacheCleared = done }); err != nil {
				c.log.Error(err, "Caches were cleared, but this could not be stored yet", "request", done.Request)
				again = time.After(clearAgain)
			} else {
				c.changed()
				continue // a newer request may have arrived
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.signal:
		case <-again:
		}
	}
}

// toClear returns the request that is still to be executed; nil if there is none.
func toClear(s journal.State) *v1alpha1.CacheClear {
	if s.Desired == nil || s.Desired.ClearCache == nil {
		return nil
	}
	if s.CacheCleared != nil && s.CacheCleared.Request == s.Desired.ClearCache.Request {
		return nil
	}
	return s.Desired.ClearCache
}

// execute clears memory before the disk, so that blocks which an engine writes to disk
// meanwhile are removed too.
func (c *cacheClearing) execute(ctx context.Context, order v1alpha1.CacheClear) *v1alpha1.CacheCleared {
	done := &v1alpha1.CacheCleared{Request: order.Request}
	var left []string
	if order.Tier != v1alpha1.CacheTierDisk {
		done.Engines = c.pool.Forget(ctx)
		done.MemoryBytes = new(int64)
		for _, e := range done.Engines {
			if e.Bytes == nil {
				left = append(left, fmt.Sprintf("the engine of replica %s did not answer", e.ReplicaUID))
				continue
			}
			*done.MemoryBytes += *e.Bytes
		}
	}
	if order.Tier != v1alpha1.CacheTierMemory && c.cache != nil {
		bytes, err := c.cache.clear(ctx)
		done.DiskBytes = &bytes
		if err != nil {
			left = append(left, "disk: "+err.Error())
		}
	}
	slices.Sort(left)
	done.Message, done.Time = clip(strings.Join(left, "; "), 1024), metav1.Now()
	c.log.Info("Caches cleared", "request", done.Request, "memoryBytes", bytesOf(done.MemoryBytes), "diskBytes", bytesOf(done.DiskBytes), "problem", done.Message)
	return done
}

// bytesOf returns *b, or 0 for nil, for the log.
func bytesOf(b *int64) int64 {
	if b == nil {
		return 0
	}
	return *b
}
