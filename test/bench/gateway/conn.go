package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// target is what requests are sent to: a proxy, or the agent itself.
type target struct {
	name    string
	address string
	path    string      // in front of /v1
	tls     *tls.Config // nil: plain HTTP
	key     string      // API key; empty: none
	pid     int         // of the proxy; 0: unknown

	begin, end func(context.Context) error
}

const patience = 20 * time.Second

// conn is a client's connection. It reads no more of an answer than it has to,
// so that clients cost little next to what is measured.
type conn struct {
	net.Conn
	in *bufio.Reader
}

func (t *target) dial(ctx context.Context) (*conn, error) {
	raw, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return nil, err
	}
	if t.tls != nil {
		secure := tls.Client(raw, t.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, raw.Close())
		}
		raw = secure
	}
	return &conn{Conn: raw, in: bufio.NewReaderSize(raw, 4<<10)}, nil
}

// request is a whole request in bytes.
func (t *target) request(body []byte) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s/v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", t.path, t.address, len(body))
	if t.key != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", t.key)
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// send writes a request and reads the head of its answer. It returns the length
// of the body, or -1 if that is chunked.
func (c *conn) send(request []byte, limit time.Duration) (int, error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	return c.head()
}

// head reads the head of an answer, whose status has to be 200.
func (c *conn) head() (int, error) {
	length, first := -1, true
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		switch {
		case first:
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
				return 0, fmt.Errorf("the answer begins with %q", line)
			}
			first = false
		case len(line) == 2:
			return length, nil
		case len(line) > 16 && bytes.EqualFold(line[:16], []byte("content-length: ")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[16:]))); err != nil {
				return 0, err
			}
		}
	}
}

// whole asks for a short answer, which has to have the agent's length.
func (c *conn) whole(request []byte, want int) error {
	n, err := c.send(request, patience)
	if err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("the answer has %d bytes, want %d", n, want)
	}
	_, err = c.in.Discard(n)
	return err
}

// chunk reads the next chunk of a stream and reports whether there are more.
func (c *conn) chunk(into *bytes.Buffer) (bool, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
	if err != nil {
		return false, fmt.Errorf("length of a chunk: %w", err)
	}
	if _, err := io.CopyN(into, c.in, n); err != nil {
		return false, err
	}
	_, err = c.in.Discard(2)
	return n > 0, err
}

// events reads a stream to its end, which has to have as many events as wanted.
func (c *conn) events(request []byte, limit time.Duration, want int) (count int, err error) {
	if _, err := c.send(request, limit); err != nil {
		return 0, err
	}
	var text bytes.Buffer
	done := false
	for more := true; more; {
		text.Reset()
		if more, err = c.chunk(&text); err != nil {
			return count, err
		}
		count += bytes.Count(text.Bytes(), []byte(`"finish_reason"`))
		done = done || bytes.Contains(text.Bytes(), []byte(doneText))
	}
	if count != want || !done {
		return count, fmt.Errorf("the stream had %d of %d events (complete: %v)", count, want, done)
	}
	return count, nil
}

// first asks for a stream and reads its first event.
func (c *conn) first(request []byte) error {
	if _, err := c.send(request, patience); err != nil {
		return err
	}
	var text bytes.Buffer
	if _, err := c.chunk(&text); err != nil {
		return err
	}
	if text.String() != eventText {
		return fmt.Errorf("the first event is %q", text.String())
	}
	return nil
}
