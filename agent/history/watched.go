package history

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/pool/process"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/wire"
)

// watched are the twins, with what the pool does to them written down.
type watched struct {
	*enginetest.Twin
	mac    *mac
	models *models
	judge  *judge
	diary  *diary
}

// Start begins an engine.
func (p *watched) Start(ctx context.Context, s process.Spec) (process.Handle, error) {
	h, err := p.Twin.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	pid, _ := h.ID()
	e := p.engine(pid)
	if e == nil { // it died at once
		return h, nil
	}
	c := e.Config()
	p.began(c, pid, socketOf(s.Args))
	return handle{h, c.ReplicaUID, p.mac, p.diary}, nil
}

// Adopt finds one that lives.
func (p *watched) Adopt(ctx context.Context, pid int, start string) (process.Handle, error) {
	h, err := p.Twin.Adopt(ctx, pid, start)
	if err != nil {
		return nil, err
	}
	uid := p.engine(pid).Config().ReplicaUID
	return handle{h, uid, p.mac, p.diary}, nil
}

// began notes a process that the pool started.
func (p *watched) began(c wire.Config, pid int, socket string) {
	load := loadOf(socket)
	p.judge.began(&life{uid: c.ReplicaUID, epoch: c.Epoch, load: load, pid: pid, limit: c.LimitBytes, began: time.Now()}, socket)
	b, described := p.models.of(filepath.Base(c.ModelPath))
	if !described {
		b.pages.wired = -1
	}
	p.mac.began(pid, b.pages, c.LimitBytes)
	p.diary.write(c.ReplicaUID, "started, load %d", load)
}

func (p *watched) engine(pid int) *enginetest.TwinEngine { return engineOf(p.Twin, pid) }

// engineOf is the engine of a process; nil where it does not live.
func engineOf(twin *enginetest.Twin, pid int) *enginetest.TwinEngine {
	for _, e := range twin.Engines() {
		if e.PID() == pid {
			return e
		}
	}
	return nil
}

func socketOf(args []string) string {
	return filepath.Base(args[slices.Index(args, "--socket")+1])
}

// loadOf reads the number of the load from the name of the socket.
func loadOf(socket string) int64 {
	_, number, _ := strings.Cut(strings.TrimSuffix(socket, ".sock"), "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic("history: sockets are named by load: " + err.Error())
	}
	return n
}

type handle struct {
	process.Handle
	uid   string
	mac   *mac
	diary *diary
}

// Footprint as the Mac's probe measures it, or not.
func (h handle) Footprint() (int64, error) {
	pid, _ := h.ID()
	return h.mac.footprint(h.uid, pid)
}

// Signal notes the rung of the ladder.
func (h handle) Signal(s syscall.Signal) error {
	h.diary.write(h.uid, "signal: %s", s)
	return h.Handle.Signal(s)
}

// Dial reaches an engine.
func (p *watched) Dial(socket string, pid func() int) (process.Conn, error) {
	c, err := p.Twin.Dial(socket, pid)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, judge: p.judge, diary: p.diary, socket: socket}, nil
}

// conn notes the calls that ask an engine for something.
type conn struct {
	process.Conn
	judge  *judge
	diary  *diary
	socket string
}

// Trim logs how many bytes were freed.
func (c *conn) Trim(ctx context.Context, r *wire.TrimRequest, opts ...grpc.CallOption) (*wire.TrimResponse, error) {
	t, err := c.Conn.Trim(ctx, r, opts...)
	c.note("Trim", err, func() string { return "returned " + v1alpha1.FormatBytes(t.GetBytesReclaimed()) })
	return t, err
}

// Abort logs how many requests ended.
func (c *conn) Abort(ctx context.Context, r *wire.AbortRequest, opts ...grpc.CallOption) (*wire.AbortResponse, error) {
	a, err := c.Conn.Abort(ctx, r, opts...)
	c.note("Abort", err, func() string { return fmt.Sprintf("ended %d", a.GetAborted()) })
	return a, err
}

// Shutdown logs how many requests were cut off.
func (c *conn) Shutdown(ctx context.Context, r *wire.ShutdownRequest, opts ...grpc.CallOption) (*wire.ShutdownResponse, error) {
	s, err := c.Conn.Shutdown(ctx, r, opts...)
	c.note("Shutdown", err, func() string { return fmt.Sprintf("answered, %d cut off", s.GetCancelled()) })
	return s, err
}

func (c *conn) note(call string, err error, answer func() string) {
	uid := c.judge.replica(filepath.Base(c.socket))
	if err != nil {
		c.diary.write(uid, "%s: not answered", call)
		return
	}
	c.diary.write(uid, "%s: %s", call, answer())
}

// logs writes what the pool logs into the diary.
type logs struct {
	diary *diary
	judge *judge
}

var _ logr.LogSink = (*logs)(nil)

// Init, Enabled, WithValues and WithName: all lines are taken as they are.
func (l *logs) Init(logr.RuntimeInfo)          {}
func (l *logs) Enabled(int) bool               { return true }
func (l *logs) WithValues(...any) logr.LogSink { return l }
func (l *logs) WithName(string) logr.LogSink   { return l }

// Error logs a line that is reported once.
func (l *logs) Error(err error, message string, pairs ...any) {
	if l.diary.quiet {
		return
	}
	whom, rest := about(pairs)
	l.diary.write(whom, "error: %s%s: %v", message, rest, err)
}

// Info is one line. Unloads are judged here: this is where the pool says why.
func (l *logs) Info(_ int, message string, pairs ...any) {
	switch message {
	case "Unloading engine":
		l.judge.unloads(value(pairs, "ModelReplica"), v1alpha1.ReclaimReason(value(pairs, "reason")))
	case "Engine ended":
		return // the reclaim says it, with more
	}
	if l.diary.quiet {
		return
	}
	whom, rest := about(pairs)
	l.diary.write(whom, "%s%s", message, rest)
}

// about finds whom a line is about, and writes the other pairs.
func about(pairs []any) (whom, rest string) {
	whom = "mac"
	for i := 0; i+1 < len(pairs); i += 2 {
		key, v := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		switch key {
		case "ModelReplica":
			whom = nameOf(v)
		case "pid", "load": // ids depend on who was first in an instant
		case "call":
			rest += " " + v
		default:
			rest += fmt.Sprintf("; %s: %s", key, v)
		}
	}
	return whom, rest
}

// nameOf is a name without its namespace.
func nameOf(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }

func value(pairs []any, key string) string {
	for i := 0; i+1 < len(pairs); i += 2 {
		if fmt.Sprint(pairs[i]) == key {
			return nameOf(fmt.Sprint(pairs[i+1]))
		}
	}
	return ""
}
