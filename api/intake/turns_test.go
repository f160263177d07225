package intake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// turnsOf serves with a number of turns for each processor, and calls asks in a bubble. Requests to /key have a key.
func turnsOf(t *testing.T, each int, asks func(p *pipes, l *Listener, served *atomic.Int64)) {
	synctest.Test(t, func(t *testing.T) {
		p, served := newPipes(), new(atomic.Int64)
		l := &Listener{Listener: p, Turns: each, Bodies: &Bodies{Max: 1 << 20, Keyed: true}}
		s := &http.Server{ConnContext: Context, ErrorLog: log.New(io.Discard, "", 0), Handler: Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/key" {
				Know(r.Context())
				return
			}
			if Turn(r) == nil {
				served.Add(1)
			}
			time.Sleep(time.Microsecond) // net/http reads the first byte of the next request
		}))}
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(l) }()
		asks(p, l, served)
		_ = s.Close()
		<-ended
		time.Sleep(time.Second) // handlers end
	})
}

// get returns how long a request takes on a connection.
func get(t *testing.T, c net.Conn, path string) time.Duration {
	t.Helper()
	began := time.Now()
	go func() { _, _ = io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n") }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v, %v", path, resp, err)
	}
	return time.Since(began)
}

// TestClientsWithoutAKeyTakeTurns: of many addresses each may send little, and all together would keep the
// processors. Neither one with a key nor one that asks now and then waits for them.
func TestClientsWithoutAKeyTakeTurns(t *testing.T) {
	const each, addresses = 100, 50
	turnsOf(t, each, func(p *pipes, _ *Listener, served *atomic.Int64) {
		known, rare := p.dial("10.0.0.1"), p.dial("10.0.0.2")
		get(t, known, "/key")
		for i := range addresses {
			c := p.dial(fmt.Sprint("10.0.1.", i))
			defer func() { _ = c.Close() }()
			const one, n = "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 100
			go func() {
				for range n {
					_, _ = io.WriteString(c, strings.Repeat(one, 1+i%2))
				}
			}()
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		time.Sleep(time.Second)
		most := int64(each * runtime.GOMAXPROCS(0))
		if n := served.Load(); n < most/2 || n > most+1 {
			t.Errorf("%d requests without a key are served in a second, want %d", n, most)
		}
		if took := get(t, known, "/key"); took > 0 {
			t.Errorf("a client with a key waits for %s", took)
		}
		if took, turn := get(t, rare, "/"), time.Second/time.Duration(most); took > 2*turn+turnPause {
			t.Errorf("a client that asks now and then waits for %s, want %s", took, turn)
		}
		for range 10 {
			c := p.dial("10.0.0.3")
			if took, turn := get(t, c, "/key"), time.Second/time.Duration(most); took > 2*turn+turnPause {
				t.Errorf("a new connection of a client with a key waits for %s, want %s", took, turn)
			}
			_ = c.Close()
		}
		for range 10 { // as a proxy sends them
			if took, turn := get(t, known, "/"), time.Second/time.Duration(most); took == 0 || took > 4*turn+turnPause {
				t.Errorf("a request without a key on a connection that had one waits for %s, want %s", took, turn)
			}
		}
	})
}

// TestManyPiecesOfARequestTakeTurns: to read a byte takes as long as to answer a short request.
func TestManyPiecesOfARequestTakeTurns(t *testing.T) {
	const each = 100
	turnsOf(t, each, func(p *pipes, _ *Listener, _ *atomic.Int64) {
		c := p.dial("10.0.0.1")
		const head = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
		began := time.Now()
		for _, b := range []byte(head) {
			if _, err := c.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
			t.Fatal(err)
		}
		if took, want := time.Since(began), (len(head)-1)*int(time.Second)/each/runtime.GOMAXPROCS(0); took < time.Duration(want) {
			t.Errorf("%d pieces take %s, want %s", len(head), took, time.Duration(want))
		}
	})
}

// TestNewcomersThatAreMoreThanTurns: of as many addresses, each asks once. A client at an address where one has
// shown a key is served soon, also among others there without one, and so is the newest of the others.
func TestNewcomersThatAreMoreThanTurns(t *testing.T) {
	const each = 100
	turnsOf(t, each, func(p *pipes, l *Listener, _ *atomic.Int64) {
		l.Total = 200
		most := each * runtime.GOMAXPROCS(0)
		turn := time.Second / time.Duration(most)
		first := p.dial("10.0.0.1")
		get(t, first, "/key")
		comes := func(address string) {
			c := p.dial(address)
			go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); _, _ = io.Copy(io.Discard, c) }()
		}
		began := time.Now()
		for i := range 4 * most { // for two seconds, twice as many as there are turns
			comes(fmt.Sprintf("10.1.%d.%d", i/250, i%250))
			if i%8 == 0 {
				comes("10.0.0.1")
			}
			time.Sleep(time.Until(began.Add(time.Duration(i) * turn / 2)))
			if i < most/2 || i%40 != 0 {
				continue
			}
			for address, path := range map[string]string{"10.0.0.1": "/key", fmt.Sprint("10.2.0.", i%250): "/"} {
				c := p.dial(address)
				if took := get(t, c, path); took > 4*turn+turnPause {
					t.Errorf("after %s a newcomer at %s waits for %s", time.Since(began), address, took)
				}
				_ = c.Close()
			}
		}
	})
}

// TestAClientWithoutAKeyThatWaitsForLongIsRefused: a reset would count against the gateway at a proxy.
func TestAClientWithoutAKeyThatWaitsForLongIsRefused(t *testing.T) {
	turnsOf(t, 1, func(p *pipes, _ *Listener, _ *atomic.Int64) {
		var refused atomic.Int64
		began := time.Now()
		var all sync.WaitGroup
		for i := range 20 {
			c := p.dial(fmt.Sprint("10.0.0.", i))
			go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
			all.Go(func() {
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Error(err)
				} else if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "1" {
					refused.Add(1)
				}
			})
			synctest.Wait()
		}
		all.Wait()
		if took, refused := time.Since(began), refused.Load(); refused < 10 || took > turnLongest+time.Millisecond {
			t.Errorf("%d of 20 clients are refused, the last after %s", refused, took)
		}
	})
}

// TestReadsOfALargeBodyTakeTurns: by tenant, and not those of a small one.
func TestReadsOfALargeBodyTakeTurns(t *testing.T) {
	const each, piece, pieces = 100, 1 << 10, 1000
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		s := &http.Server{ConnContext: Context, Handler: Guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_ = Own(r.Context(), r.URL.Path)
			if r.URL.Path != "/unread" { // net/http reads it after the answer
				_, _ = io.Copy(io.Discard, r.Body)
			}
		}))}
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(&Listener{Listener: p, Reads: each, Bodies: &Bodies{Max: 1 << 20}}) }()
		var clients atomic.Int64
		send := func(tenant string, n int) time.Duration {
			c, began := p.dial(fmt.Sprint("10.0.0.", clients.Add(1))), time.Now()
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", tenant, n*piece)
			for range n {
				if _, err := c.Write(make([]byte, piece)); err != nil {
					t.Fatal(err)
				}
			}
			if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("%v, %v", resp, err)
			}
			return time.Since(began)
		}
		turn := time.Second / each / time.Duration(runtime.GOMAXPROCS(0))
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if took := send("a", pieces); took < 15*pieces*turn {
					t.Errorf("a body in %d pieces arrives in %s", pieces, took)
				}
			})
		}
		for range 20 {
			all.Go(func() { send("unread", 200) })
		}
		time.Sleep(time.Second)
		if took := send("b", turnFree/piece); took > 0 {
			t.Errorf("a small body waits for %s", took)
		}
		if took := send("b", 100); took > 100*(3*turn+turnPause) {
			t.Errorf("a body of another tenant takes %s", took)
		}
		all.Wait()
		_ = s.Close()
		<-ended
	})
}

// TestABodyThatGivesWayWaitsForNoTurn: its memory is free then.
func TestABodyThatGivesWayWaitsForNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, read := newPipes(), make(chan error, 1)
		s := &http.Server{ConnContext: Context, ErrorLog: log.New(io.Discard, "", 0), Handler: Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.AfterFunc(time.Millisecond, func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) })
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
		}))}
		ended := make(chan error, 1)
		l := &Listener{Listener: p, Reads: 1}
		l.reads.counted = time.Now() // and none may begin
		go func() { ended <- s.Serve(l) }()
		c, began := p.dial("10.0.0.1"), time.Now()
		go func() { _, _ = io.WriteString(c, posts(1)); _ = c.Close() }()
		if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) > time.Millisecond {
			t.Errorf("the body ends with %v after %s", err, time.Since(began))
		}
		_ = s.Close()
		<-ended
	})
}

// TestAddressesWithKeysAreKept: those of the last thousands, also if one client has any number of them.
func TestAddressesWithKeysAreKept(t *testing.T) {
	var at turns
	for i := range 3 * turnClients {
		at.shows(fmt.Sprint(i))
		if i%100 == 0 {
			at.shows("often")
		}
		if at.lineOf("often") != firstWithKey || len(at.keys)+len(at.earlier) > 2*turnClients {
			t.Fatalf("%d addresses are kept", len(at.keys)+len(at.earlier))
		}
	}
	if at.lineOf("0") != first {
		t.Error("an address stays for ever")
	}
}

// TestWhoseFirstTurnIsNext: one that had no turn for a while, as a probe, is as new as one that never had one.
func TestWhoseFirstTurnIsNext(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		ago  time.Duration
		want string
	}{"a probe": {10 * time.Second, "asks"}, "one of a flood": {turnQuiet / 2, "never"}} {
		var l line
		l.of("asks").last = now.Add(-tc.ago)
		for i, who := range []string{"never", "asks"} {
			w := l.of(who)
			w.wait.PushBack(who)
			l.rank(w, true, int64(i), now)
		}
		if got := l.next.first().wait.Front().Value; got != tc.want {
			t.Errorf("%s: the next turn is of %q, want %q", name, got, tc.want)
		}
	}
}

// TestABusyProcessorGivesTheTurnsItOwes: its timers are late. Without clients that wait, few begin at once.
func TestABusyProcessorGivesTheTurnsItOwes(t *testing.T) {
	now := time.Now()
	for waiting, want := range []float64{8, 32} {
		at := turns{each: 4000, waiting: waiting, counted: now}
		if at.count(now.Add(8 * time.Millisecond)); at.credit != want {
			t.Errorf("%d clients wait: %g turns begin, want %g", waiting, at.credit, want)
		}
	}
}

// TestAFirstHeadInPieces takes first turns: neither other newcomers nor further requests hold it up, and clients whose
// heads arrive in pieces have no more of the processors.
func TestAFirstHeadInPieces(t *testing.T) {
	const each, clients = 100, 400
	pieces := []string{"GET /key HTTP/1.1\r\n", "Host: x\r\n", "A: b\r\n", "\r\n"}
	turnsOf(t, each, func(p *pipes, _ *Listener, served *atomic.Int64) {
		get(t, p.dial("10.0.0.1"), "/key")
		go func() {
			for i := range clients {
				c := p.dial(fmt.Sprintf("10.1.%d.%d", i/250, i%250))
				go func() {
					for _, piece := range append([]string{"GET / HTTP/1.1\r\n"}, pieces[1:]...) {
						_, _ = io.WriteString(c, piece)
					}
					_, _ = io.Copy(io.Discard, c)
				}()
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(200 * time.Millisecond)
		most := each * runtime.GOMAXPROCS(0)
		turn := time.Second / time.Duration(most)
		c, began := p.dial("10.0.0.1"), time.Now()
		go func() {
			for _, piece := range pieces {
				_, _ = io.WriteString(c, piece)
			}
		}()
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", resp, err)
		}
		if took := time.Since(began); took > time.Duration(len(pieces))*(2*turn+turnPause) {
			t.Errorf("a client with a key whose head arrives in %d pieces waits for %s, want %s", len(pieces), took, time.Duration(2*len(pieces))*turn)
		}
		time.Sleep(time.Second)
		if n := served.Load(); n > int64(2*most/len(pieces)) {
			t.Errorf("%d requests in %d pieces are served in about a second, want %d", n, len(pieces), most/len(pieces))
		}
	})
}

// TestAClosedConnectionWaitsForNoTurn: there may be any number of them.
func TestAClosedConnectionWaitsForNoTurn(t *testing.T) {
	const clients, places = 100, 10
	turnsOf(t, 1, func(p *pipes, l *Listener, _ *atomic.Int64) {
		l.Total = places
		for i := range clients {
			c := p.dial(fmt.Sprint("10.0.0.", i))
			defer func() { _ = c.Close() }()
			go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
		}
		synctest.Wait()
		l.turns.mu.Lock()
		defer l.turns.mu.Unlock()
		if l.turns.waiting > places+places/keptShare {
			t.Errorf("%d requests wait for a turn, of %d connections", l.turns.waiting, places)
		}
	})
}

// TestAddressesThatWaitForNoTurnAreForgotten: a client may have any number of them.
func TestAddressesThatWaitForNoTurnAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at turns
		ends := make(chan struct{})
		var all sync.WaitGroup
		_ = at.take(1, further, "waits", waits{closed: ends}) // at once
		for i := range 3 * turnClients {
			if i == turnClients/2 {
				all.Go(func() { _ = at.take(1, further, "waits", waits{closed: ends}) })
				synctest.Wait()
			}
			at.mu.Lock()
			l := &at.lines[further]
			l.of(fmt.Sprint(i))
			if len(l.clients) > turnClients || i > turnClients/2 && l.clients["waits"] == nil {
				t.Fatalf("%d addresses are kept", len(l.clients))
			}
			at.mu.Unlock()
		}
		close(ends)
		all.Wait()
	})
}

// TestProbesWaitForNoFloodOfAHealthPort: of all connections of an address, whose clients send the next requests before
// they have read an answer.
func TestProbesWaitForNoFloodOfAHealthPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, served := newPipes(), new(atomic.Int64)
		s := PortServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(1) }), log.New(io.Discard, "", 0))
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(Port(p)) }()
		for range portConnectionsPerAddress {
			c := p.dial("10.0.0.1")
			go func() { _, _ = io.WriteString(c, strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200)) }()
			go func() { _, _ = io.Copy(io.Discard, c) }()
		}
		time.Sleep(time.Second)
		most := int64(portTurns * runtime.GOMAXPROCS(0))
		if n := served.Load(); n < most/2 || n > most+most/100 {
			t.Errorf("%d requests of one address are served in a second, want %d", n, most)
		}
		turn := 2*time.Second/time.Duration(most) + turnPause
		for address, wait := range map[string]time.Duration{"10.0.0.1": portConnectionsPerAddress * turn, "10.0.0.2": turn} {
			if took := get(t, p.dial(address), "/healthz"); took > wait {
				t.Errorf("a probe of %s waits for %s, want %s", address, took, wait)
			}
		}
		_ = s.Close()
		<-ended
	})
}
