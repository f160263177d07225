// Command broken is an agent that is none: it says its version as it should,
// and then ends at once or never gets anywhere.
//
// It owns what an upgrade has to survive. It refuses to be of any use.
//
// Start reading at main.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Set by the linker: the version that it says, and whether it hangs or exits.
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
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	for range told { // it does not even end when it is told to
	}
}
