// Package macos tests the installation on a Mac without one: the daemon's plist
// and install.sh.
//
// It owns a simulated Mac: a folder in place of the disk, and replacements for
// the commands of macOS that keep their state in a file next to it, fail when a
// test requests it, and reject what the real commands reject; commands that Linux
// and macOS share receive only flags that both support. It does not prove that
// the script works on a Mac, where it has not been run.
//
// Start reading at played in played_test.go, then install_test.go.
package macos
