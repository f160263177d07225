package main

import (
	"os"
	"testing"
	"time"

	"howett.net/plist"

	"metalfleet.dev/metalfleet/agent"
)

// On a Mac, launchd kills what has not ended after ExitTimeOut: running answers
// would be cut, and the stop not announced.
func TestTheMacsDaemonMayFinishWhatItBegan(t *testing.T) {
	b, err := os.ReadFile("../../config/macos/dev.metalfleet.agent.plist")
	if err != nil {
		t.Fatal(err)
	}
	var daemon struct {
		ProgramArguments []string
		ExitTimeOut      int
	}
	if _, err := plist.Unmarshal(b, &daemon); err != nil {
		t.Fatal(err)
	}
	f, err := parse(daemon.ProgramArguments[1:], os.Stderr)
	if err != nil {
		t.Fatalf("the agent does not take the daemon's flags: %v", err)
	}
	if f.grace < agent.DefaultGrace {
		t.Errorf("a grace of %s is less than the default", f.grace)
	}
	if out := time.Duration(daemon.ExitTimeOut) * time.Second; out <= agent.StopLimit(f.grace) {
		t.Errorf("launchd kills the agent after %s, which may take %s with a grace of %s", out, agent.StopLimit(f.grace), f.grace)
	}
}
