package cold

import (
	"errors"
	"io/fs"

	"metalfleet.dev/metalfleet/metal/kv"
)

// written are the blocks that a tier persisted since it was opened, but for those that the owner is
// known to have removed. The tier's lock guards them.
type written struct {
	// again is true for a block that is distrusted: it must be written again.
	again map[kv.Key]bool
	// order has each block once, those first that were not looked for the longest. The writer alone
	// takes blocks out, while it looks for them.
	order []kv.Key
}

// add adds a block that was persisted now.
func (w *written) add(k kv.Key) {
	if _, known := w.again[k]; !known {
		w.order = append(w.order, k)
	}
	w.again[k] = false
}

// distrust makes all blocks distrusted, and returns those that were not.
func (w *written) distrust() (all []kv.Key) {
	for k, before := range w.again {
		if !before {
			w.again[k] = true
			all = append(all, k)
		}
	}
	return all
}

// distrusted returns the distrusted blocks.
func (w *written) distrusted() (all []kv.Key) {
	for k, again := range w.again {
		if again {
			all = append(all, k)
		}
	}
	return all
}

// looks is how many written blocks are looked for after each block that is persisted: those that the
// owner removed are forgotten faster than others come.
const looks = 2

// forgetRemoved looks for some of the written blocks, and forgets those that are not on the disk any
// more. The writer calls it, so that none of them is written meanwhile.
func (t *Tier) forgetRemoved() {
	t.mu.Lock()
	n, dir := min(looks, len(t.written.order)), t.lease.Dir
	keys := t.written.order[:n:n]
	t.written.order = t.written.order[n:]
	t.mu.Unlock()
	for _, k := range keys {
		_, err := t.opt.FS.Stat(Path(dir, t.ns, k))
		t.mu.Lock()
		if errors.Is(err, fs.ErrNotExist) {
			delete(t.written.again, k)
		} else {
			t.written.order = append(t.written.order, k)
		}
		t.mu.Unlock()
	}
}
