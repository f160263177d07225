package weights

import (
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// draft finds the tensors of the family's draft head, which the inventory leaves out. The
// result is empty if they are not all there, or not what the family describes: converters
// drop them, and the model runs without.
func (c *collection) draft(d family.Dimensions, cfg *family.Config) map[string]Entry {
	groups, err := groupingOf(cfg)
	if err != nil || !d.CanDraft() || !family.CommonDraft(cfg) {
		return nil
	}
	groups = groups.unwrap()
	part := &collection{tensors: map[string]shardTensor{}, left: c.left}
	for name, t := range c.tensors {
		if path := plainName(name); strings.HasPrefix(path, family.DraftPrefix) {
			part.tensors[path] = t
		}
	}
	if _, ok := part.tensors[family.DraftPrefix+"fc.weight"]; !ok {
		return nil
	}
	entries, err := part.draftEntries(d, groups)
	if err != nil {
		return nil
	}
	return entries
}

func (c *collection) draftEntries(d family.Dimensions, groups grouping) (map[string]Entry, error) {
	if err := c.fusedExperts(d); err != nil {
		return nil, err
	}
	entries := map[string]Entry{}
	for _, s := range d.DraftSlots() {
		e, err := c.entry(s, groups)
		if err != nil {
			return nil, err
		}
		entries[s.Path] = e
	}
	for name := range c.tensors {
		if strings.HasPrefix(name, family.DraftPrefix+"layers.1.") {
			return nil, fmt.Errorf("tensor %s of a second layer: %w", family.Quoted(name), ErrUnsupported)
		}
	}
	return entries, nil
}

// addDraft adds the draft head, unless its numbers would change the precision in which the
// model computes: what is generated must not depend on whether there is one.
func (f *File) addDraft(draft map[string]Entry) {
	f.Dim.Drafts = false
	for _, e := range draft {
		if e.Format.Type != f.precise {
			return
		}
	}
	for path, e := range draft {
		f.Dim.Drafts = true
		f.entries[path] = e
		f.unread -= e.Bytes
	}
}

// DropDraft leaves the draft head of the model out, if it has one.
func (f *File) DropDraft() {
	f.Dim.Drafts = false
	for path, e := range f.entries {
		if strings.HasPrefix(path, family.DraftPrefix) {
			delete(f.entries, path)
			f.unread += e.Bytes
		}
	}
}
