package dialect

import (
	"net/http"
	"strings"
)

// Paths of the routes. Clients may write them in other ways: see Canonical.
const (
	PathModels      = "/v1/models"
	PathChat        = "/v1/chat/completions"
	PathCompletions = "/v1/completions"
	PathEmbeddings  = "/v1/embeddings"
	PathRerank      = "/v1/rerank"
	PathRerankV2    = "/v2/rerank"
	PathScore       = "/v1/score"
	PathMessages    = "/v1/messages"
	PathCountTokens = "/v1/messages/count_tokens"
	PathResponses   = "/v1/responses"
	PathInputTokens = "/v1/responses/input_tokens"

	// PathRoot and PathHealth answer probes.
	PathRoot   = "/"
	PathHealth = "/health"

	// Clients of Ollama discover models here.
	PathTags    = "/api/tags"
	PathShow    = "/api/show"
	PathVersion = "/api/version"
)

// version is the prefix of most routes, and of most base URLs.
const version = "/v1"

// ollamaPrefix is the prefix of Ollama's routes.
const ollamaPrefix = "/api/"

// known are the paths of all routes that name nothing.
var known = map[string]bool{
	PathModels: true, PathChat: true, PathCompletions: true, PathEmbeddings: true, PathRerank: true, PathRerankV2: true, PathScore: true,
	PathMessages: true, PathCountTokens: true, PathResponses: true, PathInputTokens: true, PathRoot: true, PathHealth: true, PathTags: true, PathShow: true, PathVersion: true,
}

// parents are the paths under which a route has names of its own: of a model, or
// of a response.
var parents = []string{PathModels, PathResponses, PathMessages}

// Canonical returns the path of the route that a client means. A slash at the
// end does not count, nor does a doubled one; the prefix /v1 may be absent, or
// repeated by a base URL that has it already. A path of no route is returned as
// it is.
func Canonical(path string) string {
	if known[path] {
		return path
	}
	rest := strings.TrimSuffix(squeeze(path), "/")
	for {
		after, cut := strings.CutPrefix(rest, version)
		if !cut || after != "" && after[0] != '/' {
			break
		}
		rest = after
	}
	switch {
	case rest == "" && strings.HasPrefix(path, "/"):
		return PathRoot
	case known[rest]:
		return rest
	case known[version+rest]:
		return version + rest
	}
	for _, under := range parents {
		if name, ok := strings.CutPrefix(rest, under[len(version):]); ok && name != "" && name[0] == '/' {
			return version + rest
		}
	}
	return path
}

// CanonicalRequest returns the request with its canonical path. Servers call it
// before anything else reads the path, which so has one form for each route.
func CanonicalRequest(r *http.Request) *http.Request {
	path := Canonical(r.URL.Path)
	if path == r.URL.Path {
		return r
	}
	out, to := *r, *r.URL
	to.Path, to.RawPath = path, ""
	out.URL = &to
	return &out
}

// squeeze writes repeated slashes as one.
func squeeze(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}
