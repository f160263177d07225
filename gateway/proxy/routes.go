package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/ollama"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
)

// handle serves one route. Its error has not been sent to the client yet.
type handle func(context.Context, caller, *reply, *http.Request) error

// target is the route of a path.
type target struct {
	// name is the metric label, from a closed set.
	name   string
	handle handle
	// open routes require no API key.
	open bool
}

// routeOther is the metric label of all unknown paths.
const routeOther = "other"

// forwarded are the routes whose requests name a model and are sent to one of its replicas.
var forwarded = []string{dialect.PathChat, dialect.PathCompletions, dialect.PathEmbeddings, dialect.PathRerank, dialect.PathRerankV2,
	dialect.PathScore, dialect.PathMessages, dialect.PathCountTokens, dialect.PathResponses, dialect.PathInputTokens}

// routes maps requests to handlers.
type routes struct {
	inference *inference
	stored    *stored
	catalog   *catalog
	gate      *gate
	cors      *cors
	draining  func() bool
}

// of returns the target of a request.
func (t *routes) of(r *http.Request) target {
	to := t.byPath(r.URL.Path)
	if t.cors != nil && isPreflight(r) {
		return target{to.name, t.cors.preflight, true}
	}
	return to
}

func (t *routes) byPath(path string) target {
	switch {
	case slices.Contains(forwarded, path):
		return target{name: path, handle: only(t.inference.serve, http.MethodPost)}
	case strings.HasPrefix(path, dialect.PathResponses+"/"):
		return target{name: dialect.PathResponses, handle: t.stored.serve}
	case front.IsModels(path):
		return target{name: dialect.PathModels, handle: readOnly(t.catalog.models)}
	case path == dialect.PathHealth:
		return target{name: path, handle: readOnly(t.health), open: true}
	case path == dialect.PathRoot:
		return target{name: path, handle: readOnly(greet), open: true}
	case path == dialect.PathTags:
		return target{name: path, handle: readOnly(t.catalog.tags)}
	case path == dialect.PathShow:
		return target{name: path, handle: only(t.catalog.show, http.MethodPost)}
	case path == dialect.PathVersion:
		return target{name: path, handle: readOnly(ollamaVersion)}
	}
	return target{name: routeOther, handle: noRoute}
}

// noRoute rejects an unknown path.
func noRoute(_ context.Context, _ caller, _ *reply, r *http.Request) error {
	e := openai.RouteNotFound(r.Method, r.URL.Path)
	if dialect.Of(r.URL.Path) == dialect.Ollama {
		e.Message += " Of Ollama's API this server has only GET /api/tags, POST /api/show and GET /api/version; use the routes under /v1 to generate text."
	}
	return e
}

// only rejects other methods.
func only(h handle, methods ...string) handle {
	return func(ctx context.Context, c caller, w *reply, r *http.Request) error {
		if err := front.AllowMethods(w, r, methods...); err != nil {
			return err
		}
		return h(ctx, c, w, r)
	}
}

// readOnly is for routes that only read. The server itself drops the body of a HEAD
// response.
func readOnly(h handle) handle { return only(h, http.MethodGet, http.MethodHead) }

// greet shows probes and people that a gateway listens here.
func greet(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	if _, err := io.WriteString(w, "metalfleet gateway is running\n"); err != nil {
		return front.ErrClientGone
	}
	return nil
}

// health reports whether the gateway can serve requests and is not shutting down.
func (t *routes) health(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	if t.draining() {
		return dispatch.ShuttingDown(nil)
	}
	if err := t.gate.healthy(); err != nil {
		return err
	}
	return front.WriteJSON(w, map[string]string{"status": "ok"})
}

// ollamaVersion answers the first request of Ollama's clients.
func ollamaVersion(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	return front.WriteJSON(w, ollama.VersionAnswer{Version: ollama.Version})
}
