// Package macos tests what is installed on a Mac without one: config/macos, the
// daemon's plist and install.sh.
//
// It owns a played Mac: a folder in place of the disk, and commands of macOS
// that keep their state in a file beside it, fail where a test says so, and
// refuse what a Mac's own would refuse; commands that Linux and a Mac share get
// only flags that both know. It refuses to say that the script works on a Mac:
// nobody has run it there.
//
// Start reading at played in played_test.go, then install_test.go.
package macos
