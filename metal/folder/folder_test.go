//go:build !race

package folder_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/metal/folder"
)

func open(t *testing.T) (*folder.Folder, string) {
	t.Helper()
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	if err := os.Mkdir(model, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := folder.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, model
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestFilesAreReadWholeOrRefused(t *testing.T) {
	f, dir := open(t)
	write(t, filepath.Join(dir, "config.json"), `{"a":1}`)
	write(t, filepath.Join(filepath.Dir(dir), "secret.json"), `{"a":2}`)
	for name, err := range map[string]error{
		"escape.json": os.Symlink("../secret.json", filepath.Join(dir, "escape.json")),
		"host.json":   os.Symlink(filepath.Join(filepath.Dir(dir), "secret.json"), filepath.Join(dir, "host.json")),
		"alias.json":  os.Symlink("config.json", filepath.Join(dir, "alias.json")),
		"loop.json":   os.Symlink("loop.json", filepath.Join(dir, "loop.json")),
		"pipe.json":   syscall.Mkfifo(filepath.Join(dir, "pipe.json"), 0o600),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for name, want := range map[string]error{
		"config.json": nil, "alias.json": nil, "absent.json": folder.ErrMissing,
		"escape.json": folder.ErrOutside, "host.json": folder.ErrOutside, "../secret.json": folder.ErrOutside, "..": folder.ErrOutside,
		"loop.json": folder.ErrOutside, "pipe.json": folder.ErrInvalid,
	} {
		if _, err := f.Read(name, 100); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", name, err, want)
		}
	}
	if _, err := f.Read("config.json", 7); err != nil {
		t.Errorf("a file of the limit's size: %v", err)
	}
	if _, err := f.Read("config.json", 6); !errors.Is(err, folder.ErrTooLarge) {
		t.Errorf("a file past its limit: error %v, want ErrTooLarge", err)
	}
	var v struct{ A int }
	if err := f.JSON("config.json", 100, &v); err != nil || v.A != 1 {
		t.Errorf("JSON gave %+v (%v)", v, err)
	}
	write(t, filepath.Join(dir, "broken.json"), `{`)
	if err := f.JSON("broken.json", 100, &v); !errors.Is(err, folder.ErrInvalid) {
		t.Errorf("broken JSON: error %v, want ErrInvalid", err)
	}
}

func TestNamesAreSorted(t *testing.T) {
	f, dir := open(t)
	for _, n := range []string{"b.safetensors", "a.safetensors", "c.gguf"} {
		write(t, filepath.Join(dir, n), "")
	}
	got, err := f.Names(".safetensors")
	if want := []string{"a.safetensors", "b.safetensors"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("names %v (%v), want %v", got, err, want)
	}
	if !f.Has("c.gguf") || f.Has("d.gguf") {
		t.Error("Has is wrong")
	}
}

func TestFoldersInAFolderFollowTheSameRules(t *testing.T) {
	f, dir := open(t)
	for _, name := range []string{filepath.Join(dir, "sub"), filepath.Join(filepath.Dir(dir), "secrets")} {
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(name, "a.txt"), "a")
	}
	if err := os.Symlink("../secrets", filepath.Join(dir, "escape")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "file"), "")
	sub, err := f.Sub("sub")
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if text, err := sub.Read("a.txt", 10); err != nil || string(text) != "a" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := sub.Read("../file", 10); !errors.Is(err, folder.ErrOutside) {
		t.Errorf("a file above: %v", err)
	}
	for name, want := range map[string]error{"none": folder.ErrMissing, "escape": folder.ErrOutside, "..": folder.ErrOutside, "sub/..": folder.ErrOutside, "file": folder.ErrInvalid} {
		if _, err := f.Sub(name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}
