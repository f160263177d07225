package intake

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// heads parses the request heads on one connection as they pass, up to the first one with a
// Transfer-Encoding: net/http removes the Content-Length of such a request, so that a
// handler cannot reject it, although a proxy in front may have read it differently (request
// smuggling). It also stops at a head that is too long or has too many lines: net/http keeps
// each of them, however short, in about 90 bytes.
type heads struct {
	// max is the number of header lines of a request, without the first line, and maxBytes
	// the length of a head; 0 is no limit.
	max, maxBytes int

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
	// bytes, lines and lines about trailers of the current head; over is the number of the first head with too many.
	bytes, lines, trailers, over int
	// unexpected: a head has an expectation that net/http refuses before any handler.
	unexpected, expects bool
	// refused: begin returned an error.
	refused bool
	// reads of the current head.
	reads int
	// begun counts the requests that reached a handler, where one is now if serving is true.
	begun   int
	serving bool
}

// lineBytes are kept of each line: longer header names are irrelevant.
const lineBytes = 64

// A head may arrive in headReads pieces, and one more for each headPiece bytes: each takes the processor
// as long as a thousand bytes.
const headReads, headPiece = 256, 64

// see parses bytes that were read. It returns how many of them net/http may have: those before the first head with
// too many or too long lines.
func (h *heads) see(p []byte) (fine int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := len(p)
	if h.over > 0 {
		return all // it has begun
	}
	if h.skip == 0 {
		h.reads++
	}
	for len(p) > 0 && h.encoded == 0 {
		if h.skip > 0 {
			n := min(h.skip, int64(len(p)))
			h.skip -= n
			p = p[n:]
			continue
		}
		if !h.within && len(h.line) == 0 {
			fine = all - len(p) // a head begins
		}
		part, rest, whole := bytes.Cut(p, []byte("\n"))
		n := min(len(part), lineBytes-len(h.line))
		h.line, h.cut = append(h.line, part[:n]...), h.cut || n < len(part)
		h.bytes += len(p) - len(rest)
		if p = rest; h.maxBytes > 0 && (h.bytes > h.maxBytes || h.reads > headReads+h.bytes/headPiece || h.hides()) {
			h.over, h.line = h.seen+1, nil
		} else if whole {
			h.ended()
		}
		if h.over > 0 {
			return fine
		}
	}
	return all
}

// hides reports whether a line names many trailers, or continues the one before it, which may then be of
// any length (RFC 9112, 5.2, lets a server refuse that): net/http puts names of trailers into a map before
// the client is known. The lock is held.
func (h *heads) hides() bool {
	const name = "Trailer:"
	if !h.within || len(h.line) == 0 {
		return false
	}
	return h.line[0] == ' ' || h.line[0] == '\t' || h.cut && len(h.line) >= len(name) && strings.EqualFold(string(h.line[:len(name)]), name)
}

// ended parses a complete line; the lock is held.
func (h *heads) ended() {
	line, cut := string(bytes.TrimSuffix(h.line, []byte("\r"))), h.cut
	h.line, h.cut = h.line[:0], false
	if !h.within || line != "" {
		h.field(line, cut)
		h.within = h.within || line != "" // net/http skips empty lines between requests
		if h.max > 0 && (h.lines > h.max || h.trailers > 1) {
			h.over, h.line = h.seen+1, nil
		}
		return
	}
	h.within, h.bytes, h.reads, h.unexpected = false, 0, 0, h.unexpected || h.expects
	if h.seen++; h.encoding || h.odd { // the end of the body is unknown
		h.encoded, h.twice, h.line = h.seen, h.encoding && h.sized, nil
		return
	}
	h.skip = h.length
}

// field parses a header line; the lock is held.
func (h *heads) field(line string, cut bool) {
	name, value, _ := strings.Cut(line, ":")
	h.lines++
	switch {
	case !h.within:
		h.encoding, h.sized, h.odd, h.expects, h.length, h.lines, h.trailers = false, false, false, false, 0, 0, 0
	case strings.EqualFold(name, "Trailer"):
		h.trailers++
	case strings.EqualFold(name, "Expect"):
		h.expects = h.expects || !strings.EqualFold(strings.TrimSpace(value), "100-continue")
	case strings.EqualFold(name, "Transfer-Encoding"):
		h.encoding = true
	case strings.EqualFold(name, "Content-Length"):
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		h.sized, h.length = true, max(0, n)
		h.odd = h.odd || err != nil || cut
	}
}

// tooMany reports whether the head that is being read has too many lines.
func (h *heads) tooMany() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over > 0 && !h.serving && !h.refused // one that is served has arrived before
}

// ends reports whether nothing more is read: net/http has refused the expectation of a request, and would
// wait for the end of its body.
func (h *heads) ends() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unexpected
}

// begin counts a request that reaches a handler. It reports whether the request has a
// Transfer-Encoding, after which no more heads are parsed, and the error to reject it with.
func (h *heads) begin() (encoded bool, why *openai.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun++
	h.serving = true
	switch {
	case h.over > 0 && h.begun >= h.over:
		why = h.refusal()
	case h.begun == h.encoded && h.twice:
		why = &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest,
			Message: "The request has both Content-Length and Transfer-Encoding. Send one of them."}
	}
	h.refused = h.refused || why != nil
	return h.encoded > 0 && h.begun >= h.encoded, why
}

// between reports whether the next bytes are of a head, and no request is served.
func (h *heads) between() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.skip == 0 && h.encoded == 0 && !h.serving
}

// memory returns about how much memory the head that is being read takes, in bytes.
func (h *heads) memory() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return headFactor*int64(h.bytes) + headLine*int64(h.lines)
}

func (h *heads) refusal() *openai.Error {
	limits := fmt.Sprintf("%d header lines", h.max)
	if h.maxBytes > 0 {
		limits += fmt.Sprintf(" or %d bytes of headers, announces many trailers, continues a line, or sends it in too many pieces", h.maxBytes)
	}
	return &openai.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Type: openai.TypeInvalidRequest,
		Message: fmt.Sprintf("The request has more than %s. Send fewer.", limits)}
}

// end is called when the handler returns.
func (h *heads) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving = false
}

// Guard rejects requests with two lengths or too many header lines, and marks connections
// that serve a request. A connection is closed after the first request with a
// Transfer-Encoding. Trailers of requests are dropped: net/http keeps the names of 64 KiB in
// a map of 1 MiB.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(connKey{}).(*Conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		c.body.Store(0)
		if !c.turned.Swap(false) { // it was read together with another one
			if err := c.awaitTurn(0); errors.Is(err, errLate) {
				w.Header().Set("Connection", "close")
				c.hurry()
				_ = dialect.Of(r.URL.Path).WriteError(w, openai.RateLimited(retry), "") // the client is gone
				return
			} else if err != nil {
				panic(http.ErrAbortHandler)
			}
		}
		c.had.Store(true)
		defer c.ended()
		encoded, why := c.heads.begin()
		if encoded || why != nil {
			w.Header().Set("Connection", "close")
		}
		if why != nil {
			r.Trailer = nil
			c.hurry()
			if why.Status == http.StatusRequestHeaderFieldsTooLarge {
				c.countHead()
			}
			_ = dialect.Of(r.URL.Path).WriteError(w, why, "") // the client is gone
			return
		}
		if r.Body == http.NoBody {
			Arrived(r.Context())
		} else {
			c.sends()
		}
		if encoded {
			r.Trailer, r.Body = nil, untrailed{ReadCloser: r.Body, of: r}
		}
		next.ServeHTTP(w, r)
		if c.aborted.Load() {
			panic(http.ErrAbortHandler) // net/http would wait before it ends a connection with an unread body
		}
	})
}

// bodyTime is how long a client may take to send the rest of a request that was refused, and to read why.
const bodyTime = 2 * time.Second

// hurry ends a connection soon whose request was refused: net/http would wait for its body without an end.
func (c *Conn) hurry() { _ = c.SetDeadline(time.Now().Add(bodyTime)) }

// untrailed is a body whose trailers are dropped.
type untrailed struct {
	io.ReadCloser
	of *http.Request
}

// Read implements io.Reader.
func (u untrailed) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil {
		u.of.Trailer = nil
	}
	return n, err
}
