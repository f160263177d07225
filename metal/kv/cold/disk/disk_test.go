//go:build !race

package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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
	deep := filepath.Join("model", strings.Repeat("d/", 1200))
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

// TestContainedFoldersAreNoLinks: the other program puts a link in place of one of the folders
// itself, to a folder elsewhere or to another one of Dir.
func TestContainedFoldersAreNoLinks(t *testing.T) {
	for _, inDir := range []bool{false, true} {
		dir := t.TempDir()
		target := t.TempDir()
		if inDir {
			target = filepath.Join(dir, "another")
		}
		model, held := filepath.Join(dir, "model"), filepath.Join(target, "folder", "file")
		if err := errors.Join(os.MkdirAll(filepath.Dir(held), 0o700), os.WriteFile(held, []byte("x"), 0o600), os.Symlink(target, model)); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(held)
		if err != nil {
			t.Fatal(err)
		}
		c := disk.Contained{Dir: dir}
		folder, file := filepath.Join(model, "folder"), filepath.Join(model, "folder", "file")
		for name, do := range map[string]func() error{
			"create":               func() error { _, err := c.Create(filepath.Join(folder, "new")); return err },
			"open":                 func() error { _, err := c.Open(file); return err },
			"stat":                 func() error { _, err := c.Stat(file); return err },
			"list":                 func() error { _, err := c.ReadDir(model); return err },
			"list a folder within": func() error { _, err := c.ReadDir(folder); return err },
			"make":                 func() error { return c.MkdirAll(model) },
			"make a folder within": func() error { return c.MkdirAll(filepath.Join(model, "new")) },
			"rename":               func() error { return c.Rename(file, filepath.Join(folder, "new")) },
			"remove":               func() error { return c.Remove(file) },
			"set the time":         func() error { return c.SetTime(file, before.ModTime().Add(-time.Hour)) },
			"sync":                 func() error { return c.SyncDir(folder) },
		} {
			if err := do(); !errors.Is(err, syscall.ENOTDIR) {
				t.Errorf("%s: %v, want %v", name, err, syscall.ENOTDIR)
			}
		}
		after, err := os.Stat(held)
		if err != nil || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("the file of another folder is %v, %v", after, err)
		}
		for _, path := range []string{target, filepath.Dir(held)} {
			if all, err := os.ReadDir(path); err != nil || len(all) != 1 {
				t.Errorf("%s has %v, %v", path, all, err)
			}
		}
		if info, err := c.Stat(model); err != nil || info.Mode.IsDir() {
			t.Errorf("the link is %v, %v", info, err)
		}
		if err := c.Remove(model); err != nil {
			t.Error(err)
		}
	}
}
