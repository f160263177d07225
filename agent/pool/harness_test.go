package pool

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// TestMain lets the test program play the engine, or an agent that is killed.
func TestMain(m *testing.M) {
	if plan := os.Getenv(agentVariable); plan != "" && !enginetest.Requested() {
		os.Exit(playAgent(plan))
	}
	if enginetest.Requested() {
		os.Exit(enginetest.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// rig is a pool over fake engines that are real processes.
type rig struct {
	*Pool
	t       *testing.T
	dir     string
	timing  Timing
	weights *scripts
	host    *probe.Declared
	stop    context.CancelFunc
	ended   chan struct{}
	started map[int64]string // engines that served, by process id: their start times
}

// scripts is a store whose files are scripts, by source.
type scripts struct {
	dir string
	mu  sync.Mutex
	err error
	// fetched is called with each source that is asked for; may be nil.
	fetched func(source string)
}

func (s *scripts) Ensure(_ context.Context, r model.Record, _ string, progress func(done, total int64)) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetched != nil {
		s.fetched(r.Source)
	}
	progress(r.Bytes()/2, r.Bytes())
	return filepath.Join(s.dir, r.Source), s.err
}

func (s *scripts) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// quick are delays for tests. What Hello, Stop and Term bound takes milliseconds,
// and much longer on a machine with much else to do; where a test has an engine
// that never does it, it bounds that by itself. Stray is waited for in full
// wherever an agent died before it had started an engine.
func quick() Timing {
	const poll = 20 * time.Millisecond
	return Timing{Poll: poll, LoadedPoll: poll, IdlePoll: poll, Settle: 10 * time.Millisecond,
		Hello: patience.Most, Stop: patience.Most, Term: patience.Most, Adopt: patience.Most, Stray: 15 * time.Second}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigOf(t, quick())
}

// newRigOf is one with delays of its own.
func newRigOf(t *testing.T, timing Timing) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mf-pool-")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, timing: timing, weights: &scripts{dir: dir}, started: map[int64]string{}}
	t.Cleanup(func() {
		r.killEngines()
		_ = os.RemoveAll(dir)
	})
	r.boot()
	return r
}

// boot starts an agent's pool over what lies on disk.
func (r *rig) boot() {
	r.t.Helper()
	j, err := journal.Open(r.dir, time.Now())
	if err != nil {
		r.t.Fatal(err)
	}
	r.host = probe.NewDeclared(probe.Declaration{Chip: "M4", Memory: 16 << 30}, probe.NewSystem())
	engines, err := process.NewSystem(r.host, os.Args[0])
	if err != nil {
		r.t.Fatal(err)
	}
	r.Pool, err = New(Config{
		Log: testr.New(r.t), Journal: j, Ledger: memory.NewLedger(), Probe: r.host, Weights: r.weights,
		Engines: engines, Engine: os.Args[0], EngineEnv: enginetest.Env(), StateDir: r.dir, Timing: r.timing,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.Adopt(ctx)
	ended := make(chan struct{})
	r.stop, r.ended = stop, ended
	pool := r.Pool
	go func() {
		defer close(ended)
		_ = pool.Run(ctx)
	}()
	r.t.Cleanup(func() { stop(); <-ended })
}

// halt ends the pool and leaves the engines.
func (r *rig) halt() {
	r.stop()
	<-r.ended
}

// killEngines ends every engine that the journal knows or that served: a test of
// a lost journal may leave one that is in neither.
func (r *rig) killEngines() {
	if j, err := journal.Open(r.dir, time.Now()); err == nil {
		for _, e := range j.Snapshot().Engines {
			r.started[int64(e.PID)] = e.StartTime
		}
	}
	for pid, start := range r.started {
		if s, err := probe.NewSystem().StartTime(int(pid)); err == nil && s == start {
			_ = syscall.Kill(int(pid), syscall.SIGKILL)
		}
	}
}

// script writes an engine's script under a source name.
func (r *rig) script(name string, s enginetest.Script) {
	r.t.Helper()
	if err := enginetest.WriteScript(filepath.Join(r.dir, name), s); err != nil {
		r.t.Fatal(err)
	}
}

// assignment orders a replica whose model is the script of that name.
func assignment(uid, source string) v1alpha1.Assignment {
	files := []model.File{{Path: "m.gguf", Bytes: 1000, SHA256: strings.Repeat("ab", 32)}}
	return v1alpha1.Assignment{
		ReplicaUID: uid, Epoch: 1, Namespace: "team", Name: "replica-" + uid, ServedNames: []string{"name-" + uid},
		Model:   model.Record{Source: source, Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files},
		Context: v1alpha1.ContextLimits{MaxTokens: 64, MaxConcurrentRequests: 2, KVCacheTokens: 128}, ReservedBytes: 100 * mib,
		DrainSeconds: 10, Desired: v1alpha1.DesiredRunning,
	}
}

func orders(a ...v1alpha1.Assignment) journal.Desired {
	return journal.Desired{Generation: 1, Assignments: a}
}

func (r *rig) report(uid string) v1alpha1.AssignmentStatus {
	for _, a := range r.Snapshot().Assignments {
		if a.ReplicaUID == uid {
			return a
		}
	}
	return v1alpha1.AssignmentStatus{}
}

func status(a v1alpha1.AssignmentStatus, kind string) string {
	for _, c := range a.Conditions {
		if c.Type == kind {
			return string(c.Status) + "/" + c.Reason
		}
	}
	return ""
}

// eventually polls until ok says "" and fails with its last words.
func eventually(t *testing.T, ok func() string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(patience.Of(t)); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if last = ok(); last == "" {
			return
		}
	}
	t.Fatal(last)
}

func (r *rig) waitFor(uid, kind, want string) v1alpha1.AssignmentStatus {
	r.t.Helper()
	var a v1alpha1.AssignmentStatus
	eventually(r.t, func() string {
		a = r.report(uid)
		if got := status(a, kind); got != want {
			return fmt.Sprintf("%s of %s is %q, want %q: %+v", kind, uid, got, want, a)
		}
		return ""
	})
	return a
}

func (r *rig) serving(uid string) v1alpha1.AssignmentStatus {
	r.t.Helper()
	s := r.waitFor(uid, v1alpha1.ConditionServing, "True/Serving")
	if start, err := probe.NewSystem().StartTime(int(s.PID)); err == nil {
		r.started[s.PID] = start
	}
	return s
}

// alive reports whether a process lives.
func alive(pid int64) bool {
	_, err := probe.NewSystem().StartTime(int(pid))
	return err == nil
}

// footprintOf reads /proc itself, as a person would.
func footprintOf(t *testing.T, pid int64) (sum int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		var kib int64
		for _, name := range []string{"Pss_Anon:", "Pss_Shmem:", "SwapPss:"} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				if _, err := fmt.Sscan(rest, &kib); err != nil {
					t.Fatal(err)
				}
				sum += kib << 10
			}
		}
	}
	return sum
}

func near(a, b int64, percent int64) bool {
	d := a - b
	if d < 0 {
		d = -d
	}
	return d*100 <= b*percent
}

// ask sends a request of that many tokens and returns how it ended.
func ask(ctx context.Context, h *Hold, tokens int64, admitted func()) (*wire.Finished, error) {
	s, err := h.Generate(ctx, &wire.GenerateRequest{Id: "r", Input: &wire.GenerateRequest_Prompt{Prompt: "p"}, MaxTokens: tokens})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for {
		ev, err := s.Recv()
		if err != nil {
			return nil, err
		}
		if ev.GetAdmitted() != nil && admitted != nil {
			admitted()
		}
		if f := ev.GetFinished(); f != nil {
			return f, nil
		}
	}
}
