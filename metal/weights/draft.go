package weights

import (
	"errors"
	"fmt"
	"strings"

	"metalfleet.dev/metalfleet/metal/family"
)

// draft finds the tensors of the family's draft head, which the inventory leaves out. The
// result is empty if they are not all there, or not what the family describes: converters
// drop them, and the model runs without. That there is too little memory now is an error.
func (c *collection) draft(d family.Dimensions, cfg *family.Config) (map[string]Entry, error) {
	if !d.CanDraft() || !family.CommonDraft(cfg) {
		return nil, nil
	}
	entries, err := c.foundDraft(d, cfg)
	if errors.Is(err, ErrBusy) {
		return nil, err
	}
	return entries, nil
}

func (c *collection) foundDraft(d family.Dimensions, cfg *family.Config) (map[string]Entry, error) {
	groups, err := groupingOf(cfg)
	if err != nil {
		return nil, err
	}
	if groups, err = groups.unwrap(c.left.memory); err != nil {
		return nil, err
	}
	named, taken, err := c.namedBy(func(name string, _ *shardTensor) (string, bool, error) {
		path := plainName(name)
		return path, strings.HasPrefix(path, family.DraftPrefix), nil
	})
	defer c.left.memory.free(taken)
	if _, ok := named[family.DraftPrefix+"fc.weight"]; !ok || err != nil {
		return nil, err
	}
	part := &collection{tensors: named, left: c.left}
	return part.draftEntries(d, groups)
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
