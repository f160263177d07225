// Package serve is the agent's only port: the OpenAI-compatible API over TLS with
// client certificates, served by the engines of this Mac.
//
// The body of a request is decoded, the request takes a hold on the engine and
// waits until the engine admits it, and only then its response is written,
// streamed or complete. Every request ends exactly once: with a full response, a
// typed refusal before the first byte, or an error event inside the stream. A
// header names the fields that decoding ignored. It refuses what package openai
// refuses, and sets agentapi.HeaderRetryable if another Mac may be tried. Package
// front bounds reads and writes.
//
// It starts no engine and does not depend on Kubernetes: it uses Engines.
//
// Start reading at Engines and handler.answer.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Errors of Engines about a replica. After any of them no work was done. Other
// refusals are made by wire.Refuse, among them CODE_NO_ROOM.
var (
	// ErrNotHere: this Mac does not hold that replica and epoch.
	ErrNotHere = errors.New("replica is not on this Mac")
	// ErrNotReady: it is loading, draining or backing off.
	ErrNotReady = errors.New("replica is not ready")
	// ErrEngineLost: the engine ended during the request.
	ErrEngineLost = errors.New("engine was lost")
)

// Engines are the engines of this Mac. Every implementation passes servetest.Run.
type Engines interface {
	// Resolve finds the replica for a name that clients use.
	Resolve(model string) (Target, bool)
	// Adapters returns the names of the adapters of a replica's model. A name
	// NAME:ADAPTER of the replica selects one; no other name of it ends in :ADAPTER.
	Adapters(t Target) []string
	// Models lists the models served, as a gateway does: not under every name.
	Models() []openai.Model
	// Model returns the model for a name that Resolve knows.
	Model(name string) (openai.Model, bool)
	// Acquire takes a hold on a replica's engine, or fails with ErrNotHere,
	// ErrNotReady or a refusal. If the request makes the engine load, it waits
	// for the load, at most until ctx ends. The caller releases the hold.
	Acquire(ctx context.Context, t Target) (Hold, error)
}

// Target is one replica.
type Target struct {
	ReplicaUID string
	Epoch      int64
}

// Hold is one request's claim on an engine: the engine is not stopped while held,
// except by force.
type Hold interface {
	// Generate runs a request; canceling ctx cancels it. wire.RefusalOf extracts
	// a refusal; ErrEngineLost and a broken connection mean that the engine
	// ended.
	Generate(ctx context.Context, r *wire.GenerateRequest) (Stream, error)
	// Embed computes vectors and Rerank scores. They return one response, with
	// the errors of Generate and its stream.
	Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error)
	Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error)
	// Release ends the claim; it may be called more than once.
	Release()
}

// Stream is the engine's answer: one Admitted, text, one Finished.
type Stream = admission.Stream

// Config configures the port.
type Config struct {
	// Engines of this Mac.
	Engines Engines
	// Mac is this Mac's name, which every response carries.
	Mac string
	// Accepting reports whether requests are accepted; nil means always.
	Accepting func() bool
	// Trusts reports whether the root under which a connection was opened is
	// still trusted; nil means always. The first request that finds its root
	// removed is the last on its connection.
	Trusts func(*tls.ConnectionState) bool
	// Metrics serves the agent's metrics to gateways; nil serves none.
	Metrics http.Handler
	// Logs returns at most n of the last bytes of the agent's log, or of an engine's if name
	// is not empty; fs.ErrNotExist if there is none. nil returns none.
	Logs func(name string, n int) ([]byte, error)
	// Tracer sends the spans of requests; nil sends none.
	Tracer *tracing.Tracer
	// Weights serves peers, which speak only agentapi.ProtoWeights; nil serves
	// none.
	Weights http.Handler
	// Log receives failures; never prompts or answers.
	Log logr.Logger
	// Limits of reads from and writes to a client.
	front.Limits
	// ResponsesBytes and ResponsesAge bound the stored responses; 0 means 64 MiB
	// and a day.
	ResponsesBytes int64
	ResponsesAge   time.Duration
	// BodiesBytes bounds the request bodies of which no engine has admitted the request, and
	// what they are decoded to; 0 means 128 MiB. No reservation contains them.
	BodiesBytes int64
	// AnswersBytes bounds what is in memory of answers until clients have read them: vectors,
	// log-probabilities, stored responses; 0 means 128 MiB. No reservation contains it.
	AnswersBytes int64
	// HeapBytes is the most live memory of the process with which requests begin; 0 means any.
	// It is more than the other bounds together, which count what they know of.
	HeapBytes int64
	// FetchImage requests an image at an https URL, and returns its bytes and their
	// number, negative if that is unknown; nil fetches none. Their memory counts towards
	// BodiesBytes.
	FetchImage func(ctx context.Context, url string) (bytes io.ReadCloser, length int64, err error)
	// TextCalls counts tool calls that were returned as text; nil counts nothing.
	TextCalls func(n int)
}

func (c Config) withDefaults() Config {
	if c.Accepting == nil {
		c.Accepting = func() bool { return true }
	}
	if c.Trusts == nil {
		c.Trusts = func(*tls.ConnectionState) bool { return true }
	}
	c.Limits = c.Limits.WithDefaults()
	if c.ResponsesBytes == 0 {
		c.ResponsesBytes = 64 << 20
	}
	if c.BodiesBytes == 0 {
		c.BodiesBytes = 128 << 20
	}
	if c.AnswersBytes == 0 {
		c.AnswersBytes = 128 << 20
	}
	if c.TextCalls == nil {
		c.TextCalls = func(int) {}
	}
	if c.ResponsesAge == 0 {
		c.ResponsesAge = 24 * time.Hour
	}
	return c
}
