package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Program is an engine program under test.
type Program struct {
	Path string
	Env  []string
	// ModelPath is what it loads; it must answer prompts of a few words with
	// up to Slow tokens, none faster than the suite can cancel.
	ModelPath string
	// Context that the model serves, in tokens.
	Context int64
	// Slow is a number of tokens that takes more than a second.
	Slow int64

	// begin starts it otherwise than as a program.
	begin func(t *testing.T, c wire.Config) *running
}

// InTwin makes the engines of a Twin the program under test.
func InTwin(t *Twin, modelPath string) Program {
	return Program{ModelPath: modelPath, Context: 512, Slow: 10_000, begin: t.begin}
}

const patience = 2 * time.Minute

// Run checks what the pool relies on.
func Run(t *testing.T, p Program) {
	t.Run("hello names the assignment, the configuration and the process", func(t *testing.T) { p.hello(t) })
	t.Run("the process that listens is known while it is stopped", func(t *testing.T) { p.stopped(t) })
	t.Run("a request is admitted, answered and finished once", func(t *testing.T) { p.generate(t) })
	t.Run("an invalid request is refused with a type", func(t *testing.T) { p.refuse(t) })
	t.Run("a cancelled request leaves no state", func(t *testing.T) { p.cancel(t) })
	t.Run("limits are answered with the engine's memory", func(t *testing.T) { p.limits(t) })
	t.Run("a trim reports the bytes it freed", func(t *testing.T) { p.trim(t) })
	t.Run("an abort ends running requests with a typed error and the engine keeps running", func(t *testing.T) { p.abort(t) })
	t.Run("shutdown cancels running requests with a typed error and exits with 0", func(t *testing.T) { p.shutdown(t) })
	t.Run("shutdown lets requests finish within their time", func(t *testing.T) { p.drain(t) })
}

// running is a started engine.
type running struct {
	wire.EngineClient
	config wire.Config
	pid    int
	exited chan error
	// listener and signal are those of process.Engines and process.Handle.
	listener func(ctx context.Context) (pid int, err error)
	signal   func(s syscall.Signal) error
}

func (p Program) start(t *testing.T) *running {
	t.Helper()
	c := wire.Config{ReplicaUID: "suite", Epoch: 3, ModelPath: p.ModelPath, ModelDigest: "sha256:suite", ContextTokens: p.Context, Sequences: 2, CacheTokens: 2 * p.Context, LimitBytes: 1 << 30}
	if p.begin != nil {
		return p.begin(t, c)
	}
	dir, err := os.MkdirTemp("/tmp", "mf-engine-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config, socket := writeConfig(t, dir, c), filepath.Join(dir, "e.sock")
	r := &running{config: c, exited: make(chan error, 1)}
	cmd := exec.Command(p.Path, "serve", "--socket", socket, "--config", config)
	cmd.Env, cmd.Stderr = p.Env, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.pid = cmd.Process.Pid
	r.listener = func(ctx context.Context) (int, error) { return wire.Listener(ctx, socket) }
	r.signal = func(s syscall.Signal) error { return cmd.Process.Signal(s) }
	go func() { r.exited <- cmd.Wait() }()
	conn, err := wire.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	r.EngineClient = wire.NewEngineClient(conn)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = conn.Close()
	})
	return r
}

func writeConfig(t *testing.T, dir string, c wire.Config) (path string) {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "c.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// begin starts an engine of a Twin.
func (t *Twin) begin(tt *testing.T, c wire.Config) *running {
	tt.Helper()
	dir := tt.TempDir()
	config, socket := writeConfig(tt, dir, c), filepath.Join(dir, "e.sock")
	h, err := t.Start(tt.Context(), process.Spec{Args: []string{"serve", "--socket", socket, "--config", config}})
	if err != nil {
		tt.Fatal(err)
	}
	conn, err := t.Dial(socket, nil)
	if err != nil {
		tt.Fatal(err)
	}
	r := &running{EngineClient: conn, config: c, exited: make(chan error, 1)}
	r.pid, _ = h.ID()
	r.listener = func(ctx context.Context) (int, error) { return t.Listener(ctx, socket) }
	r.signal = h.Signal
	tt.Cleanup(func() {
		_ = h.Signal(syscall.SIGKILL)
		_ = conn.Close()
	})
	go func() {
		if how := h.Exit(); how.Code != 0 {
			r.exited <- fmt.Errorf("exit %+v", how)
			return
		}
		r.exited <- nil
	}()
	return r
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// ready waits for the state through Watch, as the pool does.
func (r *running) ready(t *testing.T) *running {
	t.Helper()
	s := r.until(t, wire.State_STATE_READY)
	if s.GetMemory() == nil || s.GetActivity() == nil {
		t.Errorf("status without figures: %v", s)
	}
	return r
}

func (r *running) until(t *testing.T, state wire.State) *wire.Status {
	t.Helper()
	stream, err := r.Watch(bounded(t), &wire.WatchRequest{IntervalMilliseconds: 20}, grpc.WaitForReady(true))
	for err == nil {
		var s *wire.Status
		if s, err = stream.Recv(); err == nil && s.GetState() == state {
			return s
		}
	}
	t.Fatalf("waiting for %s: %v", state, err)
	return nil
}

func (p Program) hello(t *testing.T) {
	r := p.start(t)
	h, err := r.Hello(bounded(t), &wire.HelloRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if h.GetProtocolVersion() != wire.ProtocolVersion || h.GetReplicaUid() != "suite" || h.GetEpoch() != 3 ||
		h.GetConfigHash() != r.config.Hash() || h.GetPid() != int64(r.pid) || h.GetBackend() == "" {
		t.Errorf("%v", h)
	}
}

func (p Program) stopped(t *testing.T) {
	r := p.start(t).ready(t)
	if err := r.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if pid, err := r.listener(bounded(t)); err != nil || pid != r.pid {
		t.Errorf("process %d listens (%v), want %d", pid, err, r.pid)
	}
	if err := r.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-r.exited
	if pid, err := r.listener(bounded(t)); err == nil {
		t.Errorf("after its end process %d listens", pid)
	}
}

func prompt(tokens int64) *wire.GenerateRequest {
	return &wire.GenerateRequest{Id: "suite", Input: &wire.GenerateRequest_Prompt{Prompt: "one two three"}, MaxTokens: tokens}
}

func (p Program) generate(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), prompt(4))
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetAdmitted().GetPromptTokens() < 1 {
		t.Fatalf("first event %v, %v: want Admitted", first, err)
	}
	finished := 0
	for {
		ev, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || finished > 0 {
			t.Fatalf("%v after %d ends: %v", ev, finished, err)
		}
		if f := ev.GetFinished(); f != nil {
			finished++
			if f.GetUsage().GetGeneratedTokens() < 1 || f.GetUsage().GetGeneratedTokens() > 4 {
				t.Errorf("usage %v", f.GetUsage())
			}
		}
	}
	if finished != 1 {
		t.Errorf("%d ends", finished)
	}
}

func (p Program) refuse(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), &wire.GenerateRequest{Id: "suite"})
	if err == nil {
		_, err = stream.Recv()
	}
	if got := wire.RefusalOf(err); got.GetCode() != wire.Code_CODE_INVALID || got.GetMessage() == "" {
		t.Errorf("%v: %v", err, got)
	}
}

func (p Program) cancel(t *testing.T) {
	r := p.start(t).ready(t)
	ctx, cancel := context.WithCancel(bounded(t))
	stream, err := r.Generate(ctx, prompt(p.Slow))
	if err == nil {
		_, err = stream.Recv()
	}
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	watch, err := r.Watch(bounded(t), &wire.WatchRequest{IntervalMilliseconds: 20})
	for err == nil {
		var s *wire.Status
		if s, err = watch.Recv(); err == nil && s.GetActivity().GetRunning() == 0 {
			return
		}
	}
	t.Errorf("a cancelled request still runs: %v", err)
}

func (p Program) limits(t *testing.T) {
	r := p.start(t).ready(t)
	a, err := r.SetLimits(bounded(t), &wire.Limits{MemoryBytes: 1 << 30, Sequence: 1})
	if err != nil || a.GetMemory() == nil {
		t.Errorf("%v, %v", a, err)
	}
}

func (p Program) trim(t *testing.T) {
	r := p.start(t).ready(t)
	a, err := r.Trim(bounded(t), &wire.TrimRequest{})
	if err != nil || a.GetMemory() == nil || a.GetBytesReclaimed() < 0 {
		t.Errorf("%v, %v", a, err)
	}
}

func (p Program) abort(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), prompt(p.Slow))
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	a, err := r.Abort(bounded(t), &wire.AbortRequest{Reason: "the suite wants it"})
	if err != nil || a.GetAborted() != 1 {
		t.Fatalf("%v, %v", a, err)
	}
	var end *wire.Finished
	for ev, err := stream.Recv(); err == nil; ev, err = stream.Recv() {
		end = ev.GetFinished()
	}
	if end.GetReason() != wire.FinishReason_FINISH_REASON_ERROR || end.GetError().GetCode() != wire.Code_CODE_ABORTED {
		t.Errorf("the running request ended with %v", end)
	}
	if stream, err = r.Generate(bounded(t), prompt(2)); err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Errorf("after an abort: %v", err)
	}
}

func (p Program) shutdown(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), prompt(p.Slow))
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Shutdown(bounded(t), &wire.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	var end *wire.Finished
	for {
		ev, err := stream.Recv()
		if err != nil {
			break
		}
		end = ev.GetFinished()
	}
	if end.GetReason() != wire.FinishReason_FINISH_REASON_ERROR || end.GetError().GetCode() != wire.Code_CODE_CANCELLED {
		t.Errorf("the running request ended with %v", end)
	}
	r.exits(t)
}

func (p Program) drain(t *testing.T) {
	r := p.start(t).ready(t)
	stream, err := r.Generate(bounded(t), prompt(2))
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Shutdown(bounded(t), &wire.ShutdownRequest{DrainMilliseconds: patience.Milliseconds()}); err != nil {
		t.Fatal(err)
	}
	var end *wire.Finished
	for ev, err := stream.Recv(); err == nil; ev, err = stream.Recv() {
		end = ev.GetFinished()
	}
	if end == nil || end.GetReason() == wire.FinishReason_FINISH_REASON_ERROR {
		t.Errorf("the running request ended with %v", end)
	}
	r.exits(t)
}

func (r *running) exits(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.exited:
		if err != nil {
			t.Errorf("exit: %v", err)
		}
	case <-time.After(patience):
		t.Error("the engine does not exit")
	}
}
