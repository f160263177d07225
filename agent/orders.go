package agent

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// accept stores a desired state that was read completely, and applies it.
func (a *Agent) accept(o journal.Desired) {
	before := a.journal.Snapshot().Desired
	if err := a.journal.Follow(o); err != nil {
		a.Log.Error(err, "Desired state is applied but could not be stored; retrying")
		notify(a.unstored)
	}
	if before != nil && before.UID != o.UID {
		a.Links.Reports.Again()
	}
	for _, bad := range o.Invalid {
		a.Log.Info("Cannot apply the desired state of a replica", "replicaUID", bad.ReplicaUID, "epoch", bad.Epoch, "reason", bad.Message)
	}
	a.follow(o)
	notify(a.clearing.signal)
	notify(a.settings.signal)
	a.upgrader.Set(o.Agent)
	a.prune(o)
}

// notify signals without waiting; several signals count as one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// storeAgain is the pause before a desired state that could not be stored is tried again.
const storeAgain = 2 * time.Second

// storeUnstored stores a desired state that could not be stored when it was accepted, until
// ctx ends: otherwise the next start would follow an older one.
func (a *Agent) storeUnstored(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.unstored:
		}
		for failed := true; failed; failed = a.journal.Update(func(*journal.State) {}) != nil {
			if !register.Sleep(ctx, storeAgain) {
				return ctx.Err()
			}
		}
		a.Log.Info("Desired state is stored")
	}
}

// prune removes partial downloads that no assignment uses. If an assignment is
// invalid its files are unknown, so nothing is removed.
func (a *Agent) prune(o journal.Desired) {
	if len(o.Invalid) > 0 {
		return
	}
	if err := a.store.Prune(downloadsOf(o)); err != nil {
		a.Log.Error(err, "Failed to remove unused partial downloads")
	}
}

// downloadsOf returns what the assignments download, with the credentials that the pool downloads
// it with.
func downloadsOf(o journal.Desired) (all []store.Wanted) {
	for i := range o.Assignments {
		one := &o.Assignments[i]
		if one.Desired == v1alpha1.DesiredDrained {
			continue
		}
		all = append(all, store.Wanted{Record: one.Model, TokenRef: one.TokenRef})
		for _, adapter := range one.Model.Adapters {
			w := store.Wanted{Record: adapter.Record()}
			if adapter.Shared(one.Model.Source) {
				w.TokenRef = one.TokenRef
			}
			all = append(all, w)
		}
	}
	return all
}

// follow passes on what the Mac is to inspect and to run.
func (a *Agent) follow(o journal.Desired) {
	a.inspector.Set(o.Inspections)
	a.pool.Apply(o)
}
