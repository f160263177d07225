//go:build !race

package cold_test

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"metalfleet.dev/metalfleet/agent/cold"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// TestAnEngineTakesNoRightsAwayForGood: the next one has its cache, and the grant of the first
// one is free again.
func TestAnEngineTakesNoRightsAwayForGood(t *testing.T) {
	runtime.LockOSThread() // it ends with the test
	if os.Geteuid() == 0 { // who may read everything
		if err := syscall.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer syscall.Setfsuid(0) //nolint:errcheck // its thread ends
	}
	for name, at := range map[string]func(e *takenOver) string{
		"its model's folder": func(e *takenOver) string { return filepath.Dir(e.namespace) },
		"its blocks' folder": func(e *takenOver) string { return e.namespace },
		"one with blocks":    func(e *takenOver) string { return filepath.Join(e.namespace, blocks.Shards()[0]) },
		"that of its epochs": func(e *takenOver) string { return filepath.Join(e.namespace, blocks.Temporary) },
	} {
		for _, rights := range []os.FileMode{0, 0o400, 0o500} {
			e := &takenOver{T: t, origin: origin("a"), state: t.TempDir()}
			if err := os.Chown(e.state, 65534, -1); err != nil && os.Geteuid() == 0 {
				t.Fatal(err)
			}
			e.options = cold.Options{Dir: filepath.Join(e.state, "kv")}
			e.options.FS = disk.Contained{Dir: e.options.Dir}
			e.open()
			e.namespace = blocks.Folder(blocks.ModelFolder(e.options.Dir, e.origin.Model), blocks.NamespaceOf(e.origin))
			var err error
			if e.lease, err = e.owner.Lease(e.origin, nil); err != nil {
				t.Fatal(err)
			}
			t.Log(name, rights) // no subtest: that is another thread
			e.leaves(func(e *takenOver) error { return os.Chmod(at(e), rights) })
		}
	}
}
