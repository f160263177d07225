package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
)

// diskAgain is the pause before the stream of an engine's cache is opened again.
const diskAgain = 100 * time.Millisecond

// CacheLease is an engine's permission to use the disk.
type CacheLease = stream.Lease

// lifeLease ends no lease after the agent's life: what the engine left takes long to remove, and the
// next agent ends all leases before it opens the cache.
type lifeLease struct {
	CacheLease
	life context.Context
}

// End implements CacheLease.
func (l lifeLease) End() {
	if l.life.Err() == nil {
		l.CacheLease.End()
	}
}

// leaseDisk lets an engine use this Mac's disk cache, if it is configured to, and
// reconnects until ctx ends or the engine stops.
func (lc *lifecycle) leaseDisk(ctx context.Context, e *entry, g *engine) {
	if lc.Cache == nil || g.config.CacheQueueBytes == 0 || lc.CacheDir != "" && g.config.CacheDir == "" {
		return
	}
	said := ""
	var only kv.Origin // each origin has folders of its own on the disk, and an engine has one
	for {
		err := stream.Follow(ctx, g.client, func(o kv.Origin) (CacheLease, error) {
			if want := lc.cacheModel(g); o.Model != want {
				return nil, fmt.Errorf("the engine's cache blocks are of model %.256q, want %q", o.Model, want)
			}
			if only == (kv.Origin{}) {
				only = o
			}
			if o != only {
				return nil, errors.New("the engine's cache blocks have another layout, or other numerics, than before; it should be restarted")
			}
			lease, err := lc.Cache(o, func() int64 { return lc.diskOf(e) })
			return lifeLease{lease, lc.life}, err
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		if why := excerpt.Message(err.Error()); why != said {
			said = why
			lc.Log.Info("The engine does not use the disk cache for now", "ModelReplica", g.record.Namespace+"/"+g.record.Name, "load", g.load, "reason", why)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(diskAgain):
		}
	}
}

// cacheModel is the model of an engine's cache blocks. One with adapters that an earlier agent
// started has the folder of the model without any.
func (lc *lifecycle) cacheModel(g *engine) string {
	if digest := g.config.ModelDigest; lc.CacheDir != "" && g.config.CacheDir == cold.ModelFolder(lc.CacheDir, digest) {
		return digest
	}
	return g.config.CacheModel()
}

// diskOf is the disk limit for blocks of an entry's model, as currently assigned.
func (lc *lifecycle) diskOf(e *entry) (most int64) {
	lc.read(func() { most = e.assignment.PrefixCache.DiskBytes })
	return most
}

// reasonCacheOverrun: an engine wrote more to the disk cache than it was granted.
const reasonCacheOverrun = "CacheOverrun"

// cachelessFor is how long no engine is started with a folder for which engines were ended. Engines of
// other deployments share it: one that was taken over would have theirs ended again and again.
const cachelessFor = time.Hour

// endOverfull ends the engines that may write to these folders.
func (lc *lifecycle) endOverfull(folders []string) {
	found := map[*entry]*engine{}
	lc.read(func() {
		now := time.Now()
		maps.DeleteFunc(lc.cacheless, func(_ string, until time.Time) bool { return !now.Before(until) })
		for _, f := range folders {
			lc.cacheless[f] = now.Add(cachelessFor)
		}
		for _, e := range lc.entries {
			if g := e.engine; g != nil && g.alive() && !g.leaving() && slices.Contains(folders, g.config.CacheDir) {
				found[e] = g
			}
		}
	})
	for e, g := range found {
		lc.giveUp(e, g, v1alpha1.ReclaimCrashed, journal.Refusal{Reason: reasonCacheOverrun,
			Message: "the engine wrote more to the disk cache than it was granted; it may have been taken over"})
	}
}
