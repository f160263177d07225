package pool

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/patience"
)

// verbose is an engine whose answers have as many bytes as it likes.
type verbose struct {
	wire.UnimplementedEngineServer
	dimensions, text, scores int
}

func (e *verbose) Embed(_ context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	out := &wire.EmbedResponse{}
	for range r.GetTexts() {
		out.Vectors = append(out.Vectors, &wire.Vector{Values: make([]float32, e.dimensions)})
	}
	return out, nil
}

func (e *verbose) Rerank(context.Context, *wire.RerankRequest) (*wire.RerankResponse, error) {
	return &wire.RerankResponse{Scores: make([]float32, e.scores)}, nil
}

func (e *verbose) Generate(_ *wire.GenerateRequest, out wire.Engine_GenerateServer) error {
	return out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: strings.Repeat("a", e.text)}}})
}

// hold serves the engine, and returns a hold on it.
func (e *verbose) hold(t *testing.T) *Hold {
	t.Helper()
	return holdOf(t, e)
}

// holdOf serves an engine, and returns a hold on it.
func holdOf(t *testing.T, e wire.EngineServer) *Hold {
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
	return &Hold{ctx: t.Context(), engine: &engine{client: dialled{wire.NewEngineClient(conn)}, unsent: wire.NewUnsent().ToOne()}}
}

// TestAttackAnswersOfManyBytes: a model may have vectors of any size, and an engine that was taken
// over any answer. Each request would have 64 MiB in the agent before they count.
func TestAttackAnswersOfManyBytes(t *testing.T) {
	for name, tc := range map[string]struct {
		verbose
		refused bool
	}{
		"as large as models are": {verbose: verbose{dimensions: 16384, scores: 2, text: 300 << 10}},
		"larger":                 {verbose: verbose{dimensions: 65536, scores: 65536, text: 400 << 10}, refused: true},
	} {
		h := tc.hold(t)
		two := []string{"a", "b"}
		_, embedded := h.Embed(t.Context(), &wire.EmbedRequest{Texts: two})
		_, reranked := h.Rerank(t.Context(), &wire.RerankRequest{Documents: two})
		s, err := h.Generate(t.Context(), &wire.GenerateRequest{})
		if err == nil {
			_, err = s.Recv()
			s.Close()
		}
		for what, err := range map[string]error{"vectors": embedded, "scores": reranked, "text": err} {
			if (err != nil) != tc.refused {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if r := wire.RefusalOf(err); err != nil && (r.GetCode() != wire.Code_CODE_INTERNAL || errors.Is(err, ErrEngineLost)) {
				t.Errorf("%s, %s: %v, want a refusal of this answer and no lost engine", name, what, err)
			}
		}
	}
}

// mumbling is an engine whose answers gRPC cannot send: their text is not UTF-8.
type mumbling struct{ wire.UnimplementedEngineServer }

func (mumbling) Generate(_ *wire.GenerateRequest, out wire.Engine_GenerateServer) error {
	return out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "\xe5\x90"}}})
}

// An answer that gRPC cannot send is a refusal of this request: its engine lives, and another would
// compute the same.
func TestAnAnswerThatCannotBeSentIsNoLostEngine(t *testing.T) {
	s, err := holdOf(t, mumbling{}).Generate(t.Context(), &wire.GenerateRequest{})
	if err == nil {
		_, err = s.Recv()
		s.Close()
	}
	if r := wire.RefusalOf(err); r.GetCode() != wire.Code_CODE_INTERNAL || errors.Is(err, ErrEngineLost) {
		t.Errorf("%v, want a refusal of this answer and no lost engine", err)
	}
}

// TestAttackRequestsLongerThanAMessage: they are refused as the request's fault before they are
// sent. The error of gRPC counts as that of a lost engine, which is sent to another and ejected.
func TestAttackRequestsLongerThanAMessage(t *testing.T) {
	h := (&verbose{}).hold(t)
	long := strings.Repeat("a", wire.MaxMessageBytes)
	_, embedded := h.Embed(t.Context(), &wire.EmbedRequest{Texts: []string{long}})
	_, reranked := h.Rerank(t.Context(), &wire.RerankRequest{Query: long})
	s, err := h.Generate(t.Context(), &wire.GenerateRequest{Input: &wire.GenerateRequest_Prompt{Prompt: long}})
	if err == nil {
		_, err = s.Recv()
		s.Close()
	}
	for what, err := range map[string]error{"vectors": embedded, "scores": reranked, "text": err} {
		if r := wire.RefusalOf(err); r.GetCode() != wire.Code_CODE_INVALID || errors.Is(err, ErrEngineLost) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// tenants are those that an engine knows of calls before it receives their requests.
type tenants struct {
	wire.UnimplementedEngineServer
	before chan string
}

func (e *tenants) Embed(ctx context.Context, _ *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	e.before <- wire.TenantOf(ctx)
	return &wire.EmbedResponse{}, nil
}

func (e *tenants) Rerank(ctx context.Context, _ *wire.RerankRequest) (*wire.RerankResponse, error) {
	e.before <- wire.TenantOf(ctx)
	return &wire.RerankResponse{}, nil
}

func (e *tenants) Generate(_ *wire.GenerateRequest, out wire.Engine_GenerateServer) error {
	e.before <- wire.TenantOf(out.Context())
	return nil
}

// Each call has the tenant of its request, with any characters.
func TestCallsHaveTheTenantOfTheirRequest(t *testing.T) {
	e := &tenants{before: make(chan string, 1)}
	h := holdOf(t, e)
	for _, tenant := range []string{"", "team-a", "team ä\n"} {
		for what, call := range map[string]func() error{
			"vectors": func() error { _, err := h.Embed(t.Context(), &wire.EmbedRequest{Tenant: tenant}); return err },
			"scores":  func() error { _, err := h.Rerank(t.Context(), &wire.RerankRequest{Tenant: tenant}); return err },
			"text": func() error {
				s, err := h.Generate(t.Context(), &wire.GenerateRequest{Tenant: tenant})
				if err == nil {
					t.Cleanup(s.Close)
				}
				return err
			},
		} {
			if err := call(); err != nil {
				t.Fatal(err)
			}
			if got := <-e.before; got != tenant {
				t.Errorf("the call for %s has tenant %q, want %q", what, got, tenant)
			}
		}
	}
}

// TestRequestsAreRefusedWhileTheEngineReadsNothing: their messages stay in the agent after their
// clients have left.
func TestRequestsAreRefusedWhileTheEngineReadsNothing(t *testing.T) {
	h := (&verbose{dimensions: 1, scores: 1, text: 1}).hold(t)
	ask := func() map[string]error {
		_, embedded := h.Embed(t.Context(), &wire.EmbedRequest{Texts: []string{"a"}})
		_, reranked := h.Rerank(t.Context(), &wire.RerankRequest{Documents: []string{"a"}})
		s, generated := h.Generate(t.Context(), &wire.GenerateRequest{})
		if generated == nil {
			s.Close()
		}
		return map[string]error{"embed": embedded, "rerank": reranked, "generate": generated}
	}
	long := &wire.EmbedRequest{Texts: []string{strings.Repeat("x", wire.MaxMessageBytes-10)}}
	var ends []func()
	for range 2 {
		_, end, err := h.engine.unsent.Count("", long)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	for call, err := range ask() {
		if r := wire.RefusalOf(err); r.GetCode() != wire.Code_CODE_QUEUE_FULL || r.GetRetryAfterMilliseconds() == 0 {
			t.Errorf("%s while nothing is read: %v", call, err)
		}
	}
	for _, end := range ends {
		end()
	}
	for call, err := range ask() {
		if err != nil {
			t.Errorf("%s after that: %v", call, err)
		}
	}
}

// brief is an engine whose answers end at once.
type brief struct{ wire.UnimplementedEngineServer }

func (brief) Generate(_ *wire.GenerateRequest, out wire.Engine_GenerateServer) error {
	return out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{}}})
}

// TestFinishedStreamsKeepNothing: a request of many choices reads each to its end, and takes long
// itself.
func TestFinishedStreamsKeepNothing(t *testing.T) {
	const choices = 128
	h := holdOf(t, brief{})
	before := 0
	for i := range choices + 1 {
		s, err := h.Generate(t.Context(), &wire.GenerateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if ev, err := s.Recv(); err != nil || ev.GetFinished() == nil {
			t.Fatal(ev, err)
		}
		if i > 0 {
			continue
		}
		if ev, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("%v, %v after the end", ev, err)
		}
		before = runtime.NumGoroutine() // with those of the connection
	}
	left := func() int { return runtime.NumGoroutine() - before }
	for end := time.Now().Add(patience.Of(t)); left() > choices/8 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	if n := left(); n > choices/8 {
		t.Errorf("%d goroutines are left of %d streams that ended", n, choices)
	}
}
