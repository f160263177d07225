package pool

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

// talker is an engine that speaks of its cache alone.
type talker struct {
	wire.UnimplementedEngineServer
	model string
	// calls count streams; each ends by itself, the last with the engine's last
	// word, once go on is closed.
	calls atomic.Int64
	goOn  chan struct{}
	// layout returns the layout that a stream names; nil: all name "l".
	layout func(stream int64) string
}

func (e *talker) Cache(s wire.Engine_CacheServer) error {
	n := e.calls.Add(1)
	layout := "l"
	if e.layout != nil {
		layout = e.layout(n)
	}
	if err := s.Send(&wire.CacheReport{Origin: &wire.CacheOrigin{Model: e.model, Numerics: "ref 1", Layout: layout}}); err != nil {
		return err
	}
	if _, err := s.Recv(); err != nil || n == 1 { // the first stream breaks
		return err
	}
	<-e.goOn
	if err := s.Send(&wire.CacheReport{Sequence: 1, Last: true}); err != nil {
		return err
	}
	_, err := s.Recv()
	return err
}

// open serves an engine, and makes a life cycle that knows it.
func (e *talker) open(t *testing.T) (*lifecycle, *entry, *engine) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	wire.RegisterEngineServer(g, e)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }() // it ends with Stop
	conn, err := wire.Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); g.Stop(); <-served })
	of := &engine{config: wire.Config{ModelDigest: "sha256:aa", CacheQueueBytes: 1 << 20}, client: dialled{wire.NewEngineClient(conn)}}
	return &lifecycle{registry: newRegistry(nil, func() {}), Config: Config{Log: logr.Discard()}}, &entry{}, of
}

type dialled struct{ wire.EngineClient }

func (dialled) Close() error { return nil }

// paper is a lease that counts its end.
type paper struct{ ended *atomic.Int64 }

func (paper) Current() cold.Lease           { return cold.Lease{} }
func (paper) Changed() <-chan struct{}      { return nil }
func (paper) Report(cold.Report) cold.Lease { return cold.Lease{} }
func (p paper) End()                        { p.ended.Add(1) }

// After its stream broke, until it reports that it stops. Each lease ends; the
// share follows the assignment.
func TestEngineReattachesToTheDiskCache(t *testing.T) {
	e := &talker{model: "sha256:aa", goOn: make(chan struct{})}
	lc, entry, g := e.open(t)
	var ended atomic.Int64
	bounds := make(chan func() int64, 2)
	lc.Cache = func(o kv.Origin, most func() int64) (CacheLease, error) {
		if o != (kv.Origin{Model: "sha256:aa", Numerics: "ref 1", Layout: "l"}) {
			t.Errorf("origin %+v", o)
		}
		bounds <- most
		return paper{&ended}, nil
	}
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() { defer close(done); lc.leaseDisk(ctx, entry, g) }()
	<-bounds
	most := <-bounds
	for _, want := range []int64{5, 7} {
		lc.mu.Lock()
		entry.assignment.PrefixCache.DiskBytes = want
		lc.mu.Unlock()
		if got := most(); got != want {
			t.Errorf("%d bytes may be taken, want %d", got, want)
		}
	}
	close(e.goOn)
	<-done
	if ctx.Err() != nil || e.calls.Load() != 2 || ended.Load() != 2 {
		t.Errorf("%d streams, %d leases ended, %v", e.calls.Load(), ended.Load(), ctx.Err())
	}
}

// TestAnEngineIsGivenNoDiskOfAnotherModel, nor one that keeps nothing there.
func TestAnEngineIsGivenNoDiskOfAnotherModel(t *testing.T) {
	e := &talker{model: "sha256:ab"}
	lc, entry, g := e.open(t)
	lc.Cache = func(o kv.Origin, _ func() int64) (CacheLease, error) {
		t.Errorf("a lease for %+v", o)
		return paper{new(atomic.Int64)}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); lc.leaseDisk(ctx, entry, g) }()
	for e.calls.Load() < 2 {
		<-time.After(time.Millisecond)
	}
	cancel()
	<-done
	before := e.calls.Load()
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	lc.CacheDir = "/cache" // and it may not write there
	lc.leaseDisk(ctx, entry, g)
	lc.CacheDir, g.config.CacheQueueBytes = "", 0
	lc.leaseDisk(ctx, entry, g)
	if e.calls.Load() != before {
		t.Error("an engine without a cache was asked for it")
	}
}

// TestAnEngineHasOneKindOfBlocks: one that was taken over could name another layout at each of
// its streams, and each has folders and an entry of its own for as long as its model is assigned.
func TestAnEngineHasOneKindOfBlocks(t *testing.T) {
	const streams = 5
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := &talker{model: "sha256:aa", goOn: make(chan struct{}), layout: func(n int64) string {
		if n > streams {
			cancel()
		}
		return fmt.Sprint("l", n)
	}}
	lc, entry, g := e.open(t)
	leased := map[kv.Origin]bool{}
	lc.Cache = func(o kv.Origin, _ func() int64) (CacheLease, error) {
		leased[o] = true
		return paper{new(atomic.Int64)}, nil
	}
	close(e.goOn)
	lc.leaseDisk(ctx, entry, g)
	if len(leased) != 1 {
		t.Errorf("the engine has leases on %v", leased)
	}
}

// Removing what an engine left takes long, and an upgrade waits for the agent's end.
func TestNoLeaseEndsAfterTheAgentsLife(t *testing.T) {
	e := &talker{model: "sha256:aa", goOn: make(chan struct{})}
	lc, entry, g := e.open(t)
	var ended atomic.Int64
	began := make(chan struct{}, 2)
	lc.Cache = func(kv.Origin, func() int64) (CacheLease, error) {
		began <- struct{}{}
		return paper{&ended}, nil
	}
	done := make(chan struct{})
	go func() { defer close(done); lc.leaseDisk(lc.life, entry, g) }()
	<-began
	<-began // the first stream broke
	lc.registry.finish()
	<-done
	if got := ended.Load(); got != 1 {
		t.Errorf("%d leases ended, want that of the stream that broke before", got)
	}
}
