package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/failpoint"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

// agentVariable makes the test program play an agent that is killed at a fault
// point: it holds a crashPlan.
const agentVariable = "METALFLEET_POOL_AGENT"

// crashPlan is what the doomed agent does: it follows First, then, once the
// replica serves, Then; at Point it kills itself.
type crashPlan struct {
	Dir, Point  string
	First, Then journal.Desired
}

// playAgent runs until the fault point.
func playAgent(encoded string) int {
	var plan crashPlan
	if err := json.Unmarshal([]byte(encoded), &plan); err != nil {
		return fail(err)
	}
	j, err := journal.Open(plan.Dir, time.Now())
	if err != nil {
		return fail(err)
	}
	host := probe.NewDeclared(probe.Declaration{Chip: "M4", Memory: 16 << 30}, probe.NewSystem())
	doomed, engines := failpoint.Wrap(j, process.System{Probe: host}, func(point string) {
		if point == plan.Point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	p, err := New(Config{
		Log: logr.Discard(), Journal: doomed, Ledger: memory.NewLedger(), Probe: host, Engines: engines,
		Weights: &scripts{dir: plan.Dir}, Engine: os.Args[0], EngineEnv: enginetest.Env(), StateDir: plan.Dir, Timing: quick(),
	})
	if err != nil {
		return fail(err)
	}
	p.Adopt(context.Background())
	go func() { _ = p.Run(context.Background()) }()
	p.Apply(plan.First)
	for deadline := time.Now().Add(patience.Most); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, a := range p.Snapshot().Assignments {
			if status(a, v1alpha1.ConditionServing) == "True/Serving" {
				p.Apply(plan.Then)
			}
		}
	}
	return fail(fmt.Errorf("%s was never reached", plan.Point))
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "agent:", err)
	return 1
}

// TestAnAgentKilledAtAnyStepLosesNothing: real processes. The next agent
// finishes the job: one engine at most, the ledger equals the residents, and
// what was freed is counted once.
func TestAnAgentKilledAtAnyStepLosesNothing(t *testing.T) {
	for i, point := range failpoint.All() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.halt()
			r.script("m", enginetest.Script{HoldBytes: 16 * mib, LoadMilliseconds: 30})
			a := assignment("u", "m")
			drained := a
			drained.Desired = v1alpha1.DesiredDrained
			r.killAgentAt(crashPlan{Dir: r.dir, Point: point, First: orders(a), Then: orders(drained)})

			r.boot()
			r.Apply(orders(drained))
			done := r.waitFor("u", v1alpha1.ConditionReleased, "True/Released")
			r.wantNoProcess()
			if acc := r.registry.ledger.Account(); len(acc.Holders) != 0 {
				t.Errorf("ledger %+v", acc.Holders)
			}
			r.wantCountedOnce(done)
			if loaded := i >= 4; loaded && (done.Freed.Bytes == nil || *done.Freed.Bytes < 16*mib) {
				t.Errorf("what it held is not told: %+v", done.Freed)
			}
			first := r.Snapshot()
			r.halt()
			r.boot()
			r.Apply(orders(drained))
			if again := r.Snapshot(); len(again.Reclaims) != len(first.Reclaims) || again.Memory.FreedBytesTotal != first.Memory.FreedBytesTotal {
				t.Errorf("after another restart: %d reclaims of %d bytes, were %d of %d",
					len(again.Reclaims), again.Memory.FreedBytesTotal, len(first.Reclaims), first.Memory.FreedBytesTotal)
			}
		})
	}
}

// TestAnAgentKilledAtAnyStepOfALoadServesAgain, with one engine and not two.
func TestAnAgentKilledAtAnyStepOfALoadServesAgain(t *testing.T) {
	for _, point := range failpoint.All()[:5] {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.halt()
			r.script("m", enginetest.Script{HoldBytes: 16 * mib, LoadMilliseconds: 30})
			a := assignment("u", "m")
			r.killAgentAt(crashPlan{Dir: r.dir, Point: point, First: orders(a), Then: orders(a)})
			r.boot()
			r.Apply(orders(a))
			r.serving("u")
			if n := len(r.processes()); n != 1 {
				t.Errorf("%d engine processes", n)
			}
			if n := r.registry.ledger.Account().Reserved; n != a.ReservedBytes {
				t.Errorf("%d bytes are reserved", n)
			}
		})
	}
}

// killAgentAt runs a doomed agent to its end.
func (r *rig) killAgentAt(plan crashPlan) {
	r.t.Helper()
	b, err := json.Marshal(plan)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), agentVariable+"="+string(b), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		r.t.Fatalf("the agent ended otherwise: %v: %s", err, out)
	}
}

// processes lists the engines of this rig by their command lines, whether an
// agent knows them or not.
func (r *rig) processes() (pids []string) {
	r.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err == nil && len(b) > 0 && strings.Contains(string(b), r.dir+"/run/") {
			pids = append(pids, path)
		}
	}
	return pids
}

func (r *rig) wantNoProcess() {
	r.t.Helper()
	eventually(r.t, func() string {
		if left := r.processes(); len(left) > 0 {
			return fmt.Sprintf("processes are left: %v", left)
		}
		return ""
	})
}

// wantCountedOnce: the total is the sum over the reclaims, of which there is
// one for each load at most.
func (r *rig) wantCountedOnce(s v1alpha1.AssignmentStatus) {
	r.t.Helper()
	snap := r.Snapshot()
	seen, sum := map[string]bool{}, int64(0)
	for _, c := range snap.Reclaims {
		if seen[c.ID] {
			r.t.Errorf("%s was reclaimed twice", c.ID)
		}
		seen[c.ID] = true
		if c.FreedBytes != nil {
			sum += *c.FreedBytes
		}
	}
	if snap.Memory.FreedBytesTotal != sum || s.Freed.TotalBytes != sum {
		r.t.Errorf("freed %d in all and %d of the replica, the reclaims say %d", snap.Memory.FreedBytesTotal, s.Freed.TotalBytes, sum)
	}
}
