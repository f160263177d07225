package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// target is what is asked: a proxy, or the agent itself.
type target struct {
	name    string
	address string
	path    string      // before /v1
	tls     *tls.Config // nil: plain
	key     string      // API key; empty: none
	pid     int         // of the proxy; 0: unknown

	begin, end func(context.Context) error
}

const patience = 20 * time.Second

// settle is how long streams have waited when their memory is read.
const settle = 3 * time.Second

// conn is a client's connection. It reads no more of an answer than it must, so
// that clients cost little beside what is measured.
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

// request is the bytes of one.
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

// head reads the head of an answer, which must be a good one, and says how long
// its body is; -1 where it is chunked.
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

// whole asks for a short answer, which must be the agent's.
func (c *conn) whole(request []byte, want int) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	n, err := c.head()
	if err != nil {
		return err
	}
	if n != want {
		return fmt.Errorf("the answer has %d bytes, want %d", n, want)
	}
	_, err = c.in.Discard(n)
	return err
}

// chunk reads the next chunk of a stream; none is its end.
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

// latency is the median of requests that follow one another.
func (w *world) latency(ctx context.Context, t *target) (time.Duration, error) {
	const requests = 400
	c, err := t.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	request, want := t.request(question(askShort, 16)), len(w.agent.short)
	took := make([]time.Duration, 0, requests)
	for range requests {
		began := time.Now()
		if err := c.whole(request, want); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	slices.Sort(took)
	return took[requests/2], nil
}

// shortAnswers has n clients ask, each again when it was answered.
func (w *world) shortAnswers(ctx context.Context, t *target, n int) (rate, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conns, err := t.dialAll(ctx, n)
	if err != nil {
		return rate{}, err
	}
	defer closeAll(conns)
	request, want := t.request(question(askShort, 16)), len(w.agent.short)
	ask := func(c *conn, until time.Time) (count int, err error) {
		for ; time.Now().Before(until); count++ {
			if err := c.whole(request, want); err != nil {
				return count, err
			}
		}
		return count, nil
	}
	if _, err := each(conns, func(c *conn) (int, error) { return ask(c, time.Now().Add(w.short/4)) }); err != nil { // every connection is warm
		return rate{}, err
	}
	began, before, err := time.Now(), time.Duration(0), error(nil)
	if before, err = t.processorTime(); err != nil {
		return rate{}, err
	}
	count, err := each(conns, func(c *conn) (int, error) { return ask(c, began.Add(w.short)) })
	took := time.Since(began)
	after, e := t.processorTime()
	if err := errors.Join(err, e); err != nil {
		return rate{}, err
	}
	out := rate{seen: float64(count) / took.Seconds()}
	if t.pid != 0 {
		out.core = float64(count) / (after - before).Seconds()
	}
	return out, nil
}

// eventStreams is the proxy's processor time for one event.
func (w *world) eventStreams(ctx context.Context, t *target) (us float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.events+patience)
	defer cancel()
	conns, err := t.dialAll(ctx, w.streams)
	if err != nil {
		return 0, err
	}
	defer closeAll(conns)
	want := int(w.events.Seconds() * eventsEach)
	request := t.request(question(askEvents, want))
	before, err := t.processorTime()
	if err != nil {
		return 0, err
	}
	count, err := each(conns, func(c *conn) (int, error) { return c.events(request, w.events+patience, want) })
	after, e := t.processorTime()
	if err := errors.Join(err, e); err != nil || t.pid == 0 {
		return 0, err
	}
	return float64((after - before).Microseconds()) / float64(count), nil
}

// events reads a stream to its end, which must be a good one.
func (c *conn) events(request []byte, most time.Duration, want int) (int, error) {
	if err := c.SetDeadline(time.Now().Add(most)); err != nil {
		return 0, err
	}
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	if _, err := c.head(); err != nil {
		return 0, err
	}
	var text bytes.Buffer
	count, done := 0, false
	for more := true; more; {
		var err error
		text.Reset()
		if more, err = c.chunk(&text); err != nil {
			return count, err
		}
		count += bytes.Count(text.Bytes(), []byte(`"finish_reason"`))
		done = done || bytes.Contains(text.Bytes(), []byte(doneText))
	}
	if count != want || !done {
		return count, fmt.Errorf("the stream had %d events of %d, and its end: %v", count, want, done)
	}
	return count, nil
}

// idleStreams is what the proxy's memory grows by for a stream that waits, some
// time after it began to.
func (w *world) idleStreams(ctx context.Context, t *target) (kib float64, err error) {
	before, err := t.memory()
	if err != nil {
		return 0, err
	}
	conns, err := t.dialAll(ctx, w.idle)
	if err != nil {
		return 0, err
	}
	defer closeAll(conns)
	request := t.request(question(askIdle, 16))
	if _, err := each(conns, func(c *conn) (int, error) { return 1, c.first(request) }); err != nil {
		return 0, err
	}
	timer := time.NewTimer(settle) // streams that wait have waited for a while
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := t.memory()
	if err != nil || t.pid == 0 {
		return 0, err
	}
	return float64(after-before) / 1024 / float64(w.idle), nil
}

// first asks for a stream and reads its first event.
func (c *conn) first(request []byte) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	if _, err := c.head(); err != nil {
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

func (t *target) dialAll(ctx context.Context, n int) ([]*conn, error) {
	conns := make([]*conn, 0, n)
	for range n {
		c, err := t.dial(ctx)
		if err != nil {
			closeAll(conns)
			return nil, err
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// each runs f for every connection at once, and sums what it counted.
func each(conns []*conn, f func(*conn) (int, error)) (int, error) {
	counts, errs := make([]int, len(conns)), make([]error, len(conns))
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { counts[i], errs[i] = f(c) })
	}
	wg.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	for _, err := range errs {
		if err != nil {
			return sum, err // one says enough
		}
	}
	return sum, nil
}
