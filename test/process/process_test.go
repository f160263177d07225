//go:build !race

package process

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

const childVariable = "PROCESS_TEST_CHILD"

// TestMain lets the test binary play a program.
func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "fails":
		os.Stderr.WriteString("no such flag\n")
		os.Exit(3)
	}
	os.Stdout.WriteString("up\n")
	time.Sleep(time.Minute) // the test ends it
}

func started(t *testing.T, name, behaviour string) *Program {
	t.Helper()
	p := New(name, os.Args[0], t.TempDir())
	p.Env = []string{childVariable + "=" + behaviour}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestAProgramThatEndsByItselfIsNamedWithItsLog(t *testing.T) {
	p := started(t, "operator", "fails")
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	err := p.Ready(ctx, func(context.Context) error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "operator ended") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("error %v, want one that names program and log", err)
	}
	if err := p.Start(); err != nil {
		t.Errorf("a program that ended cannot be started again: %v", err)
	}
}

func TestAStubbornProgramIsKilledAtOnceInAHurry(t *testing.T) {
	p := started(t, "agent", "stubborn")
	err := p.Ready(t.Context(), func(context.Context) error {
		if b, _ := os.ReadFile(p.Log); string(b) != "up\n" {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a program that runs was started again: %v", err)
	}
	hurry, cancel := context.WithCancel(t.Context())
	cancel() // the second Ctrl-C
	began := time.Now()
	if err := p.Stop(hurry); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); p.PID() != 0 || took >= graceful { // which it would have without a hurry
		t.Errorf("pid %d after %s", p.PID(), took)
	}
}

func TestAProgramThatEndsIsRestartedAFewTimes(t *testing.T) {
	p := started(t, "agent", "stubborn")
	if again, err := p.Restart(); again || err != nil {
		t.Fatalf("a running program: restarted %v, %v", again, err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Restart(); !again || err != nil || p.PID() == 0 {
		t.Fatalf("a killed program: restarted %v, %v, pid %d", again, err, p.PID())
	}
	broken := started(t, "operator", "fails")
	ctx, cancel := context.WithTimeout(t.Context(), patience.Of(t))
	defer cancel()
	for n := 0; ; n++ {
		if err := broken.Ready(ctx, func(context.Context) error { return errors.New("not yet") }); err == nil || ctx.Err() != nil {
			t.Fatalf("the program did not end: %v", err)
		}
		again, err := broken.Restart()
		if err != nil {
			if n != mayRestart || again || !strings.Contains(err.Error(), "no such flag") {
				t.Errorf("after %d restarts: %v, want the log's end after %d", n, err, mayRestart)
			}
			return
		}
		if n == mayRestart {
			t.Fatal("it is restarted for ever")
		}
	}
}
