//go:build !race

package cold_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// endless is a disk on which an engine makes names in one folder as fast as they are removed.
type endless struct {
	disk.Contained
	folder        string
	made, removed int
}

func (d *endless) ReadDir(path string) ([]disk.Info, error) {
	if path != d.folder || d.made > 4*disk.MaxNames { // enough for a test
		return d.Contained.ReadDir(path)
	}
	infos := make([]disk.Info, disk.MaxNames)
	for i := range infos {
		d.made++
		infos[i] = disk.Info{Name: "endless" + strconv.Itoa(d.made), Bytes: 1}
	}
	return infos, nil
}

func (d *endless) Stat(path string) (disk.Info, error) {
	if strings.HasPrefix(filepath.Base(path), "endless") {
		return disk.Info{Name: filepath.Base(path), Bytes: 1}, nil
	}
	return d.Contained.Stat(path)
}

func (d *endless) Remove(path string) error {
	if strings.HasPrefix(filepath.Base(path), "endless") {
		d.removed++
		return nil
	}
	return d.Contained.Remove(path)
}

// TestAnOrderToClearEndsWhileAnEngineMakesNames: all others wait for the cache meanwhile.
func TestAnOrderToClearEndsWhileAnEngineMakesNames(t *testing.T) {
	const files = 1000
	for name, where := range map[string]string{"among blocks": blocks.Shards()[3], "in the folder of epochs": blocks.Temporary} {
		t.Run(name, func(t *testing.T) {
			e := newTakenOver(t)
			e.lease.End()
			d := &endless{Contained: disk.Contained{Dir: e.options.Dir}}
			e.options.FS, e.options.Files = d, files
			e.open()
			e.lease = e.leased(e.origin, 1)
			defer e.lease.End()
			d.folder = filepath.Join(e.namespace, where)
			if _, err := e.owner.Clear(blocks.NamespaceOf(e.origin)); err == nil {
				t.Error("the order succeeded although files are left")
			}
			if d.removed > 4*files {
				t.Errorf("%d names were removed while others wait, want at most %d", d.removed, 4*files)
			}
			d.folder = ""
			if _, err := e.owner.Clear(blocks.NamespaceOf(e.origin)); err != nil {
				t.Error(err)
			}
		})
	}
}
