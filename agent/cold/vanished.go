package cold

import (
	"errors"
	"io/fs"
	"time"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

const (
	// looks is how many blocks are looked at together, and mostLooks how often as long as some are missing.
	looks, mostLooks = 64, 64
	// vanishedFor is how long an engine is remembered whose blocks were missing: who removes files of the
	// cache by hand does it once.
	vanishedFor = time.Minute
)

// vanished forgets blocks that are in the books and not on the disk: the owner alone removes blocks, and
// an engine that was taken over may rename one again and again and report each name. It returns the
// folders of models in which blocks are missing again.
func (w *Owner) vanished() (folders []string) {
	missing := map[string]bool{}
	for range mostLooks {
		before := w.books.index.Files()
		for _, e := range w.books.index.Some(looks) {
			folder := w.dir(e.ID.Namespace)
			info, err := w.opt.FS.Stat(blocks.Path(folder, e.ID.Namespace, e.ID.Key))
			if errors.Is(err, fs.ErrNotExist) || err == nil && 4*(space(info)+extra) < e.Bytes {
				w.books.index.Forget(e)
				missing[folder] = true
			}
		}
		if w.books.index.Files() == before {
			break
		}
	}
	now := w.opt.Now()
	for folder := range missing {
		if at, again := w.missing[folder]; again && now.Sub(at) < vanishedFor {
			folders = append(folders, folder)
		}
		w.missing[folder] = now
	}
	for folder, at := range w.missing {
		if now.Sub(at) >= vanishedFor {
			delete(w.missing, folder)
		}
	}
	return folders
}
