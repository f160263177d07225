package intake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/test/patience"
)

// lines are n header lines with different names.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%04x:\n", i)
	}
	return b.String()
}

// watched is a server whose requests the test receives.
func watched(t *testing.T, l *Listener, h http.HandlerFunc) *pipes {
	t.Helper()
	p := newPipes()
	l.Listener = p
	s := &http.Server{ConnContext: Context, Handler: Guard(h), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: patience.Of(t)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), p.Close()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return p
}

// TestAttackManyHeaderLines: net/http keeps about 90 bytes for a header line of 5. A request
// of more lines than allowed gets 431, also one that is not complete, one after another one,
// and one in which lines continue others.
func TestAttackManyHeaderLines(t *testing.T) {
	const most = 200
	l := &Listener{HeadLines: most, HeadBytes: 64 << 10}
	p := watched(t, l, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	const get = "GET / HTTP/1.1\nHost: x\n"
	refused := int64(0)
	for name, c := range map[string]struct {
		send string
		want []int
	}{
		"as many as allowed":                 {send: get + lines(most-1) + "\n", want: []int{200}},
		"one more":                           {send: get + lines(most) + "\n", want: []int{431}},
		"one more, with CR":                  {send: strings.ReplaceAll(get+lines(most)+"\n", "\n", "\r\n"), want: []int{431}},
		"one more, and no end":               {send: get + lines(most), want: []int{431}},
		"64 KiB without an end":              {send: get + lines(13_000), want: []int{431}},
		"66 KiB in one line":                 {send: get + "a: " + strings.Repeat("b", 66<<10) + "\n\n", want: []int{431}},
		"continued lines":                    {send: get + "a: b\n" + strings.Repeat(" c\n", 10_000), want: []int{431}},
		"one line of one name":               {send: get + strings.Repeat("a:\n", most) + "\n", want: []int{431}},
		"as many as allowed, twice":          {send: strings.Repeat(get+lines(most-1)+"\n", 2), want: []int{200, 200}},
		"one more, after a request":          {send: get + "\n" + get + lines(most) + "\n", want: []int{200, 431}},
		"64 KiB, after a request":            {send: get + "\n" + get + lines(13_000), want: []int{200, 431}},
		"64 KiB, after one with a body":      {send: small + get + lines(13_000), want: []int{200, 431}},
		"a body of lines":                    {send: "POST / HTTP/1.1\nHost: x\nContent-Length: 60000\n\n" + lines(10_000), want: []int{200}},
		"64 KiB after a body of many lines":  {send: "POST / HTTP/1.1\nHost: x\nContent-Length: 60000\n\n" + lines(10_000) + get + lines(13_000), want: []int{200, 431}},
		"a chunked body":                     {send: "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + "3\r\na\nb\r\n0\r\n\r\n", want: []int{200}},
		"a continued line":                   {send: get + "a: b\n c\n\n", want: []int{431}},
		"a continued line of trailers":       {send: "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: a,\n " + strings.Repeat("a,", 10_000), want: []int{431}},
		"two lines of trailers":              {send: "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: a\nTrailer: b\n", want: []int{431}},
		"a few trailers":                     {send: "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: a, b\n\n0\r\n\r\n", want: []int{200}},
		"many trailers":                      {send: "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\ntrailer: " + strings.Repeat("a,", 10_000), want: []int{431}},
		"64 KiB of them, and a chunked body": {send: "POST / HTTP/1.1\nHost: x\n" + lines(10_000) + "Transfer-Encoding: chunked\n\n0\r\n\r\n", want: []int{431}},
	} {
		conn := p.dial("10.0.0.1")
		_ = conn.SetDeadline(time.Now().Add(patience.Of(t)))
		go func() { _, _ = io.WriteString(conn, c.send) }()
		from := bufio.NewReader(conn)
		for i, want := range c.want {
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatalf("%s: response %d: %v", name, i, err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want {
				t.Errorf("%s: response %d has status %d (%v), want %d", name, i, resp.StatusCode, err, want)
			}
		}
		if c.want[len(c.want)-1] == http.StatusRequestHeaderFieldsTooLarge {
			refused++
			if n, err := io.Copy(io.Discard, from); n > 0 || errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %d bytes follow (%v)", name, n, err)
			}
		}
		_ = conn.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended[longHead] != refused {
		t.Errorf("%d refused heads are counted, want %d", l.ended[longHead], refused)
	}
}

// TestAttackHeadsThatDoNotEnd: connections that send short header lines as fast as they can
// take little memory before any of them is a request.
func TestAttackHeadsThatDoNotEnd(t *testing.T) {
	const n = 100
	p := watched(t, &Listener{HeadLines: 200}, func(http.ResponseWriter, *http.Request) {})
	before := heapBytes()
	var sending sync.WaitGroup
	for range n {
		conn := p.dial("10.0.0.1")
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience.Of(t)))
		sending.Go(func() { _, _ = io.WriteString(conn, "GET / HTTP/1.1\nHost: x\n"+lines(10_900)) }) // 64 KiB
	}
	sending.Wait()
	if each := (heapBytes() - before) / n; each > 64<<10 {
		t.Errorf("a connection holds %d KiB", each>>10)
	}
}

// TestARefusedRequestIsNotAwaited: net/http reads the body of a request after its response, and keeps the
// head for as long.
func TestARefusedRequestIsNotAwaited(t *testing.T) {
	p := watched(t, &Listener{HeadLines: 200, HeadBytes: 64 << 10}, func(http.ResponseWriter, *http.Request) {})
	for send, want := range map[string]int{
		"Content-Length: 1\nTransfer-Encoding: chunked\nTrailer: a\n": http.StatusBadRequest,
		"Expect: x\nTransfer-Encoding: chunked\nTrailer: a\n":         http.StatusExpectationFailed,
		"Expect: x\nContent-Length: 1\n":                              http.StatusExpectationFailed,
	} {
		conn := p.dial("10.0.0.1")
		defer conn.Close()
		if status := answer(t, conn, "POST / HTTP/1.1\nHost: x\n"+send+"\n"); status != want {
			t.Errorf("%s has status %d, want %d", send, status, want)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: the connection does not end: %v", send, err)
		}
	}
}

// TestAttackTrailers: names of trailers, announced in one line or sent after a body, are not
// kept while the request waits.
func TestAttackTrailers(t *testing.T) {
	names := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%04x,", i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for name, send := range map[string]string{
		"announced": "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\nTrailer: " + names(10) + "\n\n0\r\n\r\n",
		"sent":      "POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n0\r\n" + strings.ReplaceAll(lines(300), "\n", "\r\n") + "\r\n",
	} {
		kept := make(chan [2]int, 1)
		p := watched(t, &Listener{HeadLines: 200}, func(_ http.ResponseWriter, r *http.Request) {
			first := len(r.Trailer)
			of := r.WithContext(r.Context())
			_, err := io.Copy(io.Discard, of.Body)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			kept <- [2]int{first, len(r.Trailer) + len(of.Trailer)}
		})
		conn := p.dial("10.0.0.1")
		if status := answer(t, conn, send); status != http.StatusOK {
			t.Errorf("%s: status %d", name, status)
		}
		_ = conn.Close()
		if n := <-kept; n != [2]int{} {
			t.Errorf("%s: %d trailers are kept before the body is read, %d after it", name, n[0], n[1])
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLongHeadsCountAsBodies: a head counts from its first bytes until its request has ended,
// against its address and then its tenant. One for which there is no memory is refused, and
// one that is not complete gives way to another address.
func TestLongHeadsCountAsBodies(t *testing.T) {
	long := "GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("x", 30<<10)
	bodies := &Bodies{Max: 100 << 10}
	holds := make(chan error)
	l := &Listener{HeadLines: 200, HeadBytes: 64 << 10, Bodies: bodies}
	p := watched(t, l, func(_ http.ResponseWriter, r *http.Request) {
		holds <- Own(r.Context(), "tenant")
		<-holds
	})
	send := func(address, text string) net.Conn {
		conn := p.dial(address)
		_ = conn.SetDeadline(time.Now().Add(patience.Of(t)))
		if _, err := io.WriteString(conn, text); err != nil {
			t.Error(err)
		}
		return conn
	}
	shares := func() (out []string) {
		bodies.mu.Lock()
		defer bodies.mu.Unlock()
		for name, o := range bodies.owners {
			out = append(out, fmt.Sprint(name, " ", o.bytes>>10))
		}
		return out
	}
	incomplete := send("10.0.0.1", long)
	defer incomplete.Close()
	eventually(t, "a part of a head counts", func() bool { return slices.Equal(shares(), []string{"10.0.0.1 60"}) })
	served := send("10.0.0.2", long+"\r\n\r\n")
	defer served.Close()
	if err := <-holds; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(incomplete); err != nil {
		t.Errorf("the connection that gave way: %v", err)
	}
	eventually(t, "the tenant's head counts alone, but for its last 4 KiB", func() bool { return slices.Equal(shares(), []string{"tenant 56"}) })
	third := p.dial("10.0.0.3")
	defer third.Close()
	if status := answer(t, third, long+"\r\n\r\n"); status != http.StatusServiceUnavailable {
		t.Errorf("a head without room has status %d", status)
	}
	holds <- nil
	eventually(t, "nothing counts after the request", func() bool { return bodies.Held() == 0 })
}

// TestAHeadInTinyPiecesIsRefused: each piece takes processor time. A body may arrive so.
func TestAHeadInTinyPiecesIsRefused(t *testing.T) {
	h := heads{max: 200, maxBytes: 64 << 10}
	send := func(text string) (pieces int) {
		for i := range text {
			if h.see([]byte(text[i : i+1])); h.tooMany() {
				return i
			}
		}
		return len(text)
	}
	for range 3 {
		for _, text := range []string{"POST / HTTP/1.1\nHost: x\nContent-Length: 2000\n\n", strings.Repeat(" ", 2000)} {
			if n := send(text); n != len(text) {
				t.Fatalf("refused after %d of %d pieces", n, len(text))
			}
		}
	}
	if n := send("GET / HTTP/1.1\nX: " + strings.Repeat("y", 2000)); n > 2*headReads {
		t.Errorf("%d pieces of a head are read", n)
	}
}

// TestNothingOfALongHeadIsParsed: net/http keeps each line of it, in 4 KiB a thousand. What was sent before it
// counts.
func TestNothingOfALongHeadIsParsed(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	const post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n123\n\n\n789"
	long := "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("a:\n", 300)
	for name, tc := range map[string]struct {
		send []string
		want int // of the last one
	}{
		"at once":                  {[]string{long}, 0},
		"after a request":          {[]string{get + long}, len(get)},
		"after one with a body":    {[]string{post + get + long}, len(post) + len(get)},
		"after a part of a body":   {[]string{post[:len(post)-3], post[len(post)-3:] + long}, 3},
		"in two pieces":            {[]string{long[:300], long[300:]}, 0},
		"that is not long":         {[]string{get, long[:300]}, 300},
		"after a body of any kind": {[]string{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", long}, len(long)},
	} {
		h, fine := heads{max: 200}, 0
		for _, piece := range tc.send {
			fine = h.see([]byte(piece))
		}
		if fine != tc.want {
			t.Errorf("%s: %d bytes may be parsed, want %d", name, fine, tc.want)
		}
	}
}

// TestALongHeadIsRefusedBeforeItIsParsed: its body is not awaited.
func TestALongHeadIsRefusedBeforeItIsParsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := &http.Server{ConnContext: Context, Handler: Guard(http.NotFoundHandler())}
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(&Listener{Listener: p, HeadLines: 200}) }()
		c, began := p.dial("10.0.0.1"), time.Now()
		go func() {
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"+strings.Repeat("a:\n", 300)+"\n")
		}()
		if got, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 431") || time.Since(began) > refuseTime {
			t.Errorf("a client reads %.20q until %s (%v)", got, time.Since(began), err)
		}
		_ = s.Close()
		<-ended
	})
}
