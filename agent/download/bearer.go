package download

import (
	"errors"
	"net/http"
	"net/url"
)

// Bearer is a secret that a request is let in with; empty is none. It prints
// as no more than that there is one.
type Bearer string

const authorization = "Authorization"

// Header is header with the secret, for the one host that a request begins at.
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

// GoString hides it too.
func (b Bearer) GoString() string { return b.String() }

// keepSecret takes the secret out of a redirect that has ever left the origin
// (scheme, host and port) at which the request began. The standard library
// would let it go on to subdomains and other ports of that host.
func keepSecret(req *http.Request, via []*http.Request) {
	// The address of storage is signed: good for whoever has it, for a while.
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
		port = "443" // CheckURL lets nothing but https pass
	}
	return u.Scheme + "://" + u.Hostname() + ":" + port
}

// Denied reports whether the host answered that who asks may not (HTTP 401 or
// 403): with another right, or another token, the same attempt may succeed.
func Denied(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}
