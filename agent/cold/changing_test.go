//go:build !race

package cold_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// changing is a disk on which an engine changes a folder while that is read.
type changing struct {
	disk.Contained
	folder string
	err    error
}

func (c *changing) ReadDir(path string) ([]disk.Info, error) {
	if path == c.folder {
		return nil, &os.PathError{Op: "open", Path: path, Err: c.err}
	}
	return c.Contained.ReadDir(path)
}

// TestTheCacheOpensWhileAnEngineChangesItsFolder, which lives on after the agent's end.
func TestTheCacheOpensWhileAnEngineChangesItsFolder(t *testing.T) {
	for _, err := range []error{fs.ErrNotExist, syscall.ENOTEMPTY, syscall.EEXIST, syscall.EISDIR} {
		e := newTakenOver(t)
		e.lease.End()
		e.options.FS = &changing{disk.Contained{Dir: e.options.Dir}, filepath.Dir(e.namespace), err}
		e.open()
	}
}
