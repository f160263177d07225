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

// anyOrigin allows all web pages.
const anyOrigin = "*"

const (
	// preflightAge is how long a browser may cache a preflight, in seconds: Chromium's
	// maximum.
	preflightAge = "7200"
	// corsMethods are the methods of all routes.
	corsMethods = "GET, HEAD, POST, DELETE, OPTIONS"
	// maxRequestHeaders is how many bytes of header names the answer to a preflight repeats: its
	// client has no key, and may read nothing.
	maxRequestHeaders = 4 << 10
	// exposedHeaders lets pages read all headers. Browsers honour the asterisk only without
	// credentials, which the gateway never allows.
	exposedHeaders = "*"
)

// ParseOrigins parses a comma-separated list of origins: SCHEME://HOST, with a port if it
// is not the scheme's default, null, or * for all. An empty list allows none.
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

// cors lets web pages of some origins read responses. A nil cors allows none.
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

// mark allows the page that sent a request to read the response, including errors. It
// allows no credentials: pages set the key in a header, and browsers must not add cookies.
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

// allowed returns the value of Access-Control-Allow-Origin; empty for none.
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

// isPreflight reports whether a browser asks whether it may send a request. A preflight has
// no key.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// preflight allows any headers whose names are not too long: the request itself is checked when it arrives.
func (c *cors) preflight(_ context.Context, _ caller, w *reply, r *http.Request) error {
	if c.allowed(r) == "" {
		return &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: "origin_not_allowed",
			Message: fmt.Sprintf("Web pages of the origin '%s' may not use this server. An administrator can allow it with the gateway's flag --cors-origins.", openai.Shorten(r.Header.Get("Origin")))}
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", corsMethods)
	if headers := strings.Join(r.Header.Values("Access-Control-Request-Headers"), ", "); headers != "" && len(headers) <= maxRequestHeaders {
		h.Set("Access-Control-Allow-Headers", headers)
	}
	h.Set("Access-Control-Max-Age", preflightAge)
	h.Add("Vary", "Access-Control-Request-Method, Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
	return nil
}
