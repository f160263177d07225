package agent

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// collectEvery is how often the disk is compared with its marks.
const collectEvery = 30 * time.Second

// collect removes weights that nobody wants while the disk is above its high
// mark, until ctx ends.
func (a *Agent) collect(ctx context.Context) error {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := a.store.Collect(); err != nil {
			a.Log.Error(err, "Failed to remove unused weights")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// spared are the weights that orders want, and those that an engine here was
// started with.
func (a *Agent) spared() (func(digest string) bool, bool) { return spared(a.journal.Snapshot()) }

// spared does not know while there are no orders, or one cannot be read: that
// may be any.
func spared(s journal.State) (func(digest string) bool, bool) {
	if s.Orders == nil || len(s.Orders.Invalid) > 0 {
		return nil, false
	}
	wanted := map[string]bool{}
	for i := range s.Orders.Assignments {
		wanted[s.Orders.Assignments[i].Model.Digest] = true
	}
	for _, digest := range s.Orders.PinnedWeights {
		wanted[digest] = true
	}
	for i := range s.Engines {
		wanted[s.Engines[i].Config.ModelDigest] = true
	}
	return func(digest string) bool { return wanted[digest] }, true
}

// namespaceOf is the namespace of the orders for a source; the first by name, where
// several namespaces want the same from the same place.
func (a *Agent) namespaceOf(rec model.Record, tokenRef string) string {
	return namespaceOf(a.journal.Snapshot(), rec, tokenRef)
}

func namespaceOf(s journal.State, rec model.Record, tokenRef string) (first string) {
	if s.Orders == nil {
		return ""
	}
	for i := range s.Orders.Assignments {
		o := &s.Orders.Assignments[i]
		if o.Model.Digest == rec.Digest && o.Model.Source == rec.Source && o.TokenRef == tokenRef && (first == "" || o.Namespace < first) {
			first = o.Namespace
		}
	}
	return first
}

// ahead says that orders want weights on the disk and nothing that runs with them.
func (a *Agent) ahead(digest string) bool { return ahead(a.journal.Snapshot(), digest) }

func ahead(s journal.State, digest string) (only bool) {
	if s.Orders == nil {
		return false
	}
	for i := range s.Orders.Assignments {
		o := &s.Orders.Assignments[i]
		switch {
		case o.Model.Digest != digest:
		case o.Desired == v1alpha1.DesiredRunning:
			return false
		case o.Desired == v1alpha1.DesiredDownloaded:
			only = true
		}
	}
	return only
}
