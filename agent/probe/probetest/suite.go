// Package probetest is the suite that every probe.Probe passes. It owns what
// callers may rely on and refuses to know how a probe reads its figures.
//
// Start reading at Run.
package probetest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/probe"
)

// Process is a process under a test's control.
type Process struct {
	PID int
	// Grow makes it hold that many bytes more.
	Grow func(bytes int64)
	// End makes it gone, and returns once it is.
	End func()
}

const mib = int64(1) << 20

// Run checks a probe; start makes a new process that the probe can see.
func Run(t *testing.T, p probe.Probe, start func(t *testing.T) Process) {
	t.Run("a footprint follows what the process holds", func(t *testing.T) { footprintFollows(t, p, start(t)) })
	t.Run("a process that ended is gone, not empty", func(t *testing.T) { endedIsGone(t, p, start(t)) })
	t.Run("a start time names the process", func(t *testing.T) { startTimeNames(t, p, start(t), start(t)) })
	t.Run("the host's figures add up", func(t *testing.T) { hostAddsUp(t, p) })
	t.Run("no figure is negative", func(t *testing.T) { moreOwnIsLessForeign(t, p) })
}

func footprintFollows(t *testing.T, p probe.Probe, proc Process) {
	before, err := p.Footprint(proc.PID)
	if err != nil || before <= 0 {
		t.Fatalf("footprint %d, %v", before, err)
	}
	proc.Grow(32 * mib)
	after, err := p.Footprint(proc.PID)
	if err != nil || after-before < 32*mib || after-before > 48*mib {
		t.Errorf("grew by 32 MiB, footprint by %d (%v)", after-before, err)
	}
}

func endedIsGone(t *testing.T, p probe.Probe, proc Process) {
	proc.End()
	if n, err := p.Footprint(proc.PID); !errors.Is(err, probe.ErrGone) {
		t.Errorf("footprint of an ended process: %d, %v", n, err)
	}
	if s, err := p.StartTime(proc.PID); !errors.Is(err, probe.ErrGone) {
		t.Errorf("start time of an ended process: %q, %v", s, err)
	}
}

func startTimeNames(t *testing.T, p probe.Probe, one, two Process) {
	a, err := p.StartTime(one.PID)
	if err != nil || a == "" {
		t.Fatalf("start time %q, %v", a, err)
	}
	one.Grow(mib)
	if again, err := p.StartTime(one.PID); err != nil || again != a {
		t.Errorf("start time changed from %q to %q (%v)", a, again, err)
	}
	if b, err := p.StartTime(two.PID); err != nil || one.PID == two.PID && a == b {
		t.Errorf("two processes share id and start %q (%v)", b, err)
	}
}

func hostAddsUp(t *testing.T, p probe.Probe) {
	h, err := p.Host(context.Background(), 64*mib)
	if err != nil {
		t.Fatal(err)
	}
	if h.Total <= 0 || h.Free < 0 || h.Free > h.Total || h.Foreign < 0 {
		t.Errorf("%+v", h)
	}
	// Logical bytes: pages in the compressor and on disk need no page of memory.
	if h.Used < 0 || h.Used > h.Total+h.Compressed+h.SwapUsed {
		t.Errorf("%d bytes in use of %+v", h.Used, h)
	}
	if h.Inactive < 0 || h.Active < 0 || h.Free+h.Inactive+h.Active > h.Total {
		t.Errorf("free %d, inactive %d and active %d are more than the machine has", h.Free, h.Inactive, h.Active)
	}
	if h.Wired < 0 || h.Wired > h.Total || !h.WiredKnown && h.Wired != 0 || h.Compressed < 0 || h.SwapUsed < 0 || h.MetalCap < 0 {
		t.Errorf("%+v", h)
	}
	if !slices.Contains([]string{"", probe.Normal, probe.Warning, probe.Critical}, h.Pressure) {
		t.Errorf("unknown memory pressure %q", h.Pressure)
	}
	if !slices.Contains([]string{"", probe.Nominal, probe.Fair, probe.Serious, probe.Critical}, h.Thermal) {
		t.Errorf("unknown thermal state %q", h.Thermal)
	}
}

// moreOwnIsLessForeign: what our engines hold is never foreign.
func moreOwnIsLessForeign(t *testing.T, p probe.Probe) {
	h, err := p.Host(context.Background(), 1<<50)
	if err != nil || h.Foreign < 0 || h.Free < 0 || h.Active < 0 {
		t.Errorf("engines that hold more than the machine has leave a negative figure: %+v (%v)", h, err)
	}
}
