package download

import (
	"errors"
	"net/http"
	"net/url"
)

// Bearer is the secret that authorizes a request; empty means none. It is never
// printed.
type Bearer string

const authorization = "Authorization"

// Header adds the secret to header, for the host of the request's first URL only.
func (b Bearer) Header(header http.Header) http.Header {
	out := header.Clone()
	if out == nil {
		out = http.Header{}
	}
	if b != "" {
		out.Set(authorization, "Bearer "+string(b))
	}
	return out
}

// String hides the secret from every log and error.
func (b Bearer) String() string {
	if b == "" {
		return "no token"
	}
	return "a token"
}

// GoString hides the secret too.
func (b Bearer) GoString() string { return b.String() }

// keepSecret removes the secret from a redirect chain that has ever left the
// origin (scheme, host and port) of the first URL. The standard library would
// send it to subdomains and other ports of that host.
func keepSecret(req *http.Request, via []*http.Request) {
	// Storage URLs are signed: anyone who has one can use it for a while.
	req.Header.Del("Referer")
	first := via[0].URL
	for _, r := range append(via[1:len(via):len(via)], req) {
		if originOf(r.URL) != originOf(first) {
			req.Header.Del(authorization)
			req.Header.Del("X-Amz-Security-Token")
			return
		}
	}
}

func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443" // CheckURL accepts https only
	}
	return u.Scheme + "://" + u.Hostname() + ":" + port
}

// Denied reports whether the host denied access (HTTP 401 or 403): with another
// permission or another token the same request may succeed.
func Denied(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}

// MayPass reports whether a server refused a request in a way that says nothing of the bytes that are on
// the disk: it denied it, or sent something else in place of the file.
func MayPass(err error) bool {
	var e *Error
	return Denied(err) || errors.As(err, &e) && e.Unread
}
