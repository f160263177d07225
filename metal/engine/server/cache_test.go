package server_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/server"
	"metalfleet.dev/metalfleet/metal/kv"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/kv/cold/stream"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// grants is an owner that grants any request, with one epoch for each lease.
type grants struct {
	dir string

	mu sync.Mutex
	// now is the newest lease; last the newest report, and ended how many leases
	// have ended.
	now   cold.Lease
	last  cold.Report
	ended int
}

func (g *grants) open(o kv.Origin) (stream.Lease, error) {
	n, epoch := cold.NamespaceOf(o), strings.ToLower(rand.Text())
	for _, s := range cold.Shards() {
		if err := (disk.OS{}).MkdirAll(filepath.Join(cold.Folder(g.dir, n), s)); err != nil {
			return nil, err
		}
	}
	if err := (disk.OS{}).MkdirAll(cold.EpochFolder(g.dir, n, epoch)); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = cold.Lease{Dir: g.dir, Epoch: epoch, GrantedBytes: 1 << 20}
	return granted{g, g.now}, nil
}

// granted is one lease of grants.
type granted struct {
	g     *grants
	lease cold.Lease
}

func (l granted) Current() cold.Lease      { return l.lease }
func (l granted) Changed() <-chan struct{} { return nil }

func (l granted) Report(r cold.Report) cold.Lease {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.last = r
	l.lease.GrantedBytes += 1 << 20 // more than is wanted
	return l.lease
}

func (l granted) End() {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.ended++
}

// follow opens the stream of an engine's cache.
func (g *grants) follow(t *testing.T, s *served) (stop context.CancelFunc, ended chan error) {
	ctx, cancel := context.WithCancel(deadline(t))
	ended = make(chan error, 1)
	go func() { ended <- stream.Follow(ctx, s.client, g.open) }()
	return cancel, ended
}

func newCache() *server.Cache {
	return server.NewCache(disk.OS{}, 1<<20, slog.New(slog.DiscardHandler))
}

// generate runs a prompt and returns its tokens and how many prompt tokens were
// restored.
func (s *served) generate(t *testing.T, ids []int32) (tokens []int32, cached int64) {
	t.Helper()
	stream, err := s.client.Generate(deadline(t), &wire.GenerateRequest{Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}}, MaxTokens: 8, Sampling: &wire.Sampling{Temperature: new(float32)}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, ev.GetDelta().GetTokens()...)
		if f := ev.GetFinished(); f != nil {
			return tokens, f.GetUsage().GetCachedTokens()
		}
	}
}

// shutdown ends the engine as the agent does.
func (s *served) shutdown(t *testing.T) {
	t.Helper()
	if _, err := s.client.Shutdown(deadline(t), &wire.ShutdownRequest{}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

// On disk and with the same tokens; the last blocks are written at shutdown,
// before the stream ends. An engine with other weights or numerics finds
// nothing.
func TestNextEngineFindsThePrefixCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tinymodel.Write(path, tinymodel.Default()); err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, 300)
	for i := range ids {
		ids[i] = int32(10 + i%90)
	}
	g := &grants{dir: t.TempDir()}
	run := func(o engine.Options, want int64) []int32 {
		t.Helper()
		o.ModelPath, o.CacheMemory = path, 1<<20
		cache := newCache()
		s := serveWith(t, o, cache)
		_, ended := g.follow(t, s)
		s.await(t, wire.State_STATE_READY)
		if err := cache.Attached(deadline(t)); err != nil {
			t.Fatal(err)
		}
		tokens, cached := s.generate(t, ids)
		if cached != want {
			t.Errorf("%s, %s: %d tokens were restored, want %d", o.ModelDigest, o.Numerics, cached, want)
		}
		s.shutdown(t)
		if err := <-ended; err != nil {
			t.Errorf("the stream ended with %v", err)
		}
		return tokens
	}
	mine := engine.Options{ModelDigest: "sha256:aa", Numerics: "ref 1"}
	computed := run(mine, 0)
	if c := g.last.Counters; c.Persisted < 2 || !c.Balanced() || c.Queued != 0 {
		t.Errorf("at its end the engine reported %+v", c)
	}
	if restored := run(mine, 256); !slices.Equal(restored, computed) {
		t.Errorf("%v was computed, and %v after restoring", computed, restored)
	}
	run(engine.Options{ModelDigest: "sha256:ab", Numerics: "ref 1"}, 0)
	run(engine.Options{ModelDigest: "sha256:aa", Numerics: "ref 2"}, 0)
}

// An agent that restarted finds the engine detached.
func TestNewStreamReplacesTheOldOne(t *testing.T) {
	cache := newCache()
	s := serveWith(t, engine.Options{CacheMemory: 1 << 20, ModelDigest: "sha256:aa", Numerics: "ref 1"}, cache)
	g := &grants{dir: t.TempDir()}
	s.await(t, wire.State_STATE_READY)
	_, first := g.follow(t, s)
	if err := cache.Attached(deadline(t)); err != nil {
		t.Fatal(err)
	}
	_, second := g.follow(t, s)
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Errorf("the first stream ended with %v", err)
	}
	ids := make([]int32, 200)
	for i := range ids {
		ids[i] = int32(10 + i)
	}
	s.generate(t, ids)
	s.shutdown(t)
	if err := <-second; err != nil {
		t.Errorf("the second stream ended with %v", err)
	}
	if c := g.last.Counters; c.Persisted != 1 || g.ended != 2 {
		t.Errorf("%d leases ended, %+v", g.ended, c)
	}
}

// TestAnEngineWithoutACacheOnDiskSaysSo, and one whose model remembers nothing
// waits for its end.
func TestAnEngineWithoutACacheOnDiskSaysSo(t *testing.T) {
	s := serve(t, engine.Options{})
	_, ended := (&grants{dir: t.TempDir()}).follow(t, s)
	if err := <-ended; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the stream ended with %v", err)
	}
	s.shutdown(t)
	s = serveWith(t, engine.Options{ModelDigest: "sha256:aa", Numerics: "ref 1"}, newCache())
	_, ended = (&grants{dir: t.TempDir()}).follow(t, s)
	s.await(t, wire.State_STATE_READY)
	s.shutdown(t)
	if err := <-ended; err == nil {
		t.Error("a stream without an origin ended well")
	}
}
