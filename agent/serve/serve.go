// Package serve is the agent's one port: the OpenAI-compatible API over TLS
// with client certificates, answered by the engines of this Mac.
//
// A request flows through it like this: its body is decoded, it takes a hold on the
// engine, waits until the engine admits it, and only then its response is written,
// streamed or whole. Every request ends exactly once: with a full response, a typed
// refusal before the first byte, or an error event inside the stream. A header names
// the fields that decoding ignored. It refuses what package openai refuses, and sets
// agentapi.HeaderRetryable if another Mac may be tried. Bounds of reads and writes
// are those of package front.
//
// It starts no engine and knows no Kubernetes: it uses Engines.
//
// Start reading at Engines and handler.answer.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Errors of Engines about a replica. All three mean that nothing was done. Other
// refusals are made by wire.Refuse, among them CODE_NO_ROOM.
var (
	// ErrNotHere: this Mac does not hold that replica and epoch.
	ErrNotHere = errors.New("replica is not on this Mac")
	// ErrNotReady: it is loading, draining or backing off.
	ErrNotReady = errors.New("replica is not ready")
	// ErrEngineLost: the engine ended under the request.
	ErrEngineLost = errors.New("engine was lost")
)

// Engines is what this Mac serves. The suite is servetest.Run.
type Engines interface {
	// Resolve finds the replica of a name that clients use.
	Resolve(model string) (Target, bool)
	// Models lists what is served, as a gateway lists it: not every name.
	Models() []openai.Model
	// Model returns the one of a name that Resolve knows.
	Model(name string) (openai.Model, bool)
	// Acquire takes a hold on a replica's engine, or fails with ErrNotHere,
	// ErrNotReady or a refusal. Where the first request loads the model it waits
	// for the load, until ctx ends at the latest. The caller releases the hold.
	Acquire(ctx context.Context, t Target) (Hold, error)
}

// Target is one replica.
type Target struct {
	ReplicaUID string
	Epoch      int64
}

// Hold is one request's claim on an engine: it is not stopped while held,
// save by force.
type Hold interface {
	// Generate runs a request; cancelling ctx cancels it. A refusal is found
	// by wire.RefusalOf; ErrEngineLost and a broken connection mean that the
	// engine ended.
	Generate(ctx context.Context, r *wire.GenerateRequest) (Stream, error)
	// Embed makes vectors and Rerank scores, with one answer and the errors of
	// Generate and its stream.
	Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error)
	Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error)
	// Release gives the claim back; more than once is the same as once.
	Release()
}

// Stream is the answer of an engine: one Admitted, text, one Finished.
type Stream = admission.Stream

// Config is what the port needs.
type Config struct {
	// Engines of this Mac.
	Engines Engines
	// Mac is this Mac's name; every answer carries it.
	Mac string
	// Accepting says whether requests are taken; nil means always.
	Accepting func() bool
	// Trusts says whether the root under which a connection was opened is still
	// trusted; nil means always. One that is not takes no more requests after
	// that which finds it so.
	Trusts func(*tls.ConnectionState) bool
	// Weights answers other Macs, which speak agentapi.ProtoWeights and nothing
	// else; nil: none is answered.
	Weights http.Handler
	// Log of failures; never of prompts or answers.
	Log logr.Logger
	// Limits of reads from and writes to a client.
	front.Limits
	// ResponsesBytes and ResponsesAge bound what is kept of responses to be asked
	// for again; 0 means 64 MiB and a day.
	ResponsesBytes int64
	ResponsesAge   time.Duration
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
	if c.TextCalls == nil {
		c.TextCalls = func(int) {}
	}
	if c.ResponsesAge == 0 {
		c.ResponsesAge = 24 * time.Hour
	}
	return c
}
