//go:build !race

package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk/disktest"
)

func TestTheSystemsFilesPassTheSuite(t *testing.T) {
	disktest.Run(t, func(t *testing.T) (disk.FS, string) { return disk.OS{}, t.TempDir() })
}

func TestContainedFilesPassTheSuite(t *testing.T) {
	disktest.Run(t, func(t *testing.T) (disk.FS, string) {
		dir := t.TempDir()
		inside := filepath.Join(dir, "model", "namespace")
		if err := os.MkdirAll(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		return disk.Contained{Dir: dir}, inside
	})
	disktest.Run(t, func(t *testing.T) (disk.FS, string) { dir := t.TempDir(); return disk.Contained{Dir: dir}, dir })
}

func TestContainedFilesHaveNoLongPaths(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	deep := filepath.Join("model", strings.Repeat("d/", 600))
	if err := root.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := (disk.Contained{Dir: dir}).ReadDir(filepath.Join(dir, deep)); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("a path of %d bytes: %v", len(deep), err)
	}
	if err := root.RemoveAll("model"); err != nil {
		t.Error(err)
	}
}
