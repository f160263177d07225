//go:build !race

package macos

import "os"

// player is the program that plays the commands of a Mac: this one.
func player(string) (string, error) { return os.Executable() }
