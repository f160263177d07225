package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/wire"
)

// TestServeIsConfined: once it listens, an engine reaches its
// own model and nothing else.
func TestServeIsConfined(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	p := serveProcess(t)
	p.awaitReady(t, ctx)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2"} { // 2 is a filter (proc_pid_status(5))
		if !strings.Contains(string(status), want) {
			t.Errorf("want %q in\n%s", want, status)
		}
	}
	if _, err := p.client.Shutdown(ctx, &wire.ShutdownRequest{DrainMilliseconds: 100}); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(p.log.String(), "confined to the model") {
		t.Errorf("the log does not name a sandbox:\n%s", p.log)
	}
}
