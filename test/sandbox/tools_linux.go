package sandbox

import (
	"fmt"
	"os/exec"
	"strings"
)

// tools are the programs that a sandbox runs, with the Debian package of each.
var tools = []struct{ program, pkg string }{
	{"ip", "iproute2"},
	{"nsenter", "util-linux"},
	{"nft", "nftables"},
}

// equipped is an error with what to install if a program that a sandbox runs is
// not in PATH: at the start, not at the first link that is cut.
func equipped() error {
	var programs, packages []string
	for _, t := range tools {
		if _, err := exec.LookPath(t.program); err != nil {
			programs, packages = append(programs, t.program), append(packages, t.pkg)
		}
	}
	if len(programs) == 0 {
		return nil
	}
	return fmt.Errorf("missing: %s; install what has it, on Debian: apt-get install %s",
		strings.Join(programs, ", "), strings.Join(packages, " "))
}
