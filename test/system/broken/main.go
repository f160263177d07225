// Command broken is an agent that does not work: it prints its version as it
// should, and then exits at once or hangs. TestUpgrade of test/system builds it.
//
// It owns the ways in which a release can be bad. It refuses to be of any use.
//
// Start reading at main.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Set by the linker: the version that it prints, and whether it hangs or exits.
var version, mode = "unversioned", "exit"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("agent", version)
		return
	}
	if mode == "exit" {
		fmt.Fprintln(os.Stderr, "agent: this build is broken, as a test wants it")
		os.Exit(1)
	}
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGTERM, syscall.SIGINT)
	for range ignored { // it does not even end on SIGTERM
	}
}
