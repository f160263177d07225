package probe_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/agent/probe/probetest"
	"metalfleet.dev/metalfleet/test/patience"
)

const childVariable = "METALFLEET_PROBE_CHILD"

// TestMain lets the test program play the process that is measured: each line
// on its input is a number of bytes to hold, answered by "ok".
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		holdMemory()
		return
	}
	os.Exit(m.Run())
}

func holdMemory() {
	fmt.Println("ok")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var n int
		if _, err := fmt.Sscan(in.Text(), &n); err != nil {
			os.Exit(2)
		}
		b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			os.Exit(3)
		}
		for i := 0; i < n; i += 4096 {
			b[i] = 1
		}
		fmt.Println("ok")
	}
}

// launch starts this program again, with variables that choose what it does.
func launch(t *testing.T, variables ...string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), variables...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, in, out
}

func startChild(t *testing.T) probetest.Process {
	t.Helper()
	cmd, in, out := launch(t, childVariable+"=1")
	answers := bufio.NewScanner(out)
	wait := func() {
		if !answers.Scan() || answers.Text() != "ok" {
			t.Fatalf("child answered %q", answers.Text())
		}
	}
	wait()
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	return probetest.Process{
		PID:  cmd.Process.Pid,
		Grow: func(n int64) { fmt.Fprintln(in, n); wait() },
		End:  end,
	}
}

func TestSystemPassesTheSuite(t *testing.T) { probetest.Run(t, probe.NewSystem(), startChild) }

func TestDeclaredPassesTheSuite(t *testing.T) {
	probetest.Run(t, probe.NewDeclared(probe.Declaration{Chip: "M4", Memory: 16 << 30}, probe.NewSystem()), startChild)
}

func TestScriptedPassesTheSuite(t *testing.T) {
	s := probe.NewScripted(probe.Host{Total: 1 << 40})
	next := 100
	probetest.Run(t, s, func(*testing.T) probetest.Process {
		next++
		pid, held := next, int64(1000)
		set := func() { s.SetProcess(pid, fmt.Sprint("start of ", pid), held) }
		set()
		return probetest.Process{PID: pid, Grow: func(n int64) { held += n; set() }, End: func() { s.EndProcess(pid) }}
	})
}

// TestAZombieIsGone: a process that ended but was not waited for holds nothing.
func TestAZombieIsGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("true")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if _, err := r.Read(make([]byte, 1)); err == nil { // its end closes the pipe
		t.Fatal("true wrote something")
	}
	gone := false
	for deadline := time.Now().Add(patience.Of(t)); time.Now().Before(deadline); {
		if _, err := probe.NewSystem().StartTime(cmd.Process.Pid); errors.Is(err, probe.ErrGone) {
			gone = true
			break
		}
	}
	if !gone {
		t.Error("a zombie still counts as living")
	}
	if n, err := probe.NewSystem().Footprint(cmd.Process.Pid); !errors.Is(err, probe.ErrGone) {
		t.Errorf("footprint of a zombie: %d, %v", n, err)
	}
	_ = cmd.Wait()
}

func TestADeclaredHostCountsOwnAndForeignBytes(t *testing.T) {
	d := probe.NewDeclared(probe.Declaration{Chip: "M2Ultra", Memory: 192 << 30}, probe.NewSystem())
	d.SetForeign(10 << 30)
	h, err := d.Host(context.Background(), 2<<30)
	want := probe.Host{Chip: "M2Ultra", Total: 192 << 30, MetalCap: 144 << 30, Free: 180 << 30, Active: 10 << 30,
		Foreign: 10 << 30, Used: 12 << 30, Pressure: probe.Normal, Thermal: probe.Nominal, Simulated: true}
	if err != nil || h != want {
		t.Errorf("got %+v (%v), want %+v", h, err, want)
	}
}

func TestADeclaredHostSaysWhatItIsTold(t *testing.T) {
	d := probe.NewDeclared(probe.Declaration{Chip: "M4", Memory: 16 << 30}, probe.NewSystem())
	if h, _ := d.Host(context.Background(), 0); h.WiredKnown {
		t.Errorf("wired bytes are known before anybody declared them: %+v", h)
	}
	d.SetWired(3 << 30)
	d.SetPressure(probe.Critical)
	d.SetThermal(probe.Serious)
	d.SetForeign(20 << 30)
	h, err := d.Host(context.Background(), 2<<30)
	if err != nil || !h.WiredKnown || h.Wired != 3<<30 || h.Pressure != probe.Critical || h.Thermal != probe.Serious {
		t.Errorf("%+v (%v)", h, err)
	}
	if h.Free != 0 || h.Active != 14<<30 {
		t.Errorf("foreign bytes beyond the machine: free %d, active %d; want 0 and what our engines leave", h.Free, h.Active)
	}
}

func TestDeclarationsAreChecked(t *testing.T) {
	for in, want := range map[string]string{
		"chip=M2Ultra,memory=192Gi": "",
		"memory=16Gi,chip=M4":       "",
		"chip=M2Ultra":              "both needed",
		"chip=i9,memory=1Gi":        "not an Apple chip",
		"chip=M4,memory=lots":       "not a valid amount",
		"chip=M4,memory=-1Gi":       "not a valid amount",
		"chip=M4,memory=1Gi,gpu=2":  "cannot parse",
		"":                          "cannot parse",
	} {
		_, err := probe.ParseDeclaration(in)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}
