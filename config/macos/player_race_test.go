//go:build race

package macos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// player builds this test program without the race detector, whose programs
// take a hundred times longer to start: an install starts hundreds of commands.
func player(dir string) (string, error) {
	path := filepath.Join(dir, "player")
	build := exec.Command("go", "test", "-c", "-race=false", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}
