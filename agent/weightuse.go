package agent

import (
	"slices"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// weightUse answers, from the journal, who uses weights: what the store must not evict, for
// whom it fetches, and which peers have them.
type weightUse struct{ journal *journal.Journal }

// spared returns the weights that assignments or pins name, and those that a
// running engine was started with.
func (u weightUse) spared() (func(digest string) bool, bool) { return spared(u.journal.View()) }

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

// namespaces returns the namespaces of the assignments for a source and credential, by name.
func (u weightUse) namespaces(rec model.Record, tokenRef string) []string {
	return namespacesOf(u.journal.View(), rec, tokenRef)
}

func namespacesOf(s journal.State, rec model.Record, tokenRef string) (names []string) {
	if s.Desired == nil {
		return nil
	}
	for i := range s.Desired.Assignments {
		o := &s.Desired.Assignments[i]
		for _, r := range o.Model.Parts() {
			if r.Digest == rec.Digest && r.Source == rec.Source && (o.TokenRef == tokenRef || tokenRef == "" && r.Source != o.Model.Source) {
				names = append(names, o.Namespace)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ahead reports whether assignments want weights on the disk and no engine for
// them.
func (u weightUse) ahead(digest string) bool { return ahead(u.journal.View(), digest) }

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

// peers returns the peers that the current assignments with a tokenRef name for a record.
func (u weightUse) peers(r model.Record, tokenRef string) []v1alpha1.Peer {
	o := u.journal.View().Desired
	if o == nil {
		return nil
	}
	for i := range o.Assignments {
		assigned := &o.Assignments[i]
		if assigned.Model.Digest == r.Digest && assigned.Model.Source == r.Source && assigned.TokenRef == tokenRef && len(assigned.Peers) > 0 {
			return assigned.Peers
		}
	}
	return nil
}
