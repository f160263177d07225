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
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT) // nor does it end when it is told to
	select {}
}
