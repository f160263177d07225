package inspect

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// copiesBytes is the most that the copies of all inspections take at once: those of a model, and
// those of the adapters of its order.
const copiesBytes = atOnce * 2 * (maxSmallFiles + remoteBytes)

// EmptyDir returns the folder for copies in an agent's state folder (Resolver.Dir), without those
// that an agent left there when it was killed. No other agent may use the state folder.
func EmptyDir(state string) (string, error) {
	dir := filepath.Join(state, "looks")
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove copies of sources: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for copies of sources: %w", err)
	}
	return dir, nil
}

// copyDir makes a folder for the copies of one source. It refuses that on a disk that copies could
// fill: downloads and the agent's own state are on it.
func (r *Resolver) copyDir() (string, error) {
	if r.Free != nil {
		free, err := r.Free()
		if err != nil {
			return "", download.DiskError(err, "measure the room for")
		}
		if free < copiesBytes {
			return "", &download.Error{Reason: v1alpha1.ReasonDiskFull, Transient: true, Message: fmt.Sprintf(
				"the Mac has %s free, and an inspection needs %s for copies of the model's configuration; free disk space on it, or wait for another Mac",
				v1alpha1.FormatBytes(free), v1alpha1.FormatBytes(copiesBytes))}
		}
	}
	if err := os.MkdirAll(cmp.Or(r.Dir, os.TempDir()), 0o700); err != nil { // it may have been removed
		return "", download.DiskError(err, "make")
	}
	dir, err := os.MkdirTemp(r.Dir, "metalfleet-look-*")
	if err != nil {
		return "", download.DiskError(err, "make room for")
	}
	return dir, nil
}
