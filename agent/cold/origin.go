package cold

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"metalfleet.dev/metalfleet/metal/kv"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// maxOriginBytes bounds the file with the origin of a namespace.
const maxOriginBytes = 1 << 16

// note writes the origin of a namespace.
func (w *Owner) note(o kv.Origin) error {
	n := blocks.NamespaceOf(o)
	if w.origins[n] == o {
		return nil
	}
	w.fewer(o.Model)
	if err := w.writeOrigin(o); err != nil {
		return err
	}
	w.origins[n] = o
	return nil
}

// writeOrigin writes the file of an origin.
func (w *Owner) writeOrigin(o kv.Origin) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if len(b) > maxOriginBytes {
		return fmt.Errorf("origin file has %d bytes, want at most %d", len(b), maxOriginBytes)
	}
	folder := blocks.Folder(blocks.ModelFolder(w.opt.Dir, o.Model), blocks.NamespaceOf(o))
	if err := errors.Join(w.clearPlace(filepath.Dir(folder)), w.opt.FS.MkdirAll(folder)); err != nil {
		return err
	}
	f, err := w.opt.FS.Create(filepath.Join(folder, blocks.OriginFile))
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// readOrigin reads what note wrote in a model's folder.
func (w *Owner) readOrigin(folder string, n blocks.Namespace) (kv.Origin, error) {
	r, err := w.opt.FS.Open(filepath.Join(blocks.Folder(folder, n), blocks.OriginFile))
	if err != nil {
		return kv.Origin{}, err
	}
	defer r.Close()
	i, err := r.Stat()
	if err != nil || !i.Mode.IsRegular() || i.Bytes > maxOriginBytes {
		return kv.Origin{}, fmt.Errorf("cannot use %s of namespace %s: %w", blocks.OriginFile, n, err)
	}
	b := make([]byte, i.Bytes)
	if m, err := r.ReadAt(b, 0); m < len(b) {
		return kv.Origin{}, err
	}
	var o kv.Origin
	if err := json.Unmarshal(b, &o); err != nil {
		return kv.Origin{}, err
	}
	if blocks.NamespaceOf(o) != n || blocks.ModelFolder(w.opt.Dir, o.Model) != folder {
		return kv.Origin{}, fmt.Errorf("%s of namespace %s belongs to another namespace", blocks.OriginFile, n)
	}
	return o, nil
}
