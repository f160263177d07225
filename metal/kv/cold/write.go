package cold

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cespare/xxhash/v2"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// pieceBytes is how much is written or read at once.
const pieceBytes = 1 << 20

// errFenced means that the epoch ended meanwhile.
var errFenced = errors.New("the epoch has ended")

// write persists what is queued, one block after the other, until the tier is
// closing and the queue is empty.
func (t *Tier) write() {
	defer close(t.stopped)
	folders := map[string]bool{} // whose names are to be made durable
	for {
		t.mu.Lock()
		var it *item
		if len(t.queue) > 0 {
			it = t.queue[0]
			t.queue[0] = nil
			t.queue = t.queue[1:]
		}
		closing := t.closing
		t.mu.Unlock()
		switch {
		case it != nil && it.unseen && t.there(it):
		case it != nil:
			path := Path(it.lease.Dir, t.ns, it.key)
			written, left, err := t.persist(it, path)
			if err == nil {
				folders[filepath.Dir(path)] = true
			}
			t.settle(it, written, left, err)
			t.forgetRemoved()
		case closing:
			for dir := range folders {
				if err := t.opt.FS.SyncDir(dir); err != nil {
					t.opt.Log.Warn("Names of cached blocks may not survive a power failure", "error", err)
				}
			}
			return
		default:
			<-t.wake
		}
	}
}

// there says whether the disk has a block already, which is then done with.
func (t *Tier) there(it *item) bool {
	r, _, err := t.open(it.key)
	if err != nil {
		return false
	}
	_ = r.Close() // nothing was written
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(it, int64(len(it.payload)))
	t.counts.Accepted--
	t.counts.Known++
	t.touch(it.key)
	t.broadcast()
	return true
}

// persist writes a temporary file, syncs it, and renames it to its final name:
// any file with a final name is complete. It returns the bytes written, and
// whether some of them may remain on the disk after an error.
func (t *Tier) persist(it *item, path string) (written int64, left bool, err error) {
	f := t.opt.FS
	temporary := temporaryPath(it.lease.Dir, t.ns, it.lease.Epoch, it.key)
	w, err := f.Create(temporary)
	if err != nil {
		return 0, false, t.fenced(it, err)
	}
	head := Header{Key: it.key, Namespace: t.ns, PayloadBytes: int64(len(it.payload)), Sum: xxhash.Sum64(it.payload)}.Encode()
	written, err = writeAll(w, head[:], it.payload)
	if err == nil {
		err = w.Sync()
	}
	if closed := w.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = t.fenced(it, nil)
	}
	if err == nil {
		if err = f.Rename(temporary, path); err == nil {
			return written, false, nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // otherwise it was fenced, and a block there is another writer's
			left = !removed(f, path) // it may have happened in part: what lies there is no longer known
		}
	}
	left = !removed(f, temporary) || left
	return written, left, t.fenced(it, err)
}

// removed says whether nothing lies at a path any more.
func removed(f disk.FS, path string) bool {
	err := f.Remove(path)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// fenced returns err, or errFenced if the epoch of a block ended: then its
// folder is gone, and the error is not the disk's fault.
func (t *Tier) fenced(it *item, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.past(it) || errors.Is(err, fs.ErrNotExist) {
		return errFenced
	}
	return err
}

func writeAll(w io.Writer, parts ...[]byte) (written int64, err error) {
	for _, p := range parts {
		for len(p) > 0 {
			piece := p[:min(len(p), pieceBytes)]
			n, err := w.Write(piece)
			written += int64(n)
			if err == nil && n < len(piece) {
				err = io.ErrShortWrite
			}
			if err != nil {
				return written, err
			}
			p = p[n:]
		}
	}
	return written, nil
}

// settle books what became of a block.
func (t *Tier) settle(it *item, written int64, left bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(it, int64(len(it.payload)))
	current := it.lease.Epoch == t.lease.Epoch
	t.counts.WrittenBytes += written
	switch {
	case err == nil:
		t.counts.Persisted++
		t.counts.PersistedBytes += it.takes
		t.counts.PayloadBytes += int64(len(it.payload))
		if current {
			t.spent += it.takes
			t.report.Persisted = append(t.report.Persisted, File{it.key, it.takes})
		}
		t.written.add(it.key)
		delete(t.bad, it.key)
		t.report.Damaged = slices.DeleteFunc(t.report.Damaged, func(k kv.Key) bool { return k == it.key })
	case errors.Is(err, errFenced):
		t.counts.Dropped[AtFence]++
	default:
		t.counts.Failed++
		if fullDisk(err) {
			t.counts.FullDisk++
		}
		if current && left {
			t.spent += it.takes
		}
		t.opt.Log.Error("Failed to write a cached block to disk; dropping it", "fullDisk", fullDisk(err), "error", err)
	}
	t.broadcast()
	t.tell()
}

// fullDisk says whether an error means that the disk or a quota is used up.
func fullDisk(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
