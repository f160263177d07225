package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

// anyOrigin stands for the origins of all web pages.
const anyOrigin = "*"

const (
	// preflightAge is how long a browser may remember a preflight, in seconds: the
	// most that Chromium does.
	preflightAge = "7200"
	// corsMethods are those of all routes.
	corsMethods = "GET, HEAD, POST, DELETE, OPTIONS"
	// exposedHeaders lets pages read all headers. Browsers take it at its word only
	// where no credentials are allowed, which is so here.
	exposedHeaders = "*"
)

// ParseOrigins reads a list of origins, separated by commas: SCHEME://HOST, with a
// port if it is not the scheme's own, null, or * for all. An empty list has none.
func ParseOrigins(list string) ([]string, error) {
	var out []string
	for origin := range strings.SplitSeq(list, ",") {
		origin = strings.ToLower(strings.TrimSpace(origin))
		u, err := url.Parse(origin)
		switch {
		case origin == "":
			continue
		case origin == anyOrigin, origin == "null", origin == "file://":
		case err != nil || u.Scheme == "" || u.Host == "" || origin != u.Scheme+"://"+u.Host:
			return nil, fmt.Errorf("%q is not an origin; write SCHEME://HOST or SCHEME://HOST:PORT without a path, such as http://localhost:3000, or * for all", origin)
		}
		out = append(out, origin)
	}
	return out, nil
}

// cors lets web pages of some origins read responses. A nil cors lets none.
type cors struct {
	origins []string
	any     bool
}

func newCORS(origins []string) *cors {
	if len(origins) == 0 {
		return nil
	}
	return &cors{origins, slices.Contains(origins, anyOrigin)}
}

// mark allows the page that sent a request to read the response, an error too.
// Keys travel in headers that a page sets itself, so no credentials are allowed:
// a browser adds none of its own.
func (c *cors) mark(h http.Header, r *http.Request) {
	if c == nil {
		return
	}
	h["Vary"] = []string{"Origin"}
	if allowed := c.allowed(r); allowed != "" {
		h["Access-Control-Allow-Origin"] = []string{allowed}
		h["Access-Control-Expose-Headers"] = []string{exposedHeaders}
	}
}

// allowed is what a response names as the allowed origin; empty for none.
func (c *cors) allowed(r *http.Request) string {
	origin := r.Header.Get("Origin")
	switch {
	case origin == "":
		return ""
	case c.any:
		return anyOrigin
	case slices.Contains(c.origins, strings.ToLower(origin)):
		return origin
	}
	return ""
}

// isPreflight reports whether a browser asks whether it may send a request. It
// brings no key.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflight answers whether a page may send a request, with any header: the
// request itself is judged when it comes.
func (c *cors) preflight(_ context.Context, _ caller, w *reply, r *http.Request) error {
	if c.allowed(r) == "" {
		return &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: "origin_not_allowed",
			Message: fmt.Sprintf("Web pages of the origin '%s' may not use this server. An administrator can allow it with the gateway's flag --cors-origins.", openai.Shorten(r.Header.Get("Origin")))}
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", corsMethods)
	if headers := r.Header.Values("Access-Control-Request-Headers"); len(headers) > 0 {
		h.Set("Access-Control-Allow-Headers", strings.Join(headers, ", "))
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return nil
}
