package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// clearAgain is the pause before a clear that could not be recorded is tried
// again.
const clearAgain = 30 * time.Second

// clear executes requests to clear caches until ctx ends. A request is done when
// the journal records it: an agent that ends before that clears again.
func (a *Agent) clear(ctx context.Context) error {
	var done *v1alpha1.CacheCleared // not in the journal yet
	for {
		order := toClear(a.journal.Snapshot())
		if order != nil && (done == nil || done.Request != order.Request) {
			done = a.clearOnce(ctx, *order)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var again <-chan time.Time
		if order != nil {
			if err := a.journal.Update(func(s *journal.State) { s.CacheCleared = done }); err != nil {
				a.Log.Error(err, "Caches were cleared, but this could not be stored yet", "request", done.Request)
				again = time.After(clearAgain)
			} else {
				a.changed()
				continue // a newer request may have arrived
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.clearSignal:
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

// clearOnce clears memory before the disk, so that blocks which an engine writes
// to disk meanwhile are removed too.
func (a *Agent) clearOnce(ctx context.Context, order v1alpha1.CacheClear) *v1alpha1.CacheCleared {
	c := &v1alpha1.CacheCleared{Request: order.Request}
	var left []string
	if order.Tier != v1alpha1.CacheTierDisk {
		c.Engines = a.pool.Forget(ctx)
		c.MemoryBytes = new(int64)
		for _, e := range c.Engines {
			if e.Bytes == nil {
				left = append(left, fmt.Sprintf("the engine of replica %s did not answer", e.ReplicaUID))
				continue
			}
			*c.MemoryBytes += *e.Bytes
		}
	}
	if order.Tier != v1alpha1.CacheTierMemory && a.cache != nil {
		bytes, err := a.cache.clear(ctx)
		c.DiskBytes = &bytes
		if err != nil {
			left = append(left, "disk: "+err.Error())
		}
	}
	slices.Sort(left)
	c.Message, c.Time = clip(strings.Join(left, "; "), 1024), metav1.Now()
	a.Log.Info("Caches cleared", "request", c.Request, "memoryBytes", bytesOf(c.MemoryBytes), "diskBytes", bytesOf(c.DiskBytes), "problem", c.Message)
	return c
}

// bytesOf returns *b, or 0 for nil, for the log.
func bytesOf(b *int64) int64 {
	if b == nil {
		return 0
	}
	return *b
}
