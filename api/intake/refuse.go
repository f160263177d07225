package intake

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// refusals are the responses to refused clients; a replaced connection is just closed.
var refusals = map[reason]struct {
	status  int
	message string
}{
	replaced:  {},
	unread:    {},
	heavy:     {},
	longHead:  {},
	noTotal:   {http.StatusServiceUnavailable, "The gateway has no room for another connection."},
	noAddress: {http.StatusTooManyRequests, "All connections that this address may have are in use."},
}

const (
	// refuseTime is how long a client may take to read its refusal.
	refuseTime = 50 * time.Millisecond
	// maxRefused connections are refused, and their clients have not read that.
	maxRefused = 256
	refusal    = "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%sConnection: close\r\n\r\n%s"
	// drainBytes of a head that is refused are read, so that closing the connection does not
	// discard the refusal.
	drainBytes = 64 << 10
)

// retryHeader is for a refusal.
var retryHeader = fmt.Sprintf("Retry-After: %d\r\n", int(retry.Seconds()))

// errHeadLines is the error of a connection whose client sends too many header lines.
var errHeadLines = errors.New("too many header lines")

// refuse answers the next request of the client, and closes the connection.
func (l *Listener) refuse(c net.Conn, why reason) {
	one := l.refused.enter(c, AddressOf(c.RemoteAddr().String()), maxRefused, maxRefused)
	defer one.Close() //nolint:errcheck // it is broken
	if l.Silent {
		return
	}
	e := &openai.Error{Status: refusals[why].status, Type: openai.TypeUnavailable, Code: openai.CodeOverloaded, Message: refusals[why].message + " Try again in a second."}
	_ = writeRefusal(c, e, retryHeader)
}

// refuseHead answers a request whose head is not read to its end.
func refuseHead(c net.Conn, e *openai.Error) {
	if writeRefusal(c, e, "") != nil || c.SetReadDeadline(time.Now().Add(refuseTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, drainBytes)
}

// writeRefusal writes a response outside of net/http.
func writeRefusal(c net.Conn, e *openai.Error, headers string) error {
	code := "null"
	if e.Code != "" {
		code = `"` + e.Code + `"`
	}
	body := fmt.Sprintf(`{"error":{"message":"%s","type":"%s","param":null,"code":%s}}`, e.Message, e.Type, code)
	if err := c.SetWriteDeadline(time.Now().Add(refuseTime)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(c, refusal, e.Status, http.StatusText(e.Status), len(body), headers, body)
	return err
}

// late ends a connection whose turn does not begin, with a refusal if that took long before a request.
func (c *Conn) late(why error) error {
	if errors.Is(why, errLate) {
		if c.heads.between() {
			_ = writeRefusal(c.Conn, openai.RateLimited(retry), retryHeader)
		}
		_ = c.Close()
	}
	return why
}
