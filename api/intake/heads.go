package intake

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// heads parses the request heads on one connection as they pass, up to the first one with a
// Transfer-Encoding: net/http removes the Content-Length of such a request, so that a
// handler cannot reject it, although a proxy in front may have read it differently (request
// smuggling).
type heads struct {
	mu sync.Mutex // guards the fields after it
	// line is the beginning of the current line; cut is true if the rest was dropped.
	line []byte
	cut  bool
	// within is true inside a head, after its first line.
	within bool
	// skip is the number of body bytes before the next head.
	skip int64
	// seen counts complete heads; encoded is the number of the one with a
	// Transfer-Encoding.
	seen, encoded int
	// length and encoding are those of the current head; sized is true if it has a
	// Content-Length, and odd if that is not a plain number.
	length               int64
	sized, odd, encoding bool
	// twice is true if the encoded one has a length as well.
	twice bool
	// begun counts the requests that reached a handler.
	begun int
}

// lineBytes are kept of each line: longer header names are irrelevant.
const lineBytes = 64

func (h *heads) see(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(p) > 0 && h.encoded == 0 {
		if h.skip > 0 {
			n := min(h.skip, int64(len(p)))
			h.skip -= n
			p = p[n:]
			continue
		}
		part, rest, whole := bytes.Cut(p, []byte("\n"))
		n := min(len(part), lineBytes-len(h.line))
		h.line, h.cut = append(h.line, part[:n]...), h.cut || n < len(part)
		if p = rest; whole {
			h.ended()
		}
	}
}

// ended parses a complete line; the lock is held.
func (h *heads) ended() {
	line, cut := string(bytes.TrimSuffix(h.line, []byte("\r"))), h.cut
	h.line, h.cut = h.line[:0], false
	if !h.within || line != "" {
		h.field(line, cut)
		h.within = h.within || line != "" // net/http skips empty lines between requests
		return
	}
	h.within = false
	if h.seen++; h.encoding || h.odd { // the end of the body is unknown
		h.encoded, h.twice, h.line = h.seen, h.encoding && h.sized, nil
		return
	}
	h.skip = h.length
}

// field parses a header line; the lock is held.
func (h *heads) field(line string, cut bool) {
	name, value, _ := strings.Cut(line, ":")
	switch {
	case !h.within:
		h.encoding, h.sized, h.odd, h.length = false, false, false, 0
	case strings.EqualFold(name, "Transfer-Encoding"):
		h.encoding = true
	case strings.EqualFold(name, "Content-Length"):
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		h.sized, h.length = true, max(0, n)
		h.odd = h.odd || err != nil || cut
	}
}

// begin counts a request that reaches a handler. It reports whether the request has a
// Transfer-Encoding, after which no more heads are parsed, and whether it has a length as
// well.
func (h *heads) begin() (encoded, twice bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	return h.encoded > 0 && h.begun >= h.encoded, h.begun == h.encoded && h.twice
}

// Guard rejects requests with two lengths, and marks connections that serve a request. A
// connection is closed after the first request with a Transfer-Encoding.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(connKey{}).(*Conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		defer c.ended()
		encoded, twice := c.heads.begin()
		if encoded {
			w.Header().Set("Connection", "close")
		}
		if twice {
			e := &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest,
				Message: "The request has both Content-Length and Transfer-Encoding. Send one of them."}
			_ = dialect.Of(r.URL.Path).WriteError(w, e, "") // the client is gone
			return
		}
		if r.Body == http.NoBody {
			Arrived(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}
