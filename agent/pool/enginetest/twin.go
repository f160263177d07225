package enginetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Twin plays engines inside this process: it is the twin of process.System.
//
// Its engines are those of the program, with the same scripts and the same
// service; only the process and the transport are played. Footprints are those
// of a scripted probe, so a poll sees them. Nothing waits but on channels and
// timers, so that all of it runs on the virtual time of testing/synctest (make
// the Twin inside the bubble). Engines outlive a pool that ends, as processes
// do: a second pool over the same Twin adopts them. End what is left with
// KillAll before the bubble ends.
type Twin struct {
	probe *probe.Scripted

	mu      sync.Mutex // guards what follows
	scripts map[string]Script
	pids    int
	living  map[string]*TwinEngine // by socket
	changed chan struct{}          // closed when an engine begins
	refuse  error
	apart   bool
}

var _ process.Engines = (*Twin)(nil)

// NewTwin plays processes that p measures.
func NewTwin(p *probe.Scripted) *Twin {
	return &Twin{probe: p, scripts: map[string]Script{}, pids: 1000, living: map[string]*TwinEngine{}, changed: make(chan struct{})}
}

// SetScript sets the behaviour of engines that start from now on with that model
// path; without one they hold no memory and answer at once.
func (t *Twin) SetScript(modelPath string, s Script) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scripts[modelPath] = s
}

// RefuseStarts makes every Start fail, until err is nil.
func (t *Twin) RefuseStarts(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuse = err
}

// SetApart keeps what engines do at one instant some nanoseconds apart, in the
// order of their replicas' names, so that it is the same in every run.
func (t *Twin) SetApart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apart = true
}

// Engine finds the living engine of a replica; nil where there is none.
func (t *Twin) Engine(replicaUID string) *TwinEngine {
	for _, e := range t.Engines() {
		if e.fake.config.ReplicaUID == replicaUID {
			return e
		}
	}
	return nil
}

// Engines that live, in the order of their starts.
func (t *Twin) Engines() (all []*TwinEngine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.living {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *TwinEngine) int { return a.id - b.id })
	return all
}

// KillAll ends every engine.
func (t *Twin) KillAll() {
	for _, e := range t.Engines() {
		e.end(process.Exit{Known: true, Code: -1, Signal: syscall.SIGKILL})
	}
}

// Start begins an engine.
func (t *Twin) Start(_ context.Context, s process.Spec) (process.Handle, error) {
	socket, path, err := arguments(s.Args)
	if err != nil {
		return nil, err
	}
	config, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuse != nil {
		return nil, fmt.Errorf("start engine: %w", t.refuse)
	}
	t.pids++
	e := &TwinEngine{twin: t, id: t.pids, socket: socket, apart: t.apart, done: make(chan struct{}), awake: open()}
	life, end := context.WithCancel(context.Background())
	e.fake = newFake(config, t.scripts[config.ModelPath], e)
	e.fake.life, e.kill = life, end
	t.living[socket] = e
	e.report()
	close(t.changed)
	t.changed = make(chan struct{})
	go e.fake.load()
	go e.finish()
	return twinHandle{e, true}, nil
}

// Adopt finds an engine by its id and start.
func (t *Twin) Adopt(_ context.Context, pid int, startTime string) (process.Handle, error) {
	for _, e := range t.Engines() {
		if e.id == pid && e.startTime() == startTime {
			return twinHandle{e, false}, nil
		}
	}
	return nil, fmt.Errorf("process %d: %w", pid, probe.ErrGone)
}

// Dial connects to the engine that has that socket at the time of a call.
func (t *Twin) Dial(socket string, _ func() int) (process.Conn, error) {
	c := &twinConn{twin: t, socket: socket}
	c.closed, c.close = context.WithCancel(context.Background())
	return c, nil
}

// Listener finds the engine of a socket.
func (t *Twin) Listener(_ context.Context, socket string) (pid int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.living[socket]
	if e == nil {
		return 0, fmt.Errorf("connect to %s: %w", socket, syscall.ECONNREFUSED)
	}
	return e.id, nil
}

// TwinEngine is one engine of a Twin. Tests steer it; safe for concurrent use.
type TwinEngine struct {
	twin   *Twin
	fake   *fake
	id     int
	socket string
	apart  bool
	kill   context.CancelFunc // ends fake.life

	mu    sync.Mutex // guards what follows; taken inside of nothing but fake.mu
	held  int64
	extra int64
	calls int           // that run, a Watch apart
	awake chan struct{} // closed unless the process is stopped (SIGSTOP)
	term  bool          // a SIGTERM came while it was stopped
	ended bool
	exitK process.Exit
	done  chan struct{} // closed at the end
}

// open is a closed channel: a gate that lets through.
func open() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// PID of the played process.
func (e *TwinEngine) PID() int { return e.id }

// Config it was started with.
func (e *TwinEngine) Config() wire.Config { return e.fake.config }

// Limits returns the last limits; nil before the first.
func (e *TwinEngine) Limits() *wire.Limits {
	e.fake.mu.Lock()
	defer e.fake.mu.Unlock()
	return e.fake.limits
}

// SetExtra makes its footprint larger by bytes that it accounts for nowhere: a leak.
func (e *TwinEngine) SetExtra(bytes int64) {
	e.mu.Lock()
	e.extra = bytes
	e.mu.Unlock()
	e.report()
}

// SetPooled changes what its back end keeps.
func (e *TwinEngine) SetPooled(bytes int64) {
	e.fake.change(func() {
		for _, release := range e.fake.pool {
			release()
		}
		e.fake.pool, e.fake.pooled = nil, 0
		e.fake.keep(bytes)
	})
}

// SetCached changes how much it remembers of prompts.
func (e *TwinEngine) SetCached(bytes int64) { e.fake.change(func() { e.fake.remember(bytes) }) }

// Signal is what kill(2) does: SIGSTOP and SIGCONT, SIGTERM, SIGKILL.
func (e *TwinEngine) Signal(s syscall.Signal) error {
	switch s {
	case syscall.SIGSTOP:
		e.mu.Lock()
		defer e.mu.Unlock()
		select {
		case <-e.awake:
			e.awake = make(chan struct{})
		default: // it is stopped already
		}
	case syscall.SIGCONT:
		e.cont()
	case syscall.SIGTERM:
		e.terminate()
	case syscall.SIGKILL:
		e.end(process.Exit{Known: true, Code: -1, Signal: syscall.SIGKILL})
	default:
		return fmt.Errorf("signal %s is not played", s)
	}
	return nil
}

func (e *TwinEngine) cont() {
	e.mu.Lock()
	select {
	case <-e.awake:
	default:
		close(e.awake)
	}
	term := e.term
	e.mu.Unlock()
	if term {
		e.terminate()
	}
}

// terminate is SIGTERM: it waits while the process is stopped.
func (e *TwinEngine) terminate() {
	e.mu.Lock()
	select {
	case <-e.awake:
		e.mu.Unlock()
		if !e.fake.script.IgnoreTerm {
			e.end(process.Exit{Known: true, Code: 143})
		}
	default:
		e.term = true
		e.mu.Unlock()
	}
}

// Exit ends the engine with that code: a crash unless it was asked to exit.
func (e *TwinEngine) Exit(code int) { e.end(process.Exit{Known: true, Code: code}) }

// end is the end of the process, once.
func (e *TwinEngine) end(how process.Exit) {
	e.mu.Lock()
	first := !e.ended
	if first {
		e.ended, e.exitK = true, how
	}
	e.mu.Unlock()
	if !first {
		return
	}
	e.kill()
	e.twin.mu.Lock()
	if e.twin.living[e.socket] == e {
		delete(e.twin.living, e.socket)
	}
	e.twin.mu.Unlock()
	if d := e.fake.script.ReapMilliseconds; d > 0 && how.Code > 0 {
		time.Sleep(time.Duration(d) * time.Millisecond)
	}
	e.twin.probe.EndProcess(e.id)
	close(e.done)
}

// finish ends the engine after its Shutdown, once the answer is out.
func (e *TwinEngine) finish() {
	select {
	case <-e.done:
		return
	case <-e.fake.over:
	}
	e.mu.Lock()
	quiet := e.calls == 0
	e.mu.Unlock()
	if quiet { // else the last call ends it
		e.end(process.Exit{Known: true})
	}
}

// The world of its fake.
func (e *TwinEngine) pid() int      { return e.id }
func (e *TwinEngine) exit(code int) { e.Exit(code) }

func (e *TwinEngine) hold(bytes int64) (release func()) {
	add := func(n int64) {
		e.mu.Lock()
		e.held += n
		e.mu.Unlock()
		e.report()
	}
	add(bytes)
	return sync.OnceFunc(func() { add(-bytes) })
}

// skew is some nanoseconds that grow with the name of the replica, where
// engines are kept apart.
func (e *TwinEngine) skew() time.Duration {
	if !e.apart {
		return 0
	}
	name := e.fake.config.ReplicaUID + "\x00\x00\x00"
	return time.Duration(name[0]&31)<<8 + time.Duration(name[1]&15)<<4 + time.Duration(name[2]&15)
}

func (e *TwinEngine) startTime() string { return fmt.Sprintf("twin/%d", e.id) }

// report sets the footprint that the probe returns for the process.
func (e *TwinEngine) report() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ended {
		e.twin.probe.SetProcess(e.id, e.startTime(), e.held+e.extra)
	}
}

// twinHandle is an agent's view of the process.
type twinHandle struct {
	*TwinEngine
	child bool // only the parent learns how a process ended
}

func (h twinHandle) ID() (pid int, startTime string) { return h.id, h.startTime() }
func (h twinHandle) Done() <-chan struct{}           { return h.done }
func (h twinHandle) Forget()                         {}

func (h twinHandle) Exit() process.Exit {
	<-h.done
	if !h.child {
		return process.Exit{}
	}
	return h.exitK
}

func (h twinHandle) Footprint() (int64, error) { return h.twin.probe.Footprint(h.id) }

func (h twinHandle) Signal(s syscall.Signal) error {
	select {
	case <-h.done:
		return fmt.Errorf("process %d: %w", h.id, probe.ErrGone)
	default:
		return h.TwinEngine.Signal(s)
	}
}
