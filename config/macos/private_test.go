//go:build !race

package macos

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestOnlyRootReadsTheFlags: they may have the password of a proxy. Those that an older version
// installed for all users to read are closed without a restart.
func TestOnlyRootReadsTheFlags(t *testing.T) {
	const plist = "Library/LaunchDaemons/" + label + ".plist"
	files := []string{"usr/local/etc/metalfleet/agent.flags", plist}
	m := joined(t)
	private := func() {
		t.Helper()
		for _, file := range files {
			if i, err := os.Stat(m.at(file)); err != nil || i.Mode() != 0o600 {
				t.Errorf("%s: %v, %v", file, i.Mode(), err)
			}
		}
	}
	private()
	m.mustInstall("--agent-flag=--proxy=http://user:password@proxy.example")
	private()
	for _, file := range files {
		m.must(os.Chmod(m.at(file), 0o644))
		m.mustInstall()
		private()
		if slices.ContainsFunc(m.log(), func(l string) bool { return strings.HasPrefix(l, "launchctl bootout") }) {
			t.Errorf("%s: the agent was restarted", file)
		}
	}
}
