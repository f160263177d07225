package probe_test

import (
	"bufio"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/probe"
)

const endFirstVariable = "METALFLEET_PROBE_END_FIRST"

// init runs on the first thread of the process.
func init() {
	if os.Getenv(endFirstVariable) == "" {
		return
	}
	runtime.LockOSThread()
	go func() {
		holdMemory()
		os.Exit(0)
	}()
	_, _, _ = syscall.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// TestAProcessIsMeasuredWithoutItsFirstThread: such a process looks like a zombie. Its other threads
// have the memory, and a process without a start time would not be ended.
func TestAProcessIsMeasuredWithoutItsFirstThread(t *testing.T) {
	const held = 64 << 20
	cmd, in, out := launch(t, endFirstVariable+"=1", "GOMAXPROCS=4")
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := in.Write([]byte("67108864\n")); err != nil {
		t.Fatal(err)
	}
	for lines, n := bufio.NewScanner(out), 0; n < 2; n++ { // when it began, and when it has the memory
		if !lines.Scan() {
			t.Fatal("the child ended")
		}
	}
	if _, err := probe.NewSystem().StartTime(cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	n, err := probe.NewSystem().Footprint(cmd.Process.Pid)
	if err != nil || n < held {
		t.Errorf("a process that holds %d bytes has %d, %v", held, n, err)
	}
}
