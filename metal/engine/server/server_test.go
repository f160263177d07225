package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/engine/server"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// patience is what a slow machine under the race detector may need.
const patience = 5 * time.Minute

// served is an engine that is reached through its socket.
type served struct {
	client wire.EngineClient
	socket string
	// stop ends the server as SIGTERM does.
	stop context.CancelFunc
	done chan error
}

// serve starts an engine on a short socket path.
func serve(t *testing.T, o engine.Options) *served {
	t.Helper()
	return serveWith(t, o, nil)
}

// serveWith starts one with a cache on disk, unless that is nil.
func serveWith(t *testing.T, o engine.Options, cache *server.Cache) *served {
	t.Helper()
	if cache != nil {
		o.Below = cache.Below
	}
	dir, err := os.MkdirTemp("", "e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if o.ModelPath == "" {
		o.ModelPath = filepath.Join(dir, "tiny.gguf")
		if err := tinymodel.Write(o.ModelPath, tinymodel.Default()); err != nil {
			t.Fatal(err)
		}
	}
	s := &served{socket: filepath.Join(dir, "s"), done: make(chan error, 1)}
	l, err := server.Listen(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	o.Backend = ref.New(ref.Options{Threads: 2, Poison: true})
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() {
		s.done <- server.Serve(ctx, l, engine.Start(o), server.Identity{Version: "v1", ReplicaUID: "uid", Epoch: 7, ConfigHash: "hash", Backend: "ref"}, cache)
	}()
	conn, err := wire.Dial(s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.client = wire.NewEngineClient(conn)
	return s
}

// ended waits for the server and checks that the socket is gone.
func (s *served) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.done:
		if _, serr := os.Lstat(s.socket); !errors.Is(serr, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", serr)
		}
		return err
	case <-time.After(patience):
		t.Fatal("the server does not end")
		return nil
	}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await follows Watch until the engine is in the wanted state.
func (s *served) await(t *testing.T, want wire.State) *wire.Status {
	t.Helper()
	w, err := s.client.Watch(deadline(t), &wire.WatchRequest{IntervalMilliseconds: 20})
	if err != nil {
		t.Fatal(err)
	}
	for {
		st, err := w.Recv()
		if err != nil {
			t.Fatalf("watch: %v", err)
		}
		if st.GetState() == want {
			return st
		}
	}
}

func TestOneRequestFromHelloToShutdown(t *testing.T) {
	s := serve(t, engine.Options{Sequences: 2})
	ctx := deadline(t)
	h, err := s.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{9, wire.ProtocolVersion}})
	if err != nil || h.GetReplicaUid() != "uid" || h.GetEpoch() != 7 || h.GetConfigHash() != "hash" || h.GetPid() != int64(os.Getpid()) || h.GetBackend() != "ref" {
		t.Fatalf("hello: %v, %v", h, err)
	}
	if _, err := s.client.Hello(ctx, &wire.HelloRequest{ProtocolVersions: []uint32{99}}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("hello of another version: %v", err)
	}
	st := s.await(t, wire.State_STATE_READY)
	if st.GetLoad().GetBytesDone() == 0 || st.GetLoad().GetBytesDone() != st.GetLoad().GetBytesTotal() || st.GetMemory().GetWeightsBytes() == 0 {
		t.Errorf("status when ready: %v", st)
	}
	stream, err := s.client.Generate(ctx, &wire.GenerateRequest{Id: "r", MaxTokens: 12, Sampling: &wire.Sampling{Temperature: new(float32)},
		Input: &wire.GenerateRequest_Chat{Chat: &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: "What is the capital of France?"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetAdmitted().GetPromptTokens() == 0 {
		t.Fatalf("first event %v, %v", first, err)
	}
	tokens := 0
	for {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		tokens += len(ev.GetDelta().GetTokens())
		if f := ev.GetFinished(); f != nil {
			if f.GetUsage().GetPromptTokens() != first.GetAdmitted().GetPromptTokens() || f.GetUsage().GetGeneratedTokens() < int64(tokens) || f.GetError() != nil {
				t.Errorf("finished with %v after %d tokens", f, tokens)
			}
			break
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after Finished: %v", err)
	}
	lim, err := s.client.SetLimits(ctx, &wire.Limits{MemoryBytes: 1 << 30, Sequence: 1})
	if err != nil || lim.GetMemory().GetWeightsBytes() == 0 {
		t.Errorf("set limits: %v, %v", lim, err)
	}
	if _, err := s.client.Shutdown(ctx, &wire.ShutdownRequest{DrainMilliseconds: 1000}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := s.ended(t); err != nil {
		t.Errorf("server ended with %v", err)
	}
}

// Progress comes before the text, and only where it was asked for.
func TestProgressTravels(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	for _, wanted := range []bool{true, false} {
		stream, err := s.client.Generate(deadline(t), &wire.GenerateRequest{Id: "r", MaxTokens: 2, Progress: wanted, Input: &wire.GenerateRequest_Prompt{Prompt: "once upon a time"}})
		if err != nil {
			t.Fatal(err)
		}
		var processed, prompt int64
		text := false
		for {
			ev, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if a := ev.GetAdmitted(); a != nil {
				prompt = a.GetPromptTokens()
			}
			if p := ev.GetDelta().GetProgress(); p != nil {
				if processed = p.GetProcessedTokens(); text {
					t.Errorf("progress %v after text", p)
				}
			}
			text = text || len(ev.GetDelta().GetTokens()) > 0
			if ev.GetFinished() != nil {
				break
			}
		}
		if wanted && processed != prompt || !wanted && processed != 0 {
			t.Errorf("wanted %v: %d of %d tokens", wanted, processed, prompt)
		}
	}
}

func TestRefusalsCarryTheirType(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	nan := float32(-3)
	for name, c := range map[string]struct {
		r    *wire.GenerateRequest
		code wire.Code
	}{
		"no input":        {&wire.GenerateRequest{Id: "a"}, wire.Code_CODE_INVALID},
		"bad temperature": {&wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "a"}, Sampling: &wire.Sampling{Temperature: &nan}}, wire.Code_CODE_INVALID},
		"too long":        {&wire.GenerateRequest{Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: make([]int32, 512)}}}, wire.Code_CODE_CONTEXT_LENGTH},
		"unknown token":   {&wire.GenerateRequest{Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: []int32{-5}}}}, wire.Code_CODE_INVALID},
	} {
		stream, err := s.client.Generate(deadline(t), c.r)
		if err == nil {
			_, err = stream.Recv()
		}
		if r := wire.RefusalOf(err); r.GetCode() != c.code || r.GetMessage() == "" {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

// TestVectorsAndScoresTravelWhole, and what is refused of them.
func TestVectorsAndScoresTravelWhole(t *testing.T) {
	open := func(name string, task wire.Task) *served {
		for _, r := range tinymodel.Readers() {
			if r.Name == name {
				dir := filepath.Join(t.TempDir(), "model")
				if err := r.Write(dir); err != nil {
					t.Fatal(err)
				}
				s := serve(t, engine.Options{ModelPath: dir})
				if st := s.await(t, wire.State_STATE_READY); st.GetTask() != task {
					t.Errorf("%s: task %v, want %v", name, st.GetTask(), task)
				}
				return s
			}
		}
		t.Fatalf("no reader is called %q", name)
		return nil
	}
	vectors, pairs := open("qwen3 embed", wire.Task_TASK_EMBED), open("bert rerank", wire.Task_TASK_RERANK)
	embed := func(r *wire.EmbedRequest) *wire.EmbedResponse {
		got, err := vectors.client.Embed(deadline(t), r)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	two := embed(&wire.EmbedRequest{Id: "a", Texts: []string{"one", "two"}})
	if len(two.GetVectors()) != 2 || len(two.GetVectors()[0].GetValues()) != 64 || two.GetUsage().GetPromptTokens() == 0 {
		t.Errorf("vectors %v", two)
	}
	plain, prompted := embed(&wire.EmbedRequest{Texts: []string{"one"}}), embed(&wire.EmbedRequest{Texts: []string{"one"}, Prompt: "query"})
	worded := embed(&wire.EmbedRequest{Texts: []string{"one"}, Instruction: "find it"})
	if n := plain.GetUsage().GetPromptTokens(); prompted.GetUsage().GetPromptTokens() <= n || worded.GetUsage().GetPromptTokens() <= n {
		t.Error("prompt and instruction do not stand before the text")
	}
	listed := embed(&wire.EmbedRequest{TokenLists: []*wire.TokenList{{Ids: []int32{7, 8}}, {Ids: []int32{7}}}})
	if len(listed.GetVectors()) != 2 || slices.Equal(listed.GetVectors()[0].GetValues(), listed.GetVectors()[1].GetValues()) {
		t.Errorf("vectors of tokens %v", listed)
	}
	scores, err := pairs.client.Rerank(deadline(t), &wire.RerankRequest{Query: "a", Documents: []string{"b", "c d e"}})
	if err != nil || len(scores.GetScores()) != 2 || scores.GetUsage().GetPromptTokens() == 0 {
		t.Errorf("scores %v, %v", scores, err)
	}
	long := strings.Repeat("a ", 200)
	if _, err := pairs.client.Rerank(deadline(t), &wire.RerankRequest{Query: "a", Documents: []string{long}, Truncate: true}); err != nil {
		t.Errorf("a document that may be cut: %v", err)
	}
	for name, c := range map[string]struct {
		call func() error
		code wire.Code
	}{
		"too long": {func() error {
			_, err := pairs.client.Rerank(deadline(t), &wire.RerankRequest{Query: "a", Documents: []string{long}})
			return err
		}, wire.Code_CODE_CONTEXT_LENGTH},
		"texts and tokens": {func() error {
			_, err := vectors.client.Embed(deadline(t), &wire.EmbedRequest{Texts: []string{"a"}, TokenLists: []*wire.TokenList{{Ids: []int32{7}}}})
			return err
		}, wire.Code_CODE_INVALID},
		"no texts": {func() error { _, err := vectors.client.Embed(deadline(t), &wire.EmbedRequest{}); return err }, wire.Code_CODE_INVALID},
		"another kind": {func() error {
			_, err := pairs.client.Embed(deadline(t), &wire.EmbedRequest{Texts: []string{"a"}})
			return err
		}, wire.Code_CODE_INVALID},
		"an instruction for a BERT": {func() error {
			_, err := pairs.client.Rerank(deadline(t), &wire.RerankRequest{Query: "a", Documents: []string{"b"}, Instruction: "c"})
			return err
		}, wire.Code_CODE_INVALID},
	} {
		if r := wire.RefusalOf(c.call()); r.GetCode() != c.code || r.GetMessage() == "" {
			t.Errorf("%s: %v, want %v", name, r, c.code)
		}
	}
	for _, s := range []*served{vectors, pairs} {
		s.stop()
		if err := s.ended(t); err != nil {
			t.Error(err)
		}
	}
}

func TestCancelTravelsToTheEngine(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	ctx, cancel := context.WithCancel(deadline(t))
	stream, err := s.client.Generate(ctx, &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "Hello"}, MaxTokens: 450})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	w, err := s.client.Watch(deadline(t), &wire.WatchRequest{IntervalMilliseconds: 10})
	if err != nil {
		t.Fatal(err)
	}
	for {
		st, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if st.GetActivity().GetRunning() == 0 && st.GetMemory().GetKvInUseBytes() == 0 {
			break
		}
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

func TestAFailedEngineSaysWhyAndEndsWhenAsked(t *testing.T) {
	s := serve(t, engine.Options{ModelPath: "/nowhere/at/all.gguf"})
	st := s.await(t, wire.State_STATE_FAILED)
	if st.GetReason() != "ModelNotFound" || !strings.Contains(st.GetMessage(), "/nowhere/at/all.gguf") {
		t.Errorf("failed with %s: %s", st.GetReason(), st.GetMessage())
	}
	if _, err := s.client.Shutdown(deadline(t), &wire.ShutdownRequest{}); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := s.ended(t); !engine.IsModelError(err) {
		t.Errorf("server ended with %v, want the cause", err)
	}
}

func TestTheSocketIsPrivateAndExclusive(t *testing.T) {
	dir, err := os.MkdirTemp("", "e")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	l, err := server.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v", st.Mode(), err)
	}
	if _, err := server.Listen(path); err == nil {
		t.Error("a second engine took the socket of a living one")
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close() // now a stale file, as a killed engine leaves it
	again, err := server.Listen(path)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	again.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(path); err == nil {
		t.Error("a file that is no socket was replaced")
	}
}

// Every field of the limits reaches the engine, and the guard's status comes
// back.
func TestLimitsAndGuardStatusTravel(t *testing.T) {
	s := serve(t, engine.Options{LimitBytes: 1 << 30, Supervised: true})
	if g := s.await(t, wire.State_STATE_READY).GetGuard(); g.GetActive() || g.GetInactiveReason() == "" || g.GetLimitsSequence() != 0 {
		t.Errorf("before the first limits the guard says %v", g)
	}
	ctx := deadline(t)
	w, err := s.client.Watch(ctx, &wire.WatchRequest{IntervalMilliseconds: 1 << 30}) // nothing but changes
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Trim(ctx, &wire.TrimRequest{}); err != nil { // what is pooled is room too
		t.Fatal(err)
	}
	limits := &wire.Limits{MemoryBytes: 1 << 40, Sequence: 1, FootprintBytes: 1, HeadroomKnown: true, HeadroomBytes: 1, CanMakeRoom: true}
	if _, err := s.client.SetLimits(ctx, limits); err != nil {
		t.Fatal(err)
	}
	stream, err := s.client.Generate(ctx, &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "Hello"}, MaxTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	st, err := w.Recv() // the question comes at once
	if g := st.GetGuard(); err != nil || !g.GetActive() || g.GetLimitsSequence() != 1 || g.GetHeadroomRequest() != 1 || g.GetHeadroomBytes() <= 0 {
		t.Fatalf("the guard says %v (%v)", g, err)
	}
	limits.Sequence, limits.HeadroomAnswered, limits.HeadroomBytes = 2, 1, 1<<30
	if _, err := s.client.SetLimits(ctx, limits); err != nil {
		t.Fatal(err)
	}
	if ev, err := stream.Recv(); err != nil || ev.GetAdmitted() == nil {
		t.Errorf("after room was made: %v, %v", ev, err)
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

// Usage, status, and the bytes a trim freed.
func TestPrefixCacheFiguresTravel(t *testing.T) {
	s := serve(t, engine.Options{CacheMemory: 1 << 20})
	if c := s.await(t, wire.State_STATE_READY).GetPrefixCache(); c.GetBudgetBytes() != 1<<20 || c.GetBytes() != 0 {
		t.Errorf("at first %v is remembered", c)
	}
	ids := make([]int32, 200)
	for i := range ids {
		ids[i] = int32(10 + i)
	}
	for _, want := range []int64{0, 128} {
		stream, err := s.client.Generate(deadline(t), &wire.GenerateRequest{Input: &wire.GenerateRequest_Tokens{Tokens: &wire.TokenList{Ids: ids}}, MaxTokens: 2})
		if err != nil {
			t.Fatal(err)
		}
		for {
			ev, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if f := ev.GetFinished(); f != nil {
				if got := f.GetUsage().GetCachedTokens(); got != want {
					t.Errorf("%d tokens are said to be cached, want %d", got, want)
				}
				break
			}
		}
	}
	st := s.await(t, wire.State_STATE_READY)
	c, m := st.GetPrefixCache(), st.GetMemory()
	if c.GetBytes() == 0 || c.GetBlocks() != 1 || c.GetHits() != 1 || c.GetMisses() != 1 || c.GetRestoredTokens() != 128 || c.GetQueriedTokens() != 400 || c.GetSaved() != 1 ||
		m.GetPrefixCacheBytes() != c.GetBytes() || m.GetActiveBytes() < m.GetWeightsBytes()+c.GetBytes() {
		t.Errorf("status %v, %v", c, m)
	}
	if _, err := s.client.Trim(deadline(t), &wire.TrimRequest{}); err != nil || s.await(t, wire.State_STATE_READY).GetPrefixCache().GetBytes() != c.GetBytes() {
		t.Errorf("a trim of the pool took what is remembered: %v", err)
	}
	got, err := s.client.Trim(deadline(t), &wire.TrimRequest{PrefixCache: true})
	if err != nil || got.GetBytesReclaimed() < c.GetBytes() || got.GetMemory().GetPrefixCacheBytes() != 0 {
		t.Errorf("a trim of everything returned %v, %v, want %d bytes at least", got, err, c.GetBytes())
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}

func TestAbortHasItsOwnErrorCode(t *testing.T) {
	s := serve(t, engine.Options{})
	s.await(t, wire.State_STATE_READY)
	ctx := deadline(t)
	stream, err := s.client.Generate(ctx, &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: "Hello"}, MaxTokens: 450})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	a, err := s.client.Abort(ctx, &wire.AbortRequest{Reason: "memory is short"})
	if err != nil {
		t.Fatal(err)
	}
	var end *wire.Finished
	for end == nil {
		ev, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		end = ev.GetFinished()
	}
	if a.GetAborted() == 1 { // else the answer had come to its own end
		if r := end.GetError(); r.GetCode() != wire.Code_CODE_ABORTED || r.GetMessage() != "memory is short" || r.GetRetryAfterMilliseconds() <= 0 {
			t.Errorf("the stream ended with %v", end)
		}
	} else if end.GetError() != nil {
		t.Errorf("nothing was aborted, and the stream ended with %v", end)
	}
	tr, err := s.client.Trim(ctx, &wire.TrimRequest{})
	if err != nil || tr.GetBytesReclaimed() < 0 || tr.GetMemory().GetPooledBytes() != 0 || tr.GetMemory().GetKvInUseBytes() != 0 || tr.GetMemory().GetWeightsBytes() == 0 {
		t.Errorf("trim: %v, %v", tr, err)
	}
	s.stop()
	if err := s.ended(t); err != nil {
		t.Error(err)
	}
}
