package netns

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

// equipped says what to install where a program that a sandbox runs is not in
// the folders of PATH: found out at the start, not at the first cut link.
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
