// Package enginetest has an engine without a model, and the suite that it and the
// real engine both pass: everything that the pool relies on.
//
// It owns an engine that speaks metal/wire, allocates memory, and misbehaves
// according to a script: as a program of its own, or as a Twin in the test's
// process, whose footprints are scripted and whose time may be virtual. It only
// serves tests: it generates the same word again and again, or embeds texts by
// counting their words.
//
// Start reading at Script, then Twin, then Run in suite.go.
package enginetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
)

// world is what an engine lives in: a process of its own, or a Twin's.
type world interface {
	pid() int
	// hold makes the footprint larger until release.
	hold(bytes int64) (release func())
	// gate waits while the process is stopped, until ctx ends.
	gate(ctx context.Context) bool
	// skew keeps what this engine does apart from what others do at the same
	// instant of virtual time.
	skew() time.Duration
	// exit ends the engine. A program's does not return; what runs in a twin
	// sees life end.
	exit(code int)
}

// fake is the service.
type fake struct {
	wire.UnimplementedEngineServer
	config wire.Config
	script Script
	world  world
	over   chan struct{}
	// life ends with a twin's engine; a program's ends with its process.
	life context.Context

	mu      sync.Mutex // guards what follows
	state   wire.State
	changed chan struct{} // closed at the next change
	loaded  int64
	running int64
	hung    time.Time          // when the iteration began that never ends; zero: none did
	waiting []chan struct{}    // each closed when no request runs
	cancel  context.CancelFunc // of all running requests
	work    context.Context
	aborted bool     // work was ended by Abort and not by Shutdown
	pool    []func() // releases of pooled bytes
	pooled  int64
	// forget releases what is remembered of prompts, cached bytes; nil where
	// nothing is.
	forget  func()
	cached  int64
	limits  *wire.Limits
	asked   int64 // headroom requests so far
	stopped bool
}

// QueriedTokens and RestoredTokens are what an engine with a prefix cache counted.
const QueriedTokens, RestoredTokens = 100, 60

func newFake(c wire.Config, s Script, w world) *fake {
	e := &fake{config: c, script: s, world: w, life: context.Background(), over: make(chan struct{}), state: wire.State_STATE_LOADING, changed: make(chan struct{})}
	e.work, e.cancel = context.WithCancel(context.Background())
	return e
}

// pause waits and reports whether the engine still lives.
func (e *fake) pause(milliseconds int64) bool {
	if milliseconds <= 0 {
		return e.life.Err() == nil
	}
	timer := time.NewTimer(e.delay(milliseconds))
	defer timer.Stop()
	select {
	case <-e.life.Done():
		return false
	case <-timer.C:
		return e.world.gate(e.life)
	}
}

// delay of something that this engine does.
func (e *fake) delay(milliseconds int64) time.Duration {
	return time.Duration(milliseconds)*time.Millisecond + e.world.skew()
}

// loadSteps is in how many parts a load reports its progress.
const loadSteps = 10

func (e *fake) load() {
	if e.script.DieLoading != 0 {
		e.pause(e.script.LoadMilliseconds / loadSteps)
		e.world.exit(e.script.DieLoading)
		return
	}
	for i := int64(1); i <= loadSteps; i++ {
		if e.script.HangLoading && i > loadSteps/2 {
			<-e.life.Done()
			return
		}
		if !e.pause(e.script.LoadMilliseconds / loadSteps) {
			return
		}
		if e.script.FailReason != "" {
			continue
		}
		part := e.script.HoldBytes * i / loadSteps
		e.change(func() {
			if more := part - e.loaded; more > 0 {
				e.world.hold(more)
				e.loaded = part
			}
		})
	}
	if e.script.FailReason != "" {
		e.change(func() { e.state = wire.State_STATE_FAILED })
		return
	}
	e.change(func() {
		e.keep(e.script.PooledBytes)
		e.remember(e.script.PrefixCacheBytes)
		if e.state == wire.State_STATE_LOADING {
			e.state = wire.State_STATE_READY
		}
	})
	for e.script.LeakBytes > 0 && e.pause(max(1, e.script.LeakMilliseconds)) {
		e.world.hold(e.script.LeakBytes)
	}
}

// keep holds bytes in the pool; the caller holds mu.
func (e *fake) keep(bytes int64) {
	if bytes > 0 {
		e.pool = append(e.pool, e.world.hold(bytes))
		e.pooled += bytes
	}
}

// remember holds bytes of prompts, in place of those before; the caller holds mu.
func (e *fake) remember(bytes int64) {
	if e.forget != nil {
		e.forget()
	}
	if e.forget, e.cached = nil, bytes; bytes > 0 {
		e.forget = e.world.hold(bytes)
	}
}

// change calls f under the lock and notifies the watchers.
func (e *fake) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

// Hello says who listens.
func (e *fake) Hello(ctx context.Context, _ *wire.HelloRequest) (*wire.HelloResponse, error) {
	if e.script.Deaf {
		return nil, e.never(ctx)
	}
	hash := e.config.Hash()
	if e.script.AnotherHash {
		hash = "another"
	}
	return &wire.HelloResponse{
		ProtocolVersion: wire.ProtocolVersion, EngineVersion: "fake", ReplicaUid: e.config.ReplicaUID,
		Epoch: e.config.Epoch, ConfigHash: hash, Pid: int64(e.world.pid()), Backend: "fake",
	}, nil
}

// never answers: it returns when the caller gave up.
func (e *fake) never(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (e *fake) status() (*wire.Status, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &wire.Status{
		State: e.state, Task: e.task(), Load: &wire.LoadProgress{BytesDone: e.loaded, BytesTotal: e.script.HoldBytes},
		Memory: e.memory(), Activity: &wire.Activity{Running: e.running},
		Guard: &wire.Guard{Active: e.limits != nil, LimitsSequence: e.limits.GetSequence(), HeadroomRequest: e.asked},
	}
	if !e.hung.IsZero() {
		s.Activity.IterationMilliseconds = time.Since(e.hung).Milliseconds()
	}
	if e.script.PrefixCacheBytes+e.cached > 0 {
		s.PrefixCache = &wire.PrefixCache{Bytes: s.Memory.PrefixCacheBytes, BudgetBytes: e.script.PrefixCacheBytes, QueriedTokens: QueriedTokens, RestoredTokens: RestoredTokens}
	}
	if !s.Guard.Active {
		s.Guard.InactiveReason = "no limits received"
	}
	if e.asked > 0 {
		s.Guard.HeadroomBytes = e.script.HeadroomBytes
	}
	if e.state == wire.State_STATE_FAILED {
		s.Reason, s.Message = e.script.FailReason, e.script.FailMessage
	}
	if n := e.script.Claims; n != 0 && e.state == wire.State_STATE_READY {
		claim(s, n)
	}
	return s, e.changed
}

// claim makes every figure of a status n and its texts long; the sequence of the
// limits stays.
func claim(s *wire.Status, n int64) {
	text := strings.Repeat("x", ClaimedText)
	s.Reason, s.Message = text, text
	s.Load = &wire.LoadProgress{BytesDone: n, BytesTotal: n}
	s.Memory = &wire.Memory{WeightsBytes: n, KvInUseBytes: n, ActiveBytes: n, PooledBytes: n, PrefixCacheBytes: n}
	s.Activity = &wire.Activity{Running: n, Queued: n, Steps: n, PromptTokensTotal: n, GeneratedTokensTotal: n}
	s.Guard = &wire.Guard{Active: true, LimitsSequence: s.GetGuard().GetLimitsSequence(), InactiveReason: text, HeadroomRequest: 1,
		HeadroomBytes: n, ThrottledChunks: n, RefusedRequests: n, AbortedPrefills: n}
	s.PrefixCache = &wire.PrefixCache{Bytes: n, BudgetBytes: n, Blocks: n, QueriedTokens: n, RestoredTokens: n}
}

// memory is the engine's own account; the caller holds mu.
func (e *fake) memory() *wire.Memory {
	kv, prefixes := e.running*e.script.RequestBytes, e.cached
	return &wire.Memory{WeightsBytes: e.loaded, KvInUseBytes: kv, ActiveBytes: e.loaded + kv + prefixes, PooledBytes: e.pooled, PrefixCacheBytes: prefixes}
}

// Watch sends the status at each change and interval.
func (e *fake) Watch(r *wire.WatchRequest, stream grpc.ServerStreamingServer[wire.Status]) error {
	if e.script.Deaf {
		return e.never(stream.Context())
	}
	interval := time.Duration(r.GetIntervalMilliseconds()) * time.Millisecond
	if interval == 0 {
		interval = time.Second
	}
	tick := time.NewTicker(interval + e.world.skew())
	defer tick.Stop()
	for {
		s, changed := e.status()
		if err := stream.Send(s); err != nil {
			return err
		}
		for n := int64(1); s.GetState() == wire.State_STATE_READY && n <= int64(e.script.Flood); n++ {
			if err := stream.Send(&wire.Status{State: s.GetState(), Activity: &wire.Activity{PromptTokensTotal: n}}); err != nil {
				return err
			}
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

// SetLimits remembers them.
func (e *fake) SetLimits(ctx context.Context, l *wire.Limits) (*wire.SetLimitsResponse, error) {
	if e.script.IgnoreLimits || e.script.Deaf {
		return nil, e.never(ctx)
	}
	e.change(func() {
		if l.GetSequence() >= e.limits.GetSequence() {
			e.limits = l
		}
	})
	e.pause(e.script.AcknowledgeMilliseconds)
	s, _ := e.status()
	return &wire.SetLimitsResponse{Memory: s.GetMemory()}, nil
}

// Trim gives the pooled bytes back, and what is remembered where it is asked for.
func (e *fake) Trim(ctx context.Context, ask *wire.TrimRequest) (*wire.TrimResponse, error) {
	if e.script.IgnoreTrim || e.script.Deaf {
		return nil, e.never(ctx)
	}
	r := &wire.TrimResponse{}
	e.change(func() {
		for _, release := range e.pool {
			release()
		}
		r.BytesReclaimed, e.pool, e.pooled = e.pooled, nil, 0
		if ask.GetPrefixCache() {
			r.BytesReclaimed += e.cached
			e.remember(0)
		}
		r.Memory = e.memory()
	})
	e.pause(e.script.AcknowledgeMilliseconds)
	return r, nil
}

// Shutdown drains, cancels and ends the engine.
func (e *fake) Shutdown(ctx context.Context, r *wire.ShutdownRequest) (*wire.ShutdownResponse, error) {
	if e.script.Deaf {
		return nil, e.never(ctx)
	}
	if e.script.IgnoreShutdown {
		return nil, errors.New("ignored")
	}
	idle := make(chan struct{})
	e.change(func() {
		e.state = wire.State_STATE_DRAINING
		e.whenIdle(idle)
	})
	var cancelled int64
	timer := time.NewTimer(time.Duration(r.GetDrainMilliseconds()) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		e.mu.Lock()
		cancelled = e.running
		e.cancel()
		e.mu.Unlock()
		<-idle
	}
	if !e.pause(e.script.ShutdownMilliseconds) {
		return nil, e.life.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped {
		e.stopped = true
		close(e.over)
	}
	return &wire.ShutdownResponse{Cancelled: cancelled}, nil
}

// whenIdle closes idle once no request runs; the caller holds mu.
func (e *fake) whenIdle(idle chan struct{}) {
	e.waiting = append(e.waiting, idle)
	e.checkIdle()
}

// checkIdle notifies the waiters if no request runs; the caller holds mu.
func (e *fake) checkIdle() {
	if e.running > 0 {
		return
	}
	for _, idle := range e.waiting {
		close(idle)
	}
	e.waiting = nil
}
