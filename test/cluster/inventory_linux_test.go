//go:build !race

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatIsLeftIsNamed(t *testing.T) {
	before := inventory{"mount": {"/ ext4"}, "process": {"7 agent"}}
	if err := before.left(inventory{"mount": {"/ ext4"}}); err != nil {
		t.Errorf("something that ended is no leftover: %v", err)
	}
	err := before.left(inventory{"mount": {"/ ext4", "/run tmpfs"}, "process": {"7 agent", "8 engine"}})
	for _, want := range []string{"a mount: /run tmpfs", "a process: 8 engine"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAProcessOfTheFolderIsSeen(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	child.Dir = work
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	for folder, want := range map[string]int{dir: 1, dir + "-other": 0} {
		found, err := processes(folder)
		if err != nil || len(found) != want {
			t.Errorf("of %s: %q, %v; want %d", folder, found, err, want)
		}
	}
	if found, err := mounts(""); err != nil || len(found) == 0 {
		t.Errorf("no mount at all: %q, %v", found, err)
	}
}
