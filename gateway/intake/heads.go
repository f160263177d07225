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

// heads reads the heads of the requests on one connection as they pass, up to the first
// one with a Transfer-Encoding: net/http removes its Content-Length, so that a
// handler cannot refuse such a request, which a proxy on the way may have read
// differently (request smuggling).
type heads struct {
	mu sync.Mutex // guards what follows
	// line is the beginning of the current line; cut is true if there is more of it.
	line []byte
	cut  bool
	// within a head: its first line was there.
	within bool
	// skip bytes of a body come before the next head.
	skip int64
	// seen heads are complete; encoded is the number of the one with an encoding.
	seen, encoded int
	// length and encoding that the current head states; sized if it states a length, and
	// odd if that is none that can be relied on.
	length               int64
	sized, odd, encoding bool
	// twice is true if the encoded one states a length as well.
	twice bool
	// begun are the requests that handlers were given.
	begun int
}

// lineBytes are kept of each line: longer names are of no interest.
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

// ended reads a line that is complete; the lock is held.
func (h *heads) ended() {
	line, cut := string(bytes.TrimSuffix(h.line, []byte("\r"))), h.cut
	h.line, h.cut = h.line[:0], false
	if !h.within || line != "" {
		h.field(line, cut)
		h.within = h.within || line != "" // net/http skips empty lines between requests
		return
	}
	h.within = false
	if h.seen++; h.encoding || h.odd { // where the body ends cannot be said
		h.encoded, h.twice, h.line = h.seen, h.encoding && h.sized, nil
		return
	}
	h.skip = h.length
}

// field reads a line of a head that is not the last one; the lock is held.
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

// begin counts a request that a handler is given. It reports whether the request has an
// encoding, after which heads are not read any more, and whether it has a length as well.
func (h *heads) begin() (encoded, twice bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	return h.encoded > 0 && h.begun >= h.encoded, h.begun == h.encoded && h.twice
}

// Guard refuses requests with two lengths, and notes when connections serve requests. A
// connection ends with the first request that has a Transfer-Encoding.
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
			_ = dialect.Of(r.URL.Path).WriteError(w, e, "") // the client has gone
			return
		}
		if r.Body == http.NoBody {
			Arrived(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}
