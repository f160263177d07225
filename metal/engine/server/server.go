// Package server speaks the agent-engine protocol for one engine: gRPC on a
// Unix socket that only the engine's user may open, and that answers no other.
//
// It owns the translation between package wire and package engine, and the
// life of the socket. It refuses to outlive a shut-down engine. A confined
// engine cannot remove the socket's file; its agent does. It decides nothing
// about requests.
//
// Start reading at Serve.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"metalfleet.dev/metalfleet/metal/embed"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	defaultInterval = time.Second
	minInterval     = 10 * time.Millisecond
	// goodbye bounds how long open calls may keep a stopped engine's process.
	goodbye = 2 * time.Second
	// failedLinger is how long a failed engine waits to be asked why.
	failedLinger = 60 * time.Second
	// abortPatience is how long a client whose answer is dropped has to read the refusal.
	abortPatience = time.Second
)

// Identity is the response of Hello, and how requests are treated.
type Identity struct {
	Version, ReplicaUID, ConfigHash, Backend string
	Epoch                                    int64
	// Sampling is the policy for requests; nil means none.
	Sampling *wire.SamplingPolicy
}

// service implements wire.EngineServer.
type service struct {
	wire.UnimplementedEngineServer
	engine *engine.Engine
	id     Identity
	// cache on disk; nil where the engine has none.
	cache *Cache
	// asked is closed by the first Shutdown call.
	asked     chan struct{}
	askedOnce sync.Once
	// over is closed when watchers should leave.
	over chan struct{}
	// answering Shutdown calls; the process exits after the answer.
	answering sync.WaitGroup
	// sending answers; each ends with its call.
	sending sync.WaitGroup
}

// Listen binds the socket with mode 0600. A stale file of a dead engine is
// replaced; a living one is an error.
func Listen(path string) (net.Listener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen on %s: another engine is listening there", path)
	} else if st, serr := os.Lstat(path); serr == nil && st.Mode().Type() == os.ModeSocket && errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen on %s: remove the stale socket: %w", path, err)
		}
	}
	// At no moment may another user open the socket.
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// Serve answers calls on l until the engine has ended and the last answers are
// out. When ctx ends, the engine is stopped without waiting for requests. A cache
// on disk, which may be nil, is closed between the two.
func Serve(ctx context.Context, l net.Listener, e *engine.Engine, id Identity, cache *Cache) error {
	s := &service{engine: e, id: id, cache: cache, asked: make(chan struct{}), over: make(chan struct{})}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(wire.MaxMessageBytes), grpc.MaxSendMsgSize(wire.MaxMessageBytes), grpc.WaitForHandlers(true)}
	g := grpc.NewServer(append(options, newReception().options()...)...)
	register(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(wire.OwnUser(l)) }()
	err := s.await(ctx, served)
	if cache != nil {
		<-e.Done() // nothing is put any more
		cache.close()
	}
	close(s.over)
	s.answering.Wait()
	force := time.AfterFunc(goodbye, g.Stop)
	g.GracefulStop()
	force.Stop()
	s.sending.Wait()
	return errors.Join(err, e.Wait())
}

// await blocks until the engine has ended; a failed one lingers to be asked.
func (s *service) await(ctx context.Context, served <-chan error) error {
	stop := func() {
		expired, cancel := context.WithCancel(context.Background())
		cancel()
		s.engine.Shutdown(expired)
	}
	select {
	case <-ctx.Done():
		stop()
		return nil
	case err := <-served:
		stop()
		return fmt.Errorf("serve engine socket: %w", err)
	case <-s.engine.Done():
	}
	if s.engine.Status().State == engine.Failed {
		linger := time.NewTimer(failedLinger)
		defer linger.Stop()
		select {
		case <-s.asked:
		case <-ctx.Done():
		case <-linger.C:
		}
	}
	return nil
}

// Hello identifies the engine.
func (s *service) Hello(_ context.Context, r *wire.HelloRequest) (*wire.HelloResponse, error) {
	for _, v := range r.GetProtocolVersions() {
		if v == wire.ProtocolVersion {
			return &wire.HelloResponse{
				ProtocolVersion: v, EngineVersion: s.id.Version, ReplicaUid: s.id.ReplicaUID, Epoch: s.id.Epoch,
				ConfigHash: s.id.ConfigHash, Pid: int64(os.Getpid()), Backend: s.id.Backend,
			}, nil
		}
	}
	return nil, status.Errorf(codes.FailedPrecondition, "engine speaks protocol version %d, but the client speaks %v", wire.ProtocolVersion, r.GetProtocolVersions())
}

// Watch streams status.
func (s *service) Watch(r *wire.WatchRequest, out wire.Engine_WatchServer) error {
	interval := defaultInterval
	if ms := r.GetIntervalMilliseconds(); ms > 0 {
		interval = max(minInterval, time.Duration(ms)*time.Millisecond)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		changed := s.engine.Changed()
		st := s.engine.Status()
		if err := out.Send(toStatus(st)); err != nil {
			return err
		}
		if st.State == engine.Stopped {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-s.over:
			return nil
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// Generate runs one request.
func (s *service) Generate(r *wire.GenerateRequest, out wire.Engine_GenerateServer) error {
	var req engine.Request
	refusal := obey(s.id.Sampling, r)
	if refusal == nil {
		if err := s.engine.Contained("request", func() error { req, refusal = fromRequest(r); return nil }); err != nil {
			return refuse(err)
		}
	}
	if refusal != nil {
		return wire.Refuse(toRefusal(refusal))
	}
	stream, err := s.engine.Generate(out.Context(), req)
	if err != nil {
		return refuse(err)
	}
	defer stream.Close()
	sent := make(chan error, 1)
	s.sending.Go(func() { sent <- s.send(stream, out) })
	select {
	case err := <-sent:
		return err
	case <-stream.Aborted():
	}
	// A client that reads gets its refusal. One that does not would keep its last message.
	patience := time.NewTimer(abortPatience)
	defer patience.Stop()
	select {
	case err := <-sent:
		return err
	case <-patience.C:
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_ABORTED, Message: "the answer was dropped because its client did not read it, and this Mac is short of memory"})
	}
}

// send sends the events of a stream until its end. It returns at the latest when the call of
// out has.
func (s *service) send(stream *engine.Stream, out wire.Engine_GenerateServer) error {
	if err := out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{PromptTokens: int64(stream.PromptTokens)}}}); err != nil {
		return err
	}
	for {
		ev, err := stream.Next(out.Context())
		if err != nil {
			return err
		}
		var deltas []*wire.Delta
		if err := s.engine.Contained("answer", func() error { deltas = toDeltas(ev, stream.Spell); return nil }); err != nil {
			return refuse(err)
		}
		for _, d := range deltas {
			if err := out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: d}}); err != nil {
				return err
			}
		}
		if ev.Finished != nil {
			return out.Send(&wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: toFinished(ev.Finished)}})
		}
	}
}

// Embed computes embeddings.
func (s *service) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	if len(r.GetTexts()) > 0 && len(r.GetTokenLists()) > 0 {
		return nil, wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Param: "input", Message: "send either texts or tokens, not both"})
	}
	got, err := s.engine.Embed(ctx, engine.EmbedRequest{
		Tenant: r.GetTenant(), Texts: r.GetTexts(), Tokens: fromLists(r.GetTokenLists()), Options: embed.Options{Prompt: r.GetPrompt(), Instruction: r.GetInstruction(), Truncate: r.GetTruncate(), InputType: r.GetInputType(), MaxTokens: int(r.GetMaxTokens())},
	})
	if err != nil {
		return nil, refuse(err)
	}
	out := &wire.EmbedResponse{Usage: &wire.Usage{PromptTokens: int64(got.PromptTokens)}}
	for _, v := range got.Vectors {
		out.Vectors = append(out.Vectors, &wire.Vector{Values: v})
	}
	return out, nil
}

func fromLists(lists []*wire.TokenList) [][]int32 {
	var out [][]int32
	for _, l := range lists {
		out = append(out, l.GetIds())
	}
	return out
}

// Rerank scores documents.
func (s *service) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	got, err := s.engine.Rerank(ctx, engine.RerankRequest{
		Tenant: r.GetTenant(), Query: r.GetQuery(), Documents: r.GetDocuments(), Options: embed.Options{Instruction: r.GetInstruction(), Truncate: r.GetTruncate(), MaxTokens: int(r.GetMaxTokens())},
	})
	if err != nil {
		return nil, refuse(err)
	}
	return &wire.RerankResponse{Scores: got.Scores, Usage: &wire.Usage{PromptTokens: int64(got.PromptTokens)}}, nil
}

// SetLimits publishes the agent's limits.
func (s *service) SetLimits(_ context.Context, l *wire.Limits) (*wire.SetLimitsResponse, error) {
	s.engine.SetLimits(fromLimits(l))
	return &wire.SetLimitsResponse{Memory: toMemory(s.engine.Status())}, nil
}

// Trim returns pooled memory to the system, and the prefix cache if the request
// asks for that.
func (s *service) Trim(ctx context.Context, r *wire.TrimRequest) (*wire.TrimResponse, error) {
	trim := s.engine.Trim
	if r.GetPrefixCache() {
		trim = s.engine.Forget
	}
	n, err := trim(ctx)
	if err != nil {
		return nil, unable(ctx, err)
	}
	return &wire.TrimResponse{BytesReclaimed: n, Memory: toMemory(s.engine.Status())}, nil
}

// Abort ends all requests; the engine continues.
func (s *service) Abort(ctx context.Context, r *wire.AbortRequest) (*wire.AbortResponse, error) {
	n, err := s.engine.Abort(ctx, r.GetReason())
	if err != nil {
		return nil, unable(ctx, err)
	}
	return &wire.AbortResponse{Aborted: int64(n)}, nil
}

// unable distinguishes an expired deadline of the client from a backend error.
func unable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Internal, excerpt.Message(err.Error()))
}

// Shutdown drains and stops the engine; the process exits after the response.
// Draining continues if the client disconnects.
func (s *service) Shutdown(_ context.Context, r *wire.ShutdownRequest) (*wire.ShutdownResponse, error) {
	s.answering.Add(1)
	defer s.answering.Done()
	s.askedOnce.Do(func() { close(s.asked) })
	drain, cancel := context.WithTimeout(context.Background(), time.Duration(max(0, r.GetDrainMilliseconds()))*time.Millisecond)
	defer cancel()
	return &wire.ShutdownResponse{Cancelled: int64(s.engine.Shutdown(drain))}, nil
}
