// Package enginetest holds an engine without a model, and the suite that it
// and the real engine both pass: what the pool relies on.
//
// It owns a program that speaks metal/wire, holds memory, and misbehaves as a
// script tells it. It refuses to be more than a test's engine: it generates
// the same word again and again.
//
// Start reading at Script, then Run in suite.go.
package enginetest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
)

// Script says how a fake engine behaves. It lies in the file that the
// configuration names as the model.
type Script struct {
	// HoldBytes of memory once loaded.
	HoldBytes int64 `json:"holdBytes"`
	// LoadMilliseconds until it is ready.
	LoadMilliseconds int64 `json:"loadMilliseconds"`
	// FailReason makes the load fail with it; FailMessage says more.
	FailReason  string `json:"failReason"`
	FailMessage string `json:"failMessage"`
	// DieLoading exits with that code while it loads.
	DieLoading int `json:"dieLoading"`
	// AnotherHash makes Hello claim another configuration.
	AnotherHash bool `json:"anotherHash"`
	// IgnoreShutdown and IgnoreTerm leave the last rung of the ladder.
	IgnoreShutdown bool `json:"ignoreShutdown"`
	IgnoreTerm     bool `json:"ignoreTerm"`
	// TokenMilliseconds between two words.
	TokenMilliseconds int64 `json:"tokenMilliseconds"`
}

// Variable in the environment makes a test program play the engine.
const Variable = "METALFLEET_FAKE_ENGINE"

// Env is the environment in which the running test program plays the engine.
// The race detector would otherwise make it linger for a second at its exit.
func Env() []string { return append(os.Environ(), Variable+"=1", "GORACE=atexit_sleep_ms=0") }

// Requested reports whether this process is to play the engine. TestMain asks.
func Requested() bool { return os.Getenv(Variable) != "" }

// WriteScript writes a script for use as a model path.
func WriteScript(path string, s Script) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// Main plays "engine serve --socket S --config F" and returns its exit code.
func Main(args []string) int {
	if err := serve(args); err != nil {
		fmt.Fprintln(os.Stderr, "fake engine:", err)
		return 1
	}
	return 0
}

func serve(args []string) error {
	if len(args) == 0 || args[0] != "serve" {
		return fmt.Errorf("arguments %q: want serve", args)
	}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	socket := flags.String("socket", "", "Unix socket")
	path := flags.String("config", "", "configuration")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	e, err := newFake(*path)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", *socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(*socket, 0o600); err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(wire.MaxMessageBytes))
	wire.RegisterEngineServer(s, e)
	go e.load()
	go func() {
		<-e.over
		s.GracefulStop()
	}()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		for range term {
			if !e.script.IgnoreTerm {
				os.Exit(143)
			}
		}
	}()
	return s.Serve(l)
}

// fake is the service.
type fake struct {
	wire.UnimplementedEngineServer
	config wire.Config
	script Script
	over   chan struct{}

	mu      sync.Mutex // guards what follows
	state   wire.State
	changed chan struct{} // closed at the next change
	running int64
	cancel  context.CancelFunc // of all running requests
	work    context.Context
	idle    sync.WaitGroup
	held    []byte
	stopped bool
}

func newFake(path string) (*fake, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e := &fake{over: make(chan struct{}), state: wire.State_STATE_LOADING, changed: make(chan struct{})}
	e.work, e.cancel = context.WithCancel(context.Background())
	if e.config, err = wire.ReadConfig(f); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(e.config.ModelPath)
	if err != nil {
		return nil, err
	}
	return e, json.Unmarshal(b, &e.script)
}

func (e *fake) load() {
	if e.script.DieLoading != 0 {
		os.Exit(e.script.DieLoading)
	}
	time.Sleep(time.Duration(e.script.LoadMilliseconds) * time.Millisecond)
	if e.script.FailReason != "" {
		e.set(wire.State_STATE_FAILED)
		return
	}
	if e.script.HoldBytes > 0 {
		b, err := unix.Mmap(-1, 0, int(e.script.HoldBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			os.Exit(9)
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		e.mu.Lock()
		e.held = b
		e.mu.Unlock()
	}
	e.set(wire.State_STATE_READY)
}

func (e *fake) set(s wire.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.state = s
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *fake) Hello(context.Context, *wire.HelloRequest) (*wire.HelloResponse, error) {
	hash := e.config.Hash()
	if e.script.AnotherHash {
		hash = "another"
	}
	return &wire.HelloResponse{
		ProtocolVersion: wire.ProtocolVersion, EngineVersion: "fake", ReplicaUid: e.config.ReplicaUID,
		Epoch: e.config.Epoch, ConfigHash: hash, Pid: int64(os.Getpid()), Backend: "fake",
	}, nil
}

func (e *fake) status() (*wire.Status, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &wire.Status{
		State: e.state, Load: &wire.LoadProgress{BytesDone: int64(len(e.held)), BytesTotal: e.script.HoldBytes},
		Memory:   &wire.Memory{WeightsBytes: int64(len(e.held)), ActiveBytes: int64(len(e.held))},
		Activity: &wire.Activity{Running: e.running},
	}
	if e.state == wire.State_STATE_FAILED {
		s.Reason, s.Message = e.script.FailReason, e.script.FailMessage
	}
	return s, e.changed
}

func (e *fake) Watch(r *wire.WatchRequest, stream grpc.ServerStreamingServer[wire.Status]) error {
	interval := time.Duration(r.GetIntervalMilliseconds()) * time.Millisecond
	if interval == 0 {
		interval = time.Second
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s, changed := e.status()
		if err := stream.Send(s); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-e.over:
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

var errNotReady = wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_NOT_READY, Message: "not ready"})

func (e *fake) begin(delta int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delta > 0 && e.state != wire.State_STATE_READY {
		return errNotReady
	}
	e.running += delta
	return nil
}

func (e *fake) Generate(r *wire.GenerateRequest, stream grpc.ServerStreamingServer[wire.GenerateEvent]) error {
	if r.GetInput() == nil {
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Message: "nothing to answer", Param: "messages"})
	}
	if err := e.begin(1); err != nil {
		return err
	}
	e.idle.Add(1)
	defer e.idle.Done()
	defer func() { _ = e.begin(-1) }()
	if err := stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{PromptTokens: 3}}}); err != nil {
		return err
	}
	var made int64
	for limit := max(1, r.GetMaxTokens()); made < limit; made++ {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-e.work.Done():
			return finish(stream, made, wire.FinishReason_FINISH_REASON_ERROR, &wire.Refusal{Code: wire.Code_CODE_CANCELLED, Message: "the engine stops"})
		case <-time.After(time.Duration(e.script.TokenMilliseconds) * time.Millisecond):
		}
		if err := stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "word ", Tokens: []int32{1}}}}); err != nil {
			return err
		}
	}
	return finish(stream, made, wire.FinishReason_FINISH_REASON_LENGTH, nil)
}

func finish(stream grpc.ServerStreamingServer[wire.GenerateEvent], made int64, why wire.FinishReason, r *wire.Refusal) error {
	return stream.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{
		Reason: why, Error: r, Usage: &wire.Usage{PromptTokens: 3, GeneratedTokens: made},
	}}})
}

func (e *fake) SetLimits(context.Context, *wire.Limits) (*wire.SetLimitsResponse, error) {
	s, _ := e.status()
	return &wire.SetLimitsResponse{Memory: s.GetMemory()}, nil
}

func (e *fake) Shutdown(_ context.Context, r *wire.ShutdownRequest) (*wire.ShutdownResponse, error) {
	if e.script.IgnoreShutdown {
		return nil, errors.New("ignored")
	}
	e.set(wire.State_STATE_DRAINING)
	finished := make(chan struct{})
	go func() {
		e.idle.Wait()
		close(finished)
	}()
	var cancelled int64
	select {
	case <-finished:
	case <-time.After(time.Duration(r.GetDrainMilliseconds()) * time.Millisecond):
		e.mu.Lock()
		cancelled = e.running
		e.mu.Unlock()
		e.cancel()
		<-finished
	}
	e.mu.Lock()
	first := !e.stopped
	e.stopped = true
	e.mu.Unlock()
	if first {
		close(e.over)
	}
	return &wire.ShutdownResponse{Cancelled: cancelled}, nil
}
