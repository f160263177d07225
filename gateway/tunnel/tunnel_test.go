package tunnel_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/identity"
	"metalfleet.dev/metalfleet/gateway/tunnel"
	"metalfleet.dev/metalfleet/test/patience"
)

// world is a gateway's hub, and an authority that issues certificates for Macs.
type world struct {
	t       *testing.T
	ca      *agentapitest.CA
	ids     identity.Store
	hub     *tunnel.Hub
	address string
	changed chan string
	stop    func()

	mu    sync.Mutex        // guards the fields after it
	uids  map[string]string // of MacNodes that differ from agentapitest's; empty: there is none
	looks map[string]int    // how many looks later a MacNode is deleted
}

// uid returns the UID of a MacNode.
func (w *world) uid(mac string) (string, bool) {
	w.hub.Len() // not under the hub's lock: the table waits for what waits for that
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks[mac]--; w.looks[mac] == 0 {
		w.uids[mac] = ""
	}
	if uid, set := w.uids[mac]; set {
		return uid, uid != ""
	}
	return agentapitest.UID(mac), true
}

// replace gives a MacNode another UID, or deletes it.
func (w *world) replace(mac, uid string) {
	w.mu.Lock()
	w.uids[mac] = uid
	w.mu.Unlock()
	w.hub.Drop(mac)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newWorldOn(t, l)
}

// newWorldOn has the hub accept the connections of a listener.
func newWorldOn(t *testing.T, l net.Listener) *world {
	t.Helper()
	w := &world{t: t, ca: agentapitest.NewCA(t), changed: make(chan string, 100), uids: map[string]string{}, looks: map[string]int{}, address: l.Addr().String()}
	w.ids.Set(w.identity(w.ca.Gateway()))
	w.hub = tunnel.New(tunnel.Options{UID: w.uid, Identity: w.ids.Current, Log: logr.Discard(), Changed: func(mac string) { w.changed <- mac },
		HTTP2: http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: time.Minute}})
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- w.hub.Serve(ctx, l) }()
	w.stop = sync.OnceFunc(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	return w
}

func (w *world) identity(pem agentapitest.PEM) *identity.Identity {
	w.t.Helper()
	id, err := identity.Parse(map[string][]byte{"tls.crt": pem.Certificate, "tls.key": pem.Key, "ca.crt": pem.CA})
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// one is a listener of one connection.
type one struct {
	conn chan net.Conn
	done chan struct{}
	once sync.Once
	at   net.Addr
}

func (o *one) Accept() (net.Conn, error) {
	select {
	case c := <-o.conn:
		return c, nil
	case <-o.done:
		return nil, net.ErrClosed
	}
}
func (o *one) Close() error   { o.once.Do(func() { close(o.done) }); return nil }
func (o *one) Addr() net.Addr { return o.at }

// dial sends the preamble for a Mac and reads which gateway answers.
func (w *world) dial(says string) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	if err := agentapi.SayTunnel(c, says); err != nil {
		w.t.Fatal(err)
	}
	if gateway, err := agentapi.HearGateway(c); err != nil || gateway == "" {
		w.t.Fatal(gateway, err)
	}
	return agentapi.Tunnel(c)
}

// open opens a tunnel for the Mac named says, with a certificate for the Mac named is;
// ended is closed when nothing is served on it any more.
func (w *world) open(says string, ca *agentapitest.CA, is string, answer http.HandlerFunc) (s *http.Server, ended <-chan struct{}) {
	w.t.Helper()
	return w.openAs(says, ca.MacOfUID(is, w.certified(is)), answer)
}

// openAs opens a tunnel with a certificate.
func (w *world) openAs(says string, as agentapitest.PEM, answer http.HandlerFunc) (s *http.Server, ended <-chan struct{}) {
	w.t.Helper()
	return w.serveOn(w.dial(says), as, answer)
}

// serveOn answers requests on a connection whose preamble was sent.
func (w *world) serveOn(c net.Conn, as agentapitest.PEM, answer http.HandlerFunc) (s *http.Server, ended <-chan struct{}) {
	l := &one{conn: make(chan net.Conn, 1), done: make(chan struct{}), at: c.LocalAddr()}
	l.conn <- c
	gone := make(chan struct{})
	s = &http.Server{Handler: answer, TLSConfig: agentapi.ServerTLS(as.Pair(w.t), w.ca.Roots()),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				close(gone)
			}
		}}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.ServeTLS(l, "", "") }()
	w.t.Cleanup(func() { _ = s.Close(); <-served })
	return s, gone
}

// certified returns the UID in a certificate that is issued now.
func (w *world) certified(mac string) string {
	if uid, ok := w.uid(mac); ok {
		return uid
	}
	return agentapitest.UID(mac)
}

// mac opens a valid tunnel.
func (w *world) mac(name string, answer http.HandlerFunc) (*http.Server, <-chan struct{}) {
	w.t.Helper()
	return w.open(name, w.ca, name, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != agentapi.PathHealth {
			answer(rw, r)
		}
	})
}

func (w *world) ask(ctx context.Context, mac, path string) (*http.Response, error) {
	way, ok := w.hub.To(mac)
	if !ok {
		return nil, tunnel.ErrNone
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+agentapi.MacServerName(mac)+path, nil)
	if err != nil {
		return nil, err
	}
	return way.RoundTrip(r)
}

func (w *world) answer(mac, path string) (string, error) {
	resp, err := w.ask(w.t.Context(), mac, path)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	return string(b), errors.Join(err, resp.Body.Close())
}

func (w *world) wantChange(mac string) {
	w.t.Helper()
	select {
	case got := <-w.changed:
		if got != mac {
			w.t.Fatalf("%s changed, want %s", got, mac)
		}
	case <-time.After(patience.Of(w.t)):
		w.t.Fatalf("nothing changed")
	}
}

func (w *world) wait(what string, ended <-chan struct{}) {
	w.t.Helper()
	select {
	case <-ended:
	case <-time.After(patience.Of(w.t)):
		w.t.Fatalf("not seen: %s", what)
	}
}

func TestRequestsGoThroughATunnel(t *testing.T) {
	w := newWorld(t)
	if _, err := w.answer("a", "/x"); !errors.Is(err, tunnel.ErrNone) {
		t.Errorf("there is no tunnel: %v", err)
	}
	s, _ := w.mac("a", func(rw http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(rw, r.Proto+" "+r.URL.Path) })
	w.wantChange("a")
	for range 3 {
		if got, err := w.answer("a", "/x"); err != nil || got != "HTTP/2.0 /x" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := w.answer("b", "/x"); !errors.Is(err, tunnel.ErrNone) {
		t.Errorf("another Mac has a tunnel: %v", err)
	}
	if n := w.hub.Len(); n != 1 {
		t.Errorf("%d tunnels", n)
	}
	_ = s.Close()
	w.wantChange("a")
	if _, err := w.answer("a", "/x"); !errors.Is(err, tunnel.ErrNone) {
		t.Errorf("the tunnel was closed: %v", err)
	}
}

// TestAttackATunnelOfAnotherMac: a tunnel belongs to the Mac that its certificate names,
// regardless of its preamble.
func TestAttackATunnelOfAnotherMac(t *testing.T) {
	w := newWorld(t)
	none := func(http.ResponseWriter, *http.Request) {}
	_, another := w.open("a", w.ca, "b", none)
	_, foreign := w.open("a", agentapitest.NewCA(t), "a", none)
	w.wait("another Mac's tunnel ends", another)
	w.wait("a foreign tunnel ends", foreign)
	w.mac("c", none)
	w.wantChange("c")
	for _, mac := range []string{"a", "b"} {
		if _, ok := w.hub.To(mac); ok {
			t.Errorf("%s has a tunnel", mac)
		}
	}
}

// TestAttackNamesOfMacs: a stranger learns from no answer which MacNodes exist.
func TestAttackNamesOfMacs(t *testing.T) {
	w := newWorld(t)
	w.replace("unknown", "")
	says := map[string]string{}
	for _, mac := range []string{"known", "unknown"} {
		stranger := agentapitest.NewCA(t).Mac(mac)
		c := tls.Server(w.dial(mac), agentapi.ServerTLS(stranger.Pair(t), w.ca.Roots()))
		if err := c.SetDeadline(time.Now().Add(patience.Of(t))); err != nil {
			t.Fatal(err)
		}
		says[mac] = fmt.Sprint(c.Handshake())
	}
	if says["known"] != says["unknown"] {
		t.Errorf("the gateway answers a stranger in the name of a Mac: %s, and of none: %s", says["known"], says["unknown"])
	}
}

// TestAttackATunnelWithAGatewaysCertificate: a stolen gateway key does not make its holder
// a Mac.
func TestAttackATunnelWithAGatewaysCertificate(t *testing.T) {
	w := newWorld(t)
	c := w.dial("a")
	config := agentapi.ServerTLS(w.ca.Gateway().Pair(t), w.ca.Roots())
	l := &one{conn: make(chan net.Conn, 1), done: make(chan struct{}), at: c.LocalAddr()}
	l.conn <- c
	gone := make(chan struct{})
	s := &http.Server{TLSConfig: config, Handler: http.NotFoundHandler(), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(gone)
		}
	}}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = s.Close(); <-served })
	w.wait("its tunnel ends", gone)
	if _, ok := w.hub.To("a"); ok {
		t.Error("a gateway is a Mac")
	}
}

func TestAttackNoTunnel(t *testing.T) {
	w := newWorld(t)
	for _, hello := range []string{"GET / HTTP/1.1\r\n\r\n", "studio\n", "metalfleet-tunnel/1 A\n", "metalfleet-tunnel/1 \n", "metalfleet-tunnel/2 a\n",
		"metalfleet-tunnel/1 " + strings.Repeat("a", 100)} {
		c, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, hello)
		if err := c.SetReadDeadline(time.Now().Add(patience.Of(t))); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%q was answered or is waited for: %v", hello, err)
		}
		_ = c.Close()
	}
}

// TestAttackStrangersFillTheRoom: silent connections of one address lock out no Mac.
func TestAttackStrangersFillTheRoom(t *testing.T) {
	w := newWorld(t)
	first := w.dial("a")
	for range 511 {
		w.dial("a") // a gateway answered, so it was accepted
	}
	w.dial("b")
	w.mac("c", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "c") })
	w.wantChange("c")
	if err := first.SetReadDeadline(time.Now().Add(4 * time.Second)); err != nil { // less than it may take to authenticate
		t.Fatal(err)
	}
	var timeout net.Error
	if _, err := io.Copy(io.Discard, first); errors.As(err, &timeout) && timeout.Timeout() {
		t.Error("the oldest connection does not make room")
	}
}

// stream responds in two parts, the second when more is closed.
func stream(more <-chan struct{}) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, "first\n")
		_ = http.NewResponseController(rw).Flush()
		<-more
		_, _ = io.WriteString(rw, "last\n")
	}
}

func (w *world) begin(mac string) (*http.Response, *bufio.Reader) {
	w.t.Helper()
	resp, err := w.ask(w.t.Context(), mac, "/stream")
	if err != nil {
		w.t.Fatal(err)
	}
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); err != nil || line != "first\n" {
		w.t.Fatal(line, err)
	}
	return resp, in
}

// Responses on the first tunnel continue, and then it is closed.
func TestASecondTunnelTakesOver(t *testing.T) {
	w := newWorld(t)
	more := make(chan struct{})
	_, ended := w.mac("a", stream(more))
	w.wantChange("a")
	resp, in := w.begin("a")
	w.mac("a", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "second") })
	w.wantChange("a")
	if got, err := w.answer("a", "/x"); err != nil || got != "second" {
		t.Errorf("%q, %v", got, err)
	}
	close(more)
	if rest, err := io.ReadAll(in); err != nil || string(rest) != "last\n" {
		t.Errorf("the first answer continues with %q, %v", rest, err)
	}
	_ = resp.Body.Close()
	w.wait("the first tunnel ends", ended)
	if got, err := w.answer("a", "/x"); err != nil || got != "second" {
		t.Errorf("after the first one ended: %q, %v", got, err)
	}
}

// Its running responses continue.
func TestATunnelOfARootThatIsTrustedNoMoreIsNotUsed(t *testing.T) {
	w := newWorld(t)
	more := make(chan struct{})
	w.mac("a", stream(more))
	w.wantChange("a")
	resp, in := w.begin("a")
	w.ids.Set(w.identity(agentapitest.NewCA(t).Gateway()))
	if _, ok := w.hub.To("a"); ok {
		t.Error("it is used")
	}
	close(more)
	if rest, err := io.ReadAll(in); err != nil || string(rest) != "last\n" {
		t.Errorf("the answer continues with %q, %v", rest, err)
	}
	_ = resp.Body.Close()
}

// Running requests continue.
func TestAMacThatDrainsGetsNoMoreRequests(t *testing.T) {
	w := newWorld(t)
	more := make(chan struct{})
	s, _ := w.mac("a", stream(more))
	w.wantChange("a")
	resp, in := w.begin("a")
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(context.Background()) }()
	for end := time.Now().Add(patience.Of(t)); ; {
		if _, ok := w.hub.To("a"); !ok {
			break
		}
		if time.Now().After(end) {
			t.Fatal("requests are still sent there")
		}
	}
	close(more)
	if rest, err := io.ReadAll(in); err != nil || string(rest) != "last\n" {
		t.Errorf("the answer continues with %q, %v", rest, err)
	}
	_ = resp.Body.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.wantChange("a")
}

// The tunnel stays open.
func TestACancelledStreamEndsAtTheMac(t *testing.T) {
	w := newWorld(t)
	cancelled := make(chan struct{})
	w.mac("a", func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).Flush()
		if r.URL.Path == "/stream" {
			<-r.Context().Done()
			close(cancelled)
		}
	})
	w.wantChange("a")
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := w.ask(ctx, "a", "/stream")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	w.wait("the request ends", cancelled)
	_ = resp.Body.Close()
	if _, err := w.answer("a", "/x"); err != nil {
		t.Error(err)
	}
}

// One stream that is not read must not block many that are.
func TestASlowStreamHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	block := make([]byte, 1<<20)
	stuck := make(chan struct{})
	w.mac("a", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			defer close(stuck)
			for r.Context().Err() == nil {
				if _, err := rw.Write(block); err != nil {
					return
				}
			}
			return
		}
		_, _ = rw.Write(block)
	})
	w.wantChange("a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow, err := w.ask(ctx, "a", "/slow")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Body.Close() //nolint:errcheck // cancelled
	errs := make(chan error)
	for range 8 {
		go func() {
			got, err := w.answer("a", "/x")
			if err == nil && len(got) != len(block) {
				err = fmt.Errorf("%d bytes", len(got))
			}
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	cancel()
	w.wait("the slow stream ends", stuck)
}

func TestTunnelsEndWithTheGateway(t *testing.T) {
	w := newWorld(t)
	_, ended := w.mac("a", func(http.ResponseWriter, *http.Request) {})
	w.wantChange("a")
	w.stop()
	w.wait("the tunnel ends", ended)
	if _, ok := w.hub.To("a"); ok {
		t.Error("it is used")
	}
}

// TestAttackAStolenMacTakesTheTunnelOfItsSuccessor: a Mac was stolen, its MacNode deleted,
// and another machine joined under its name. The thief's certificate is valid for hours and
// has the same name.
func TestAttackAStolenMacTakesTheTunnelOfItsSuccessor(t *testing.T) {
	w := newWorld(t)
	says := func(text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, text) }
	}
	w.mac("studio", says("the thief"))
	w.wantChange("studio")
	w.replace("studio", "")
	w.wantChange("studio")
	if text, err := w.answer("studio", "/x"); !errors.Is(err, tunnel.ErrNone) {
		t.Errorf("the Mac of a deleted MacNode answers %q, %v", text, err)
	}
	_, ended := w.mac("studio", says("the thief"))
	<-ended // it is refused while there is no MacNode

	w.replace("studio", "the successor's")
	w.mac("studio", says("the successor"))
	w.wantChange("studio")
	thief := w.ca.MacOfUID("studio", agentapitest.UID("studio"))
	_, ended = w.openAs("studio", thief, says("the thief"))
	<-ended
	if text, err := w.answer("studio", "/x"); err != nil || text != "the successor" {
		t.Errorf("after the thief dialled: %q, %v", text, err)
	}
}

// TestAReplacedMacNodeEndsAnswersOnItsTunnel: running responses are cut, not only new
// requests refused.
func TestAReplacedMacNodeEndsAnswersOnItsTunnel(t *testing.T) {
	w := newWorld(t)
	began := make(chan struct{})
	w.mac("studio", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begins")
		rw.(http.Flusher).Flush()
		close(began)
		<-r.Context().Done()
	})
	w.wantChange("studio")
	resp, err := w.ask(t.Context(), "studio", "/x")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-began
	w.replace("studio", "another")
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the answer ended well: %q", text)
	}
}

// TestAMacNodeThatIsReplacedMeanwhileGetsNoTunnel: the MacNode is deleted during the
// authentication.
func TestAMacNodeThatIsReplacedMeanwhileGetsNoTunnel(t *testing.T) {
	w := newWorld(t)
	_, ended := w.open("studio", w.ca, "studio", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == agentapi.PathHealth { // the last request before the tunnel is registered
			w.replace("studio", "another")
		}
	})
	w.wait("the end of its connection", ended)
	if _, ok := w.hub.To("studio"); ok {
		t.Error("it is used")
	}
}

// TestAMacNodeThatIsDeletedMeanwhileGetsNoTunnel: just before the tunnel is registered, or just
// after.
func TestAMacNodeThatIsDeletedMeanwhileGetsNoTunnel(t *testing.T) {
	for _, look := range []int{3, 4} { // the first two are of certified, and during the handshake
		w := newWorld(t)
		w.mu.Lock()
		w.looks["studio"] = look
		w.mu.Unlock()
		_, ended := w.mac("studio", nil)
		w.wait("the end of its connection", ended)
		if _, ok := w.hub.To("studio"); ok || w.hub.Len() > 0 {
			t.Error("it is used")
		}
	}
}
