package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// engines is the pool as the port uses it.
type engines struct{ pool *pool.Pool }

// Resolve finds the replica for a model name: it prefers ready ones, then the one
// with the fewest requests.
func (e engines) Resolve(name string) (serve.Target, bool) {
	var best *pool.Endpoint
	all := e.pool.Endpoints()
	for i := range all {
		p := &all[i]
		if slices.Contains(p.ServedNames, name) && (best == nil || better(p, best)) {
			best = p
		}
	}
	if best == nil {
		return serve.Target{}, false
	}
	return serve.Target{ReplicaUID: best.UID, Epoch: best.Epoch}, true
}

// Adapters returns the names of the adapters of a replica's model.
func (e engines) Adapters(t serve.Target) []string {
	for _, p := range e.pool.Endpoints() {
		if p.UID == t.ReplicaUID && p.Epoch == t.Epoch {
			return p.Adapters
		}
	}
	return nil
}

func better(a, b *pool.Endpoint) bool {
	if a.Ready != b.Ready {
		return a.Ready
	}
	return a.Holds < b.Holds
}

// unknownAge is the creation time of a model, which is not known.
const unknownAge = 0

// Models lists the models served here as a gateway does.
func (e engines) Models() []openai.Model { return listed(e.pool.Endpoints()) }

// listed returns each name once, in order. NAMESPACE/NAME, the last name of each
// model, is listed only if the model has no other, and so is NAMESPACE/NAME:ADAPTER.
func listed(all []pool.Endpoint) []openai.Model {
	owners := map[string]string{}
	for _, p := range all {
		names := p.ServedNames
		if n := len(names) - 1; n > 0 && strings.HasPrefix(names[n], p.Namespace+"/") {
			full := names[n] + ":"
			if others := slices.DeleteFunc(slices.Clone(names[:n]), func(name string) bool { return strings.HasPrefix(name, full) }); len(others) > 0 {
				names = others
			}
		}
		for _, name := range names {
			owners[name] = p.Namespace
		}
	}
	var out []openai.Model
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		out = append(out, openai.NewModel(name, unknownAge, owners[name]))
	}
	return out
}

// Model returns the model for any name that Resolve knows.
func (e engines) Model(name string) (openai.Model, bool) {
	for _, p := range e.pool.Endpoints() {
		if slices.Contains(p.ServedNames, name) {
			return openai.NewModel(name, unknownAge, p.Namespace), true
		}
	}
	return openai.Model{}, false
}

// Acquire takes a hold on the engine of a replica.
func (e engines) Acquire(ctx context.Context, t serve.Target) (serve.Hold, error) {
	h, err := e.pool.Acquire(ctx, t.ReplicaUID, t.Epoch)
	if err != nil {
		return nil, translate(err)
	}
	return hold{h}, nil
}

type hold struct{ hold *pool.Hold }

func (h hold) Release() { h.hold.Release() }

func (h hold) Generate(ctx context.Context, r *wire.GenerateRequest) (serve.Stream, error) {
	s, err := h.hold.Generate(ctx, r)
	if err != nil {
		return nil, translate(err)
	}
	return stream{s}, nil
}

func (h hold) Embed(ctx context.Context, r *wire.EmbedRequest) (*wire.EmbedResponse, error) {
	out, err := h.hold.Embed(ctx, r)
	return out, translate(err)
}

func (h hold) Rerank(ctx context.Context, r *wire.RerankRequest) (*wire.RerankResponse, error) {
	out, err := h.hold.Rerank(ctx, r)
	return out, translate(err)
}

type stream struct{ stream *pool.Stream }

func (s stream) Recv() (*wire.GenerateEvent, error) {
	ev, err := s.stream.Recv()
	return ev, translate(err)
}

// translate turns errors of the pool into those of the port, and returns all
// others unchanged.
func translate(err error) error {
	var room *pool.RoomError
	var load *pool.LoadError
	switch {
	case errors.As(err, &room):
		return noRoom(room)
	case errors.As(err, &load):
		return wire.Refuse(&wire.Refusal{Code: wire.Code_CODE_NOT_READY, Message: load.Error(), RetryAfterMilliseconds: load.RetryAfter.Milliseconds()})
	}
	for from, to := range map[error]error{
		pool.ErrNotHere: serve.ErrNotHere, pool.ErrNotReady: serve.ErrNotReady, pool.ErrEngineLost: serve.ErrEngineLost,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}

// noRoom is the error of a request that needed to load a model for which this Mac
// has no memory, with Retry-After if waiting helps.
func noRoom(err *pool.RoomError) error {
	r := &wire.Refusal{Code: wire.Code_CODE_NO_ROOM, Message: err.Error(), RetryAfterMilliseconds: err.RetryAfter.Milliseconds()}
	if c := err.Cause; c != nil {
		r.Message = "The model " + c.Error()
		r.UsedBytes, r.NeededBytes, r.LimitBytes = c.Reserved+c.InUse, c.Needed, c.Ceiling
		if c.Term == footprint.Dynamic { // reservations are not the limit
			r.UsedBytes = c.InUse
		}
	}
	return wire.Refuse(r)
}

// weights is the store as the pool uses it.
type weights struct{ store *store.Store }

// Ensure fetches the files; its errors are the pool's.
func (w weights) Ensure(ctx context.Context, r model.Record, tokenRef string, progress func(done, total int64)) (string, error) {
	path, err := w.store.Ensure(ctx, r, tokenRef, func(p v1alpha1.Progress) { progress(p.BytesDone, p.BytesTotal) })
	var typed *download.Error
	if errors.As(err, &typed) {
		return "", &pool.DownloadError{
			Reason: typed.Reason, Message: download.Sentence(typed), RetryAfter: typed.RetryAfter, Final: final(r.Source, typed),
		}
	}
	return path, excerpt.Error(err)
}

// final reports whether trying again soon is useless: a server has other bytes than the digest,
// which would be downloaded whole. A server may have sent a page in place of the file, a source that is
// refused may be allowed later, a file may appear or be restored, and a full disk may be emptied.
func final(source string, e *download.Error) bool {
	return !e.Transient && !e.Unread && e.Reason == v1alpha1.ReasonDigestMismatch && !strings.HasPrefix(source, "file://")
}
