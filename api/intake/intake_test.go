package intake

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/patience"
)

// pipes is a listener of in-memory connections.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	shut  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), shut: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.shut:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.shut) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a connection with a remote address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	at, err := net.ResolveTCPAddr("tcp", f.address+":1234")
	if err != nil {
		panic(err)
	}
	return at
}

func (p *pipes) dial(address string) net.Conn {
	client, server := net.Pipe()
	select {
	case p.conns <- from{Conn: server, address: address}:
	case <-p.shut:
	}
	return client
}

// front is a server that reads bodies and responds with their length.
type front struct {
	*pipes
	conns  *Listener
	bodies *Bodies
	// hold blocks requests for /hold; responses to /long are longer than the server's buffer.
	hold    chan struct{}
	holding atomic.Int64
}

func newFront(t *testing.T, total, each int, most int64) *front {
	t.Helper()
	f := &front{pipes: newPipes(), bodies: &Bodies{Max: most}, hold: make(chan struct{})}
	f.conns = &Listener{Listener: f.pipes, Total: total, PerAddress: each}
	s := &http.Server{ConnContext: Context, Handler: Guard(f)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(f.conns) }()
	t.Cleanup(func() {
		close(f.hold)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return f
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(time.Minute))
	interrupt := func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) }
	body, kept, err := f.bodies.Read(r.Body, AddressOf(r.RemoteAddr), r.ContentLength, 16<<20, interrupt)
	if err != nil {
		w.Header().Set("Connection", "close")
		_ = openai.WriteError(w, openai.AsError(err))
		return
	}
	defer kept.Release()
	Arrived(r.Context())
	if r.URL.Path == "/hold" {
		f.holding.Add(1)
		<-f.hold
	}
	if r.URL.Path == "/long" {
		_, _ = w.Write(make([]byte, 64<<10))
	}
	fmt.Fprint(w, len(body))
}

// ask sends a request on a new connection and returns the status; 0 if there was none.
func (f *front) ask(t *testing.T, address, request string) int {
	t.Helper()
	c := f.dial(address)
	defer c.Close()
	return answer(t, c, request)
}

func answer(t *testing.T, c net.Conn, request string) int {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(c, request) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience.Of(t)); !ok(); <-again.C {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

const small = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"

// 16 bodies of 15.9 MiB and 9,000 of 64 KiB that never end, with the gateway's defaults:
// connections and buffers stay within their limits at any time, and other clients are
// served meanwhile, including one at the same address.
func TestAttackUnfinishedBodies(t *testing.T) {
	const total, each = 4096, 2048
	var sampling, attackers sync.WaitGroup
	t.Cleanup(attackers.Wait) // after the server has closed their connections
	f := newFront(t, total, each, DefaultBodyBytes)
	done := make(chan struct{})
	var bytesMost, connsMost int64
	sampling.Go(func() {
		for {
			bytesMost, connsMost = max(bytesMost, f.bodies.Held()), max(connsMost, int64(f.conns.Count()))
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	const head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	mebi := bytes.Repeat([]byte("a"), 1<<20)
	upload := func(parts int, part []byte) {
		c := f.dial("10.0.0.1")
		attackers.Go(func() {
			defer c.Close()
			if _, err := io.WriteString(c, head); err != nil {
				return
			}
			for range parts {
				if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(part), part); err != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, c) // until the gateway closes the connection
		})
	}
	for range 16 {
		upload(159, mebi[:len(mebi)/10])
	}
	eventually(t, "a large body", func() bool { return f.bodies.Held() > 60<<20 })
	for n := range 9000 {
		upload(1, mebi[:65000])
		if n%500 == 0 {
			for _, address := range []string{"10.0.0.1", "10.0.0.2"} {
				if status := f.ask(t, address, small); status != http.StatusOK {
					t.Errorf("after %d bodies a client at %s gets %d", n, address, status)
				}
			}
		}
	}
	close(done)
	sampling.Wait()
	t.Logf("at most %d MiB of buffers and %d connections", bytesMost>>20, connsMost)
	if bytesMost > DefaultBodyBytes || bytesMost < DefaultBodyBytes/4 || connsMost > total || connsMost < each/2 {
		t.Errorf("at most %d bytes of buffers and %d connections", bytesMost, connsMost)
	}
}

// A connection that serves a request is never closed for another one.
func TestConnectionsThatServeStay(t *testing.T) {
	f := newFront(t, 3, 2, 1<<20)
	hold := strings.Replace(small, "POST / ", "POST /hold ", 1)
	var held []net.Conn
	for n, address := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.2"} {
		c := f.dial(address)
		held = append(held, c)
		go func() { _, _ = io.WriteString(c, hold) }()
		eventually(t, "a request", func() bool { return f.holding.Load() == int64(n+1) })
	}
	for address, want := range map[string]int{"10.0.0.1": http.StatusTooManyRequests, "10.0.0.3": http.StatusServiceUnavailable} {
		if status := f.ask(t, address, small); status != want {
			t.Errorf("a client at %s gets %d, want %d", address, status, want)
		}
	}
	f.hold <- struct{}{}
	f.hold <- struct{}{}
	f.hold <- struct{}{}
	for _, c := range held {
		if status := answer(t, c, ""); status != http.StatusOK {
			t.Errorf("a request that was served gets %d", status)
		}
	}
	// Now they wait for another request, and may be replaced.
	eventually(t, "a place", func() bool { return f.ask(t, "10.0.0.3", small) == http.StatusOK })
	if n := f.conns.Count(); n > 3 {
		t.Errorf("%d connections", n)
	}
}

// An address with more connections than others cannot replace theirs.
func TestAnAddressTakesOnlyItsShare(t *testing.T) {
	f := newFront(t, 4, 4, 1<<20)
	quiet := f.dial("10.0.0.2")
	for range 10 {
		f.dial("10.0.0.1")
	}
	if status := answer(t, quiet, small); status != http.StatusOK {
		t.Errorf("the other address gets %d", status)
	}
	if n := f.conns.Count(); n > 4 {
		t.Errorf("%d connections", n)
	}
}

// A connection that never completed a request is replaced before one that did.
func TestAUsedConnectionOutlivesAFreshOne(t *testing.T) {
	f := newFront(t, 9, 2, 1<<20)
	used := f.dial("10.0.0.1")
	if status := answer(t, used, small); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	eventually(t, "the end of a request", func() bool {
		f.conns.mu.Lock()
		defer f.conns.mu.Unlock()
		return f.conns.addresses["10.0.0.1"].used.Len() == 1
	})
	f.dial("10.0.0.1")
	eventually(t, "a fresh connection", func() bool { return f.conns.Count() == 2 })
	if status := f.ask(t, "10.0.0.1", small); status != http.StatusOK {
		t.Errorf("the newest connection gets %d", status)
	}
	if status := answer(t, used, small); status != http.StatusOK {
		t.Errorf("a second request on a connection gets %d", status)
	}
}

// An address whose connections all serve requests does not replace one of an address with
// fewer.
func TestAnAddressWithMoreIsRefusedBeforeOneWithFewer(t *testing.T) {
	f := newFront(t, 3, 3, 1<<20)
	hold := strings.Replace(small, "POST / ", "POST /hold ", 1)
	for n := range 2 {
		c := f.dial("10.0.0.1")
		go func() { _, _ = io.WriteString(c, hold) }()
		eventually(t, "a request", func() bool { return f.holding.Load() == int64(n+1) })
	}
	quiet := f.dial("10.0.0.2")
	eventually(t, "a connection", func() bool { return f.conns.Count() == 3 })
	if status := f.ask(t, "10.0.0.1", small); status != http.StatusServiceUnavailable {
		t.Errorf("a third connection gets %d", status)
	}
	if status := answer(t, quiet, small); status != http.StatusOK {
		t.Errorf("the address with one connection gets %d", status)
	}
	f.hold <- struct{}{}
	f.hold <- struct{}{}
}

// Bodies of an owner that holds less stay; those of the owner that holds the most are
// dropped.
func TestBodiesHaveAFairShare(t *testing.T) {
	b := &Bodies{Max: 1 << 20}
	type result struct {
		n   int
		err error
	}
	read := func(owner string, from io.Reader) chan result {
		out := make(chan result, 1)
		r, w := io.Pipe()
		go func() { _, err := io.Copy(w, from); w.CloseWithError(err) }()
		go func() {
			data, kept, err := b.Read(r, owner, -1, 1<<20, func() { w.CloseWithError(errors.New("interrupted")) })
			if err == nil {
				defer kept.Release()
			}
			out <- result{n: len(data), err: err}
		}()
		return out
	}
	never := func() (io.Reader, func()) { r, w := io.Pipe(); return r, func() { w.Close() } }
	stall, finish := never()
	victim := read("a", io.MultiReader(strings.NewReader(strings.Repeat("x", 30<<10)), stall))
	eventually(t, "a body", func() bool { return b.Held() > 0 })
	var greedy []chan result
	for range 20 {
		forever, _ := never()
		greedy = append(greedy, read("b", io.MultiReader(strings.NewReader(strings.Repeat("x", 200<<10)), forever)))
	}
	crowded := 0
	eventually(t, "a refusal", func() bool {
		for _, g := range greedy {
			select {
			case r := <-g:
				if e := openai.AsError(r.err); e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 {
					t.Errorf("a body without room: %v", r.err)
				}
				crowded++
			default:
			}
		}
		return crowded >= 10
	})
	if held := b.Held(); held > b.Max {
		t.Errorf("%d bytes are held", held)
	}
	finish()
	if r := <-victim; r.err != nil || r.n != 30<<10 {
		t.Errorf("the other owner's body has %d bytes: %v", r.n, r.err)
	}
	if r := <-read("c", strings.NewReader("hello")); r.err != nil {
		t.Errorf("a small body: %v", r.err)
	}
}

// Larger bodies leave memory for small ones.
func TestSmallBodiesFindRoomNextToLargeOnes(t *testing.T) {
	b := &Bodies{Max: 1 << 20}
	read := func(owner string, size int) error {
		_, kept, err := b.Read(strings.NewReader(strings.Repeat("x", size)), owner, int64(size), 1<<20, func() {})
		if err == nil {
			t.Cleanup(kept.Release)
		}
		return err
	}
	if err := read("a", 700<<10); err != nil {
		t.Fatal(err)
	}
	if err := read("b", 200<<10); openai.AsError(err).Status != http.StatusServiceUnavailable {
		t.Errorf("a second large body: %v", err)
	}
	if err := read("c", 60<<10); err != nil {
		t.Errorf("a small body: %v", err)
	}
}

// A body with which its owner would hold more than any other is refused: the other bodies
// stay, although their owner holds more now.
func TestABodyIsRefusedBeforeOneOfALighterOwner(t *testing.T) {
	b := &Bodies{Max: 1 << 20}
	stalled, finish := io.Pipe()
	light := make(chan error, 1)
	go func() {
		from := io.MultiReader(strings.NewReader(strings.Repeat("x", 300<<10)), stalled)
		_, kept, err := b.Read(from, "light", 400<<10, 1<<20, func() { finish.CloseWithError(errors.New("interrupted")) })
		if err == nil {
			kept.Release()
		}
		light <- err
	}()
	eventually(t, "most of a body", func() bool { return b.Held() > 400<<10 })
	if _, _, err := b.Read(strings.NewReader(strings.Repeat("x", 500<<10)), "heavy", 500<<10, 1<<20, func() {}); openai.AsError(err).Status != http.StatusServiceUnavailable {
		t.Errorf("the body of the heavier owner: %v", err)
	}
	if _, err := io.WriteString(finish, strings.Repeat("x", 100<<10)); err != nil {
		t.Error(err)
	}
	finish.Close()
	if err := <-light; err != nil {
		t.Errorf("the body of the lighter owner: %v", err)
	}
}

func TestABodyCountsItsBuffer(t *testing.T) {
	for name, tc := range map[string]struct {
		size           int
		promised, most int64
	}{
		"nothing":            {most: 1},
		"a promised one":     {size: 100_000, promised: 100_000, most: 100_001},
		"a small one":        {size: 3000, promised: -1, most: 4 << 10},
		"one without length": {size: 1_000_000, promised: -1, most: 1_000_000 + slackBytes},
		"of the limit":       {size: 1 << 20, promised: -1, most: 1<<20 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := &Bodies{Max: 1 << 30}
			text := strings.Repeat("x", tc.size)
			data, kept, err := b.Read(strings.NewReader(text), "a", tc.promised, 1<<20, func() {})
			if err != nil || string(data) != text {
				t.Fatalf("%d bytes, %v", len(data), err)
			}
			if held := b.Held(); held > tc.most || held < int64(cap(data)) {
				t.Errorf("%d bytes count for a buffer of %d, want at most %d", held, cap(data), tc.most)
			}
			kept.Release()
			if b.Held() != 0 || len(b.owners) != 0 {
				t.Errorf("%d bytes of %d owners are left", b.Held(), len(b.owners))
			}
		})
	}
	b := &Bodies{Max: 1 << 30}
	if _, _, err := b.Read(strings.NewReader(strings.Repeat("x", 101)), "a", -1, 100, func() {}); openai.AsError(err).Status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body beyond the limit: %v", err)
	}
	if _, _, err := b.Read(io.MultiReader(strings.NewReader("x"), failing{}), "a", 5, 100, func() {}); openai.AsError(err).Status != http.StatusBadRequest || b.Held() != 0 {
		t.Errorf("a body that breaks off: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A request with two lengths is refused, wherever it is on its connection.
func TestAttackTwoLengths(t *testing.T) {
	const chunked = "Transfer-Encoding: chunked\r\n"
	const end = "\r\n5\r\nhello\r\n0\r\n\r\n"
	get := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	post := "POST / HTTP/1.1\r\nHost: x\r\n"
	for name, tc := range map[string]struct {
		sent string
		want []int
	}{
		"length first":              {sent: post + "Content-Length: 5\r\n" + chunked + end, want: []int{400}},
		"encoding first":            {sent: post + chunked + "Content-Length: 15\r\n" + end, want: []int{400}},
		"in other letters":          {sent: post + "content-length: 5\r\ntransfer-encoding: chunked\r\n" + end, want: []int{400}},
		"after a request":           {sent: get + post + "Content-Length: 5\r\n" + chunked + end, want: []int{200, 400}},
		"after a body":              {sent: small + "\r\n" + post + chunked + "Content-Length: 5\r\n" + end, want: []int{200, 400}},
		"lines end with line feeds": {sent: "POST / HTTP/1.1\nHost: x\nContent-Length: 5\nTransfer-Encoding: chunked\n" + end, want: []int{400}},
		"one encoding":              {sent: post + chunked + end + get, want: []int{200}}, // the connection is closed after it
		"a length in a body":        {sent: post + "Content-Length: 51\r\n\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n\r\n" + get, want: []int{200, 200}},
		"a length with many zeros":  {sent: post + "Content-Length: " + strings.Repeat("0", 80) + "5\r\n\r\nhello" + get, want: []int{200}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, 0, 0, 1<<20)
			c := f.dial("10.0.0.1")
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.WriteString(c, tc.sent) }()
			from := bufio.NewReader(c)
			var got []int
			for len(got) < len(tc.want)+1 {
				resp, err := http.ReadResponse(from, nil)
				if err != nil {
					break
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, resp.StatusCode)
				if resp.StatusCode == http.StatusBadRequest && !strings.Contains(string(body), "Transfer-Encoding") {
					t.Errorf("the refusal is %s", body)
				}
				if len(got) == len(tc.want) && !resp.Close {
					break
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("answers %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::/64", "[2001:db8:1:2:5::6]:81": "2001:db8:1:2::/64",
		"[fe80::1%en0]:80": "fe80::/64", "pipe": "pipe",
	} {
		if got := AddressOf(remote); got != want {
			t.Errorf("%s counts against %s, want %s", remote, got, want)
		}
	}
}

// Complete bodies cannot be dropped, so an owner gets no more than it leaves free.
func TestAttackCompleteBodiesOfOneOwner(t *testing.T) {
	const large = 1 << 20
	b := &Bodies{Max: 16 * large}
	read := func(owner string, size int64) error {
		_, kept, err := b.Read(io.LimitReader(zeros{}, size), owner, size, large, func() {})
		if err == nil {
			t.Cleanup(kept.Release)
		}
		return err
	}
	fill := func(owner string) (n int) {
		for read(owner, large-1) == nil {
			n++
		}
		return n
	}
	if first, second := fill("a"), fill("b"); first != 6 || second != 3 {
		t.Errorf("two owners hold %d and %d bodies of %d, want half of the 12 that large ones may have, and half of the rest", first, second, large)
	}
	for _, size := range []int64{smallBytes, 2 * smallBytes, large - 1} {
		if err := read(fmt.Sprint("c", size), size); err != nil {
			t.Errorf("another owner's body of %d bytes: %v", size, err)
		}
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
