// Package servetest holds a fake of serve.Engines and the suite that every
// implementation passes.
//
// It owns the substitute for engines in tests of the agent's port, and of
// gateways that call it. It has no logic of its own: a script decides what an
// engine answers.
//
// Start reading at Fake and Run.
package servetest

import (
	"context"
	"fmt"
	"io"
	"sync"

	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Script answers one request with events. Its error ends the stream.
type Script func(ctx context.Context, r *wire.GenerateRequest, send func(*wire.GenerateEvent) error) error

// Fake holds scripted replicas.
type Fake struct {
	mu       sync.Mutex // guards all below
	replicas map[serve.Target]*replica
	names    map[string]serve.Target
}

// Reader answers requests for vectors and scores.
type Reader struct {
	Embed  func(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error)
	Rerank func(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error)
}

type replica struct {
	script Script
	reader Reader
	ready  bool
	// adapters of its model
	adapters []string
	lost     chan struct{} // closed when the engine ends
	lose     sync.Once
	holds    int
	ended    int // requests whose script returned
}

// New returns a fake without replicas.
func New() *Fake {
	return &Fake{replicas: map[serve.Target]*replica{}, names: map[string]serve.Target{}}
}

// Add adds a ready replica under a name.
func (f *Fake) Add(name string, t serve.Target, s Script) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[t] = &replica{script: s, ready: true, lost: make(chan struct{})}
	f.names[name] = t
}

// AddReader adds a ready replica for embeddings and scores.
func (f *Fake) AddReader(name string, t serve.Target, r Reader) {
	f.Add(name, t, Refuse(&wire.Refusal{Code: wire.Code_CODE_INVALID, Param: "model", Message: "this model writes no text"}))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[t].reader = r
}

// SetAdapters gives a replica's model adapters, each under NAME:ADAPTER of a name.
func (f *Fake) SetAdapters(name string, t serve.Target, adapters ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[t].adapters = adapters
	for _, a := range adapters {
		f.names[name+":"+a] = t
	}
}

// SetReady changes whether the replica's engine can be held.
func (f *Fake) SetReady(t serve.Target, ready bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[t].ready = ready
}

// Lose ends the engine: its streams break off and it cannot be held again.
func (f *Fake) Lose(t serve.Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.replicas[t]
	r.ready = false
	r.lose.Do(func() { close(r.lost) })
}

// Holds counts the holds on a replica, and Ended the requests whose script
// returned.
func (f *Fake) Holds(t serve.Target) (holds, ended int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replicas[t].holds, f.replicas[t].ended
}

// Adapters implements serve.Engines.
func (f *Fake) Adapters(t serve.Target) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.replicas[t]; r != nil {
		return r.adapters
	}
	return nil
}

// Resolve implements serve.Engines.
func (f *Fake) Resolve(model string) (serve.Target, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.names[model]
	return t, ok
}

// Models implements serve.Engines.
func (f *Fake) Models() []openai.Model {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []openai.Model
	for name := range f.names {
		out = append(out, openai.NewModel(name, 1700000000, "metalfleet"))
	}
	return out
}

// Model implements serve.Engines.
func (f *Fake) Model(name string) (openai.Model, bool) {
	_, ok := f.Resolve(name)
	return openai.NewModel(name, 1700000000, "metalfleet"), ok
}

// Acquire implements serve.Engines.
func (f *Fake) Acquire(_ context.Context, t serve.Target) (serve.Hold, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.replicas[t]
	if !ok {
		return nil, fmt.Errorf("replica %s epoch %d: %w", t.ReplicaUID, t.Epoch, serve.ErrNotHere)
	}
	if !r.ready {
		return nil, fmt.Errorf("replica %s: %w", t.ReplicaUID, serve.ErrNotReady)
	}
	r.holds++
	return &hold{fake: f, replica: r}, nil
}

type hold struct {
	fake    *Fake
	replica *replica
	once    sync.Once
}

func (h *hold) Release() {
	h.once.Do(func() {
		h.fake.mu.Lock()
		defer h.fake.mu.Unlock()
		h.replica.holds--
	})
}

func (h *hold) Generate(ctx context.Context, r *wire.GenerateRequest) (serve.Stream, error) {
	s := &stream{ctx: ctx, events: make(chan *wire.GenerateEvent), lost: h.replica.lost, ended: make(chan struct{})}
	go func() { // ends with the script, which ends with ctx or the engine
		s.err = h.replica.script(ctx, r, s.send)
		h.fake.mu.Lock()
		h.replica.ended++
		h.fake.mu.Unlock()
		close(s.ended)
	}()
	return s, nil
}

var unread = &wire.Refusal{Code: wire.Code_CODE_INVALID, Param: "model", Message: "this model does not do that"}

func (h *hold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	if h.replica.reader.Embed == nil {
		return nil, wire.Refuse(unread)
	}
	return h.replica.reader.Embed(ctx, r)
}

func (h *hold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	if h.replica.reader.Rerank == nil {
		return nil, wire.Refuse(unread)
	}
	return h.replica.reader.Rerank(ctx, r)
}

// stream delivers one event at a time, as a slow connection would.
type stream struct {
	ctx    context.Context // of one request
	events chan *wire.GenerateEvent
	lost   <-chan struct{}
	ended  chan struct{}
	err    error // set before ended is closed
}

func (s *stream) send(e *wire.GenerateEvent) error {
	select {
	case s.events <- e:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-s.lost:
		return serve.ErrEngineLost
	}
}

// Recv implements serve.Stream.
func (s *stream) Recv() (*wire.GenerateEvent, error) {
	select {
	case e := <-s.events:
		return e, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case <-s.lost:
		return nil, serve.ErrEngineLost
	case <-s.ended:
		if s.err != nil {
			return nil, s.err
		}
		return nil, io.EOF
	}
}
