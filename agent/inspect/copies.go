package inspect

import (
	"fmt"
	"os"
	"path/filepath"
)

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

// copyDir makes a folder for the copies of one source.
func (r *Resolver) copyDir() (string, error) { return os.MkdirTemp(r.Dir, "metalfleet-look-*") }
