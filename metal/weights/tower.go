package weights

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/metal/family"
	"metalfleet.dev/metalfleet/metal/vision"
)

// tower finds the tensors of a vision tower, under the paths of its slots;
// channelsLast is true if the patches that they are for have their channels last. There
// is no error if the folder holds no part of a tower: converters leave it out.
func (c *collection) tower(t family.Tower, cfg *family.Config) (entries map[string]Entry, channelsLast bool, err error) {
	groups, err := groupingOf(cfg)
	if err != nil {
		return nil, false, err
	}
	rename := towerNames(t)
	named, taken, err := c.namedBy(func(name string, _ *shardTensor) (string, bool, error) {
		path, ok := rename(name)
		return path, ok, nil
	})
	defer c.left.memory.free(taken)
	if err != nil || len(named) == 0 {
		return nil, false, err
	}
	part := &collection{tensors: named, left: c.left}
	groups, err = groups.namedBy(c.left.memory, func(name string) (string, bool) {
		path, ok := rename(name + ".")
		return strings.TrimSuffix(path, "."), ok
	})
	if err != nil {
		return nil, false, err
	}
	if channelsLast, err = part.flatten(t); err != nil {
		return nil, false, err
	}
	entries, err = part.towerEntries(t, groups)
	return entries, channelsLast, err
}

// towerNames returns how tensors of a folder are called in the tower; ok is false for
// those of other parts.
func towerNames(t family.Tower) func(name string) (path string, ok bool) {
	r := strings.NewReplacer(t.Rename...)
	return func(name string) (string, bool) {
		for _, prefix := range t.Prefixes {
			if rest, ok := strings.CutPrefix(name, prefix); ok {
				return family.TowerPrefix + r.Replace(rest), true
			}
		}
		return "", false
	}
}

// flatten gives the kernel of patches two dimensions, and so two tables of places. Hugging
// Face stores [out, 3, frames, side, side], mlx-vlm [out, frames, side, side, 3].
func (c *collection) flatten(t family.Tower) (channelsLast bool, err error) {
	const path = family.TowerPrefix + "patch.weight"
	k, ok := c.tensors[path]
	if !ok {
		return false, fmt.Errorf("tensor %s: %w", path, ErrMissing)
	}
	if t.Gated { // its patches are stored as a matrix
		c.reshape(family.TowerPrefix+"places.weight", int64(2*t.Side), int64(t.Hidden))
		c.reshape(family.TowerPrefix+"merger.offset", 1, int64(t.Hidden))
		return false, nil
	}
	out, frames, side := int64(t.Hidden), int64(t.Frames), int64(t.Patch)
	first, last := []int64{out, 3, frames, side, side}, []int64{out, frames, side, side, 3}
	if frames == 1 && len(k.shape) == 4 {
		first, last = []int64{out, 3, side, side}, []int64{out, side, side, 3}
	}
	channelsLast = slices.Equal(k.shape, last)
	if !channelsLast && !slices.Equal(k.shape, first) {
		return false, family.Invalidf("tensor %s has shape %v, want %v or %v", path, k.shape, first, last)
	}
	k.shape = []int64{out, int64(t.PatchWidth())}
	c.tensors[path] = k
	return channelsLast, nil
}

// reshape gives a tensor with as many elements another shape.
func (c *collection) reshape(name string, shape ...int64) {
	if m, ok := c.tensors[name]; ok && elementsOf(m.shape) == elementsOf(shape) {
		m.shape = shape
		c.tensors[name] = m
	}
}

// towerEntries are the tensors of all slots. Others are refused, but for those that have
// no part in the tokens: counters, and a head that pools whole images.
func (c *collection) towerEntries(t family.Tower, groups grouping) (map[string]Entry, error) {
	entries, used, slots := map[string]Entry{}, map[string]bool{}, t.Slots()
	if err := c.left.memory.take(slotMemory*int64(len(slots)), 0); err != nil {
		return nil, err
	}
	for _, s := range slots {
		turned := strings.HasSuffix(s.Path, ".turned")
		if turned {
			s.Shape = []int64{s.Shape[1], s.Shape[0]}
		}
		e, err := c.entry(s, groups)
		if err != nil {
			return nil, err
		}
		if turned {
			e.Shape, e.turned = []int64{1, e.Shape[0], e.Shape[1]}, true
		}
		entries[s.Path] = e
		used[s.Path] = true
		if e.Format.Quantized() {
			used[layerOf(s.Path)+".scales"], used[layerOf(s.Path)+".biases"] = true, true
		}
	}
	for _, name := range sortedKeys(c.tensors) {
		if !used[name] && !strings.HasPrefix(name, family.TowerPrefix+"head.") && !strings.HasSuffix(name, "position_ids") && !strings.HasSuffix(name, "inv_freq") {
			return nil, family.Unsupported("tensor of a vision tower", name, []string{"those of its family"})
		}
	}
	return entries, nil
}

// Tower is the part of the file that holds the vision tower; nil if there is none.
// Dim.TowerFault may state why. It closes with the file.
func (f *File) Tower() *File { return f.tower }

// ChannelsLast reports whether patches have their channels last, for a Tower.
func (f *File) ChannelsLast() bool { return f.channelsLast }

// openTower finds the tower in the files of a folder. A fault leaves the model to text; that there
// is too little memory now is returned.
func (f *File) openTower(c *collection, cfg *family.Config) error {
	if f.Dim.Tower == nil {
		return nil
	}
	entries, channelsLast, err := c.tower(*f.Dim.Tower, cfg)
	switch {
	case errors.Is(err, ErrBusy):
		return err
	case err == nil && entries != nil:
		f.tower = &File{Dim: f.Dim, dir: f.dir, entries: entries, sources: f.sources, channelsLast: channelsLast}
		return nil
	}
	f.Dim.Tower, f.Dim.TowerFault = nil, err
	return nil
}

// MaxImageTokens bounds the tokens of an image. Larger images are scaled down: what an
// engine reserves for images, and how long one delays the answers of others, grows with
// it.
const MaxImageTokens = 2048

// Processor returns how images are prepared for the Tower. The error is ErrUnsupported
// if there is no tower, the tower's own fault, or that of the processor's configuration.
func (f *File) Processor() (vision.Processor, error) {
	switch {
	case f.Dim.TowerFault != nil:
		return vision.Processor{}, f.Dim.TowerFault
	case f.tower == nil:
		return vision.Processor{}, fmt.Errorf("the model has no vision tower: %w", ErrUnsupported)
	}
	t := f.Dim.Tower
	p, err := vision.Read(f.dir, t.Patch, t.Merge)
	if err != nil {
		return p, err
	}
	if p.Frames != t.Frames {
		return p, family.Invalidf("patches of %d frames, but the vision tower in config.json has those of %d", p.Frames, t.Frames)
	}
	p.ChannelsLast = p.ChannelsLast || f.tower.channelsLast
	p = p.Limited(MaxImageTokens)
	most := p.MostTokens()
	switch {
	case t.Crossed && most <= MaxImageTokens && most*t.Merge > t.Side:
		return p, family.Invalidf("an image of %d tokens has up to %d patches on a side, but the vision tower in config.json has places for %d", most, most*t.Merge, t.Side)
	case most > MaxImageTokens || !t.Interpolated && !t.Crossed && most*t.Block() != t.Side*t.Side:
		return p, family.Invalidf("an image has up to %d tokens, want at most %d and those of %d patches on a side", most, MaxImageTokens, t.Side)
	}
	return p, nil
}

// addVision adds the tower to the facts of a model that images can be prepared for.
func (f *File) addVision(to *model.Facts) {
	p, err := f.Processor()
	if err != nil {
		return
	}
	t := f.Dim.Tower
	tokens := int64(p.MostTokens())
	to.VisionPatches, to.VisionHeads = tokens*int64(t.Block()), int64(t.Heads)
	to.VisionPatchElements, to.VisionElements = int64(t.Elements()), tokens*int64(t.Out*(1+len(t.Deep)))
	wide := max(to.WeightBytes, to.WideWeightBytes)
	for _, e := range f.tower.entries {
		to.WeightBytes += e.Held()
		wide += e.wideBytes(f.tower.precise)
	}
	if to.WideWeightBytes = wide; wide <= to.WeightBytes {
		to.WideWeightBytes = 0
	}
}
