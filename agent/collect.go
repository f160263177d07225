package agent

import (
	"context"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// collectEvery is how often disk usage is compared with the watermarks.
const collectEvery = 30 * time.Second

// collect evicts unused weights while disk usage is above the high watermark,
// until ctx ends.
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

// spared returns the weights that assignments or pins name, and those that a
// running engine was started with.
func (a *Agent) spared() (func(digest string) bool, bool) { return spared(a.journal.Snapshot()) }

// spared returns false while there is no desired state or an assignment is
// invalid: it may be of any model.
func spared(s journal.State) (func(digest string) bool, bool) {
	if s.Desired == nil || len(s.Desired.Invalid) > 0 {
		return nil, false
	}
	wanted := map[string]bool{}
	for i := range s.Desired.Assignments {
		for _, r := range s.Desired.Assignments[i].Model.Parts() {
			wanted[r.Digest] = true
		}
	}
	for _, digest := range s.Desired.PinnedWeights {
		wanted[digest] = true
	}
	for i := range s.Engines {
		wanted[s.Engines[i].Config.ModelDigest] = true
		for _, a := range s.Engines[i].Config.Adapters {
			wanted[a.Digest] = true
		}
	}
	return func(digest string) bool { return wanted[digest] }, true
}

// namespaceOf returns the namespace of the assignments for a source; the first by
// name if several namespaces have one for the same source and credential.
func (a *Agent) namespaceOf(rec model.Record, tokenRef string) string {
	return namespaceOf(a.journal.Snapshot(), rec, tokenRef)
}

func namespaceOf(s journal.State, rec model.Record, tokenRef string) (first string) {
	if s.Desired == nil {
		return ""
	}
	for i := range s.Desired.Assignments {
		o := &s.Desired.Assignments[i]
		for _, r := range o.Model.Parts() {
			if r.Digest == rec.Digest && r.Source == rec.Source && (o.TokenRef == tokenRef || tokenRef == "" && r.Source != o.Model.Source) && (first == "" || o.Namespace < first) {
				first = o.Namespace
			}
		}
	}
	return first
}

// ahead reports whether assignments want weights on the disk and no engine for
// them.
func (a *Agent) ahead(digest string) bool { return ahead(a.journal.Snapshot(), digest) }

func ahead(s journal.State, digest string) (only bool) {
	if s.Desired == nil {
		return false
	}
	for i := range s.Desired.Assignments {
		o := &s.Desired.Assignments[i]
		switch {
		case !slices.ContainsFunc(o.Model.Parts(), func(r model.Record) bool { return r.Digest == digest }):
		case o.Desired == v1alpha1.DesiredRunning:
			return false
		case o.Desired == v1alpha1.DesiredDownloaded:
			only = true
		}
	}
	return only
}
