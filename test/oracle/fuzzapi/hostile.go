package fuzzapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// slowest is how long any answer may take; hooks.py has the same.
const slowest = 60 * time.Second

// verdict that a hostile request wants.
type want int

const (
	anything want = iota // as long as it is promised and in shape
	refusal              // a 4xx
	answer               // a 200
	closing              // a 4xx, or a closed connection: the request never ended, or was none
	nothing              // the client leaves
	late                 // anything, or that the time is over: the client gave it none
)

// shot is one hostile request, as it goes over the wire.
type shot struct {
	kind, method, path string
	headers            []string
	body               []byte
	// length is what Content-Length says where that is not the body's; -1 sends
	// the body in chunks.
	length int
	// pieces that the body is sent in, each after a pause.
	pieces int
	pause  time.Duration
	// stall never ends the body.
	stall bool
	want  want
}

// hostile sends requests to one door.
type hostile struct {
	door door
	rng  *rand.Rand

	mu   sync.Mutex // guards what follows
	sent map[string]int
	errs []error
}

// maxFindings bounds how many findings are reported.
const maxFindings = 20

// run sends until asking ends, and lets what runs then end.
func (h *hostile) run(asking, ctx context.Context) error {
	h.sent = map[string]int{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for asking.Err() == nil && !h.full() {
			h.fire(ctx, stalled())
		}
	})
	var round []int // each round has every kind once, so that none is missing on a slow machine
	for asking.Err() == nil && !h.full() {
		if len(round) == 0 {
			round = h.rng.Perm(len(kinds))
		}
		k := kinds[round[0]]
		round = round[1:]
		s := k.make(h.rng, paths[h.rng.IntN(len(paths))])
		s.kind = k.name
		h.fire(ctx, s)
	}
	wg.Wait()
	fmt.Printf("   %s, hostile: %v\n", h.door.name, h.sent)
	for _, k := range kinds {
		if h.sent[k.name] == 0 && len(h.errs) == 0 {
			h.errs = append(h.errs, fmt.Errorf("no request of the kind %q was sent; give it more time", k.name))
		}
	}
	return errors.Join(h.errs...)
}

func (h *hostile) full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.errs) >= maxFindings
}

func (h *hostile) fire(ctx context.Context, s shot) {
	began := time.Now()
	err := h.shoot(ctx, s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent[s.kind]++
	if err != nil && ctx.Err() == nil {
		h.errs = append(h.errs, fmt.Errorf("%s at the %s, %s %s, after %.1f s: %w; %d bytes of body begin %.300q", s.kind, h.door.name, s.method, s.path,
			time.Since(began).Seconds(), err, len(s.body), s.body))
	}
}

// shoot sends a request and judges what comes back.
func (h *hostile) shoot(ctx context.Context, s shot) error {
	conn, err := h.door.dial(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(slowest)); err != nil {
		return err
	}
	gone := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { s.send(conn, gone) }) // an answer may come before the body's end
	defer sending.Wait()
	defer conn.Close()
	defer close(gone)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: s.method})
	if err != nil {
		if isTimeout(err) {
			return fmt.Errorf("no answer within %s", slowest)
		}
		if s.want == closing {
			return nil
		}
		return fmt.Errorf("no answer: %w", err)
	}
	defer resp.Body.Close()
	if s.want == nothing {
		_, err := resp.Body.Read(make([]byte, 1))
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("the first byte: %w", err)
		}
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil && s.want == closing && resp.StatusCode/100 == 4 {
		return nil // net/http closes the connection after its error, even if there is unread data
	}
	if err != nil {
		return fmt.Errorf("%s breaks off: %w: %.200q", resp.Status, err, tail(body))
	}
	return s.judge(resp, body)
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func (s shot) judge(resp *http.Response, body []byte) error {
	if s.want == closing && resp.StatusCode/100 == 4 && resp.Header.Get("X-Request-Id") == "" {
		return nil // net/http refused what is no HTTP
	}
	if s.want == late && resp.StatusCode == http.StatusGatewayTimeout && dialect.ParseError(resp.StatusCode, resp.Header, body).Code == openai.CodeTimeout {
		return shaped(s.path, body)
	}
	if err := judge(s.path, resp.StatusCode, resp.Header, body); err != nil {
		return err
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		if err := judgeStream(s.path, body); err != nil {
			return err
		}
	}
	switch c := resp.StatusCode / 100; {
	case (s.want == refusal || s.want == closing) && c != 4 && c != 5, s.want == answer && c != 2 && c != 5:
		return fmt.Errorf("answered %s: %.200q", resp.Status, body)
	}
	return nil
}

// send writes the request, and stays silent if the server does not read all of it.
func (s shot) send(conn net.Conn, gone <-chan struct{}) {
	var head bytes.Buffer
	fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: fuzz\r\n", s.method, s.path)
	chunked := s.length < 0
	switch {
	case chunked:
		head.WriteString("Transfer-Encoding: chunked\r\n")
	case s.length > 0:
		fmt.Fprintf(&head, "Content-Length: %d\r\n", s.length)
	default:
		fmt.Fprintf(&head, "Content-Length: %d\r\n", len(s.body))
	}
	if !slices.ContainsFunc(s.headers, func(h string) bool { return strings.HasPrefix(h, "Content-Type:") }) {
		head.WriteString("Content-Type: application/json\r\n")
	}
	for _, line := range s.headers {
		head.WriteString(line + "\r\n")
	}
	head.WriteString("\r\n")
	if _, err := conn.Write(head.Bytes()); err != nil {
		return
	}
	if !s.sendBody(conn, gone, chunked) || s.stall {
		return
	}
	if chunked {
		_, _ = io.WriteString(conn, "0\r\n\r\n")
	}
	if s.length > len(s.body) {
		closeWrite(conn) // what was promised does not come
	}
}

func (s shot) sendBody(conn net.Conn, gone <-chan struct{}, chunked bool) bool {
	rest, pieces := s.body, max(1, s.pieces)
	for i := range pieces {
		n := len(rest) / (pieces - i)
		piece := rest[:n]
		rest = rest[n:]
		if i > 0 && !waited(s.pause, gone) {
			return false
		}
		if len(piece) == 0 {
			continue
		}
		if chunked {
			piece = fmt.Appendf(nil, "%x\r\n%s\r\n", len(piece), piece)
		}
		if _, err := conn.Write(piece); err != nil {
			return false
		}
	}
	return true
}

func waited(d time.Duration, gone <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-gone:
		return false
	}
}

func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
