package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// target is where a request leads.
type target struct {
	// name in metrics, from a closed set.
	name   string
	handle handle
	// open routes are answered without an API key.
	open bool
}

// routeOther is the name in metrics of all paths that lead nowhere.
const routeOther = "other"

// forwarded are the routes whose requests name a model and go to one of its
// replicas.
var forwarded = []string{dialect.PathChat, dialect.PathCompletions, dialect.PathEmbeddings, dialect.PathRerank, dialect.PathRerankV2,
	dialect.PathScore, dialect.PathMessages, dialect.PathCountTokens, dialect.PathResponses, dialect.PathInputTokens}

// route finds where a request leads.
func (p *Proxy) route(r *http.Request) target {
	path := r.URL.Path
	to := p.byPath(path)
	if p.cors != nil && isPreflight(r) {
		return target{to.name, p.cors.preflight, true}
	}
	return to
}

func (p *Proxy) byPath(path string) target {
	switch {
	case slices.Contains(forwarded, path):
		return target{name: path, handle: only(p.text, http.MethodPost)}
	case strings.HasPrefix(path, dialect.PathResponses+"/"):
		return target{name: dialect.PathResponses, handle: p.kept}
	case path == dialect.PathModels:
		return target{name: path, handle: readOnly(p.models)}
	case strings.HasPrefix(path, dialect.PathModels+"/"):
		return target{name: dialect.PathModels, handle: readOnly(p.oneModel)}
	case path == dialect.PathHealth:
		return target{name: path, handle: readOnly(p.health), open: true}
	case path == dialect.PathRoot:
		return target{name: path, handle: readOnly(greet), open: true}
	case path == dialect.PathTags:
		return target{name: path, handle: readOnly(p.tags)}
	case path == dialect.PathShow:
		return target{name: path, handle: only(p.show, http.MethodPost)}
	case path == dialect.PathVersion:
		return target{name: path, handle: readOnly(ollamaVersion)}
	}
	return target{name: routeOther, handle: noRoute}
}

// noRoute refuses a path that leads nowhere.
func noRoute(_ context.Context, _ caller, _ *reply, r *http.Request) error {
	e := openai.RouteNotFound(r.Method, r.URL.Path)
	if dialect.Of(r.URL.Path) == dialect.Ollama {
		e.Message += " Of Ollama's API this server has only GET /api/tags, POST /api/show and GET /api/version; use the routes under /v1 to generate text."
	}
	return e
}

// only refuses other methods than those.
func only(h handle, methods ...string) handle {
	return func(ctx context.Context, c caller, w *reply, r *http.Request) error {
		if !slices.Contains(methods, r.Method) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			return openai.MethodNotAllowed(r.Method, r.URL.Path, strings.Join(methods, " or "))
		}
		return h(ctx, c, w, r)
	}
}

// readOnly is for routes that only read. The server itself sends no body in
// response to HEAD.
func readOnly(h handle) handle { return only(h, http.MethodGet, http.MethodHead) }

// greet shows that a gateway listens here, to a probe and to a person.
func greet(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	if _, err := io.WriteString(w, "metalfleet gateway is running\n"); err != nil {
		return errClientGone
	}
	return nil
}

// health reports whether the gateway can answer requests and is not about to end.
func (p *Proxy) health(_ context.Context, _ caller, w *reply, _ *http.Request) error {
	if p.Draining() {
		return shuttingDown(nil)
	}
	if p.Keys != nil && !p.Keys.Synced() {
		return notYet()
	}
	if err := p.ready(); err != nil {
		return err
	}
	return w.json(map[string]string{"status": "ok"})
}
