package process

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/integrity"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Engines is how the pool reaches engines: their processes, and what they
// listen on. System is the machine's own; enginetest.Twin plays them inside
// the test's process, where time may be virtual.
type Engines interface {
	// Start starts a process that outlives the agent. The end of ctx ends the
	// watch of it and never the process.
	Start(ctx context.Context, s Spec) (Handle, error)
	// Adopt watches a process that another agent started, also one that cannot be inspected
	// now, and returns probe.ErrGone where that very process is not there any more, and no
	// other error.
	Adopt(ctx context.Context, pid int, startTime string) (Handle, error)
	// Dial returns at once; a call with grpc.WaitForReady waits for the engine
	// until its context ends. pid returns the process that has to be there when it
	// connects; nil allows any.
	Dial(socket string, pid func() int) (Conn, error)
	// Listener returns the process that listens on a socket, also one that answers
	// no call because it is stopped or hangs.
	Listener(ctx context.Context, socket string) (pid int, err error)
}

// Handle is one engine process; *Process is the real one.
type Handle interface {
	// ID names the process for ever.
	ID() (pid int, startTime string)
	// Done is closed after the end of the process was observed, and Exit returns
	// how it ended.
	Done() <-chan struct{}
	Exit() Exit
	// Footprint measures it, or returns probe.ErrGone.
	Footprint() (int64, error)
	// Signal reaches this process and no later one of the same id.
	Signal(s syscall.Signal) error
	// Forget waits until nothing watches the process any more.
	Forget()
}

// Conn is an engine's service until Close.
type Conn interface {
	wire.EngineClient
	Close() error
}

// System starts processes of this machine and dials Unix sockets.
type System struct {
	// Probe names processes by their start and measures them.
	Probe probe.Probe
	// Program are the engine's files as they are to be; Start refuses a program
	// that something changed since. None: no comparison.
	Program integrity.Files
	// Arriving are the messages of all engines; nil counts those of each alone.
	Arriving *wire.Arriving
}

// NewSystem starts processes of one program, which lies as it does now.
func NewSystem(p probe.Probe, program string) (System, error) {
	files, err := integrity.Of(filepath.Dir(program), filepath.Base(program))
	if err != nil {
		return System{}, err
	}
	return System{Probe: p, Program: files, Arriving: wire.NewArriving()}, nil
}

// Start starts a process in its own session.
func (s System) Start(ctx context.Context, spec Spec) (Handle, error) {
	if s.Program != nil {
		if err := s.Program.Check(filepath.Dir(spec.Path)); err != nil {
			return nil, fmt.Errorf("start engine: %w; if it was replaced on purpose, restart the agent", err)
		}
	}
	p, err := Start(ctx, spec, s.Probe)
	if err != nil {
		return nil, err // a nil *Process would not be a nil Handle
	}
	return p, nil
}

// Adopt watches a process by its id and start.
func (s System) Adopt(ctx context.Context, pid int, startTime string) (Handle, error) {
	p, err := Adopt(ctx, pid, startTime, s.Probe)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Dial connects over gRPC.
func (s System) Dial(socket string, pid func() int) (Conn, error) {
	c, err := cmp.Or(s.Arriving, wire.NewArriving()).DialProcess(socket, pid)
	if err != nil {
		return nil, err
	}
	return conn{wire.NewEngineClient(c), c}, nil
}

// Listener asks the kernel.
func (System) Listener(ctx context.Context, socket string) (pid int, err error) {
	return wire.Listener(ctx, socket)
}

type conn struct {
	wire.EngineClient
	grpc *grpc.ClientConn
}

func (c conn) Close() error { return c.grpc.Close() }

// ID names the process.
func (p *Process) ID() (pid int, startTime string) { return p.PID, p.StartTime }
