package tunnel_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/tunnel"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/test/patience"
)

// gateways share one address, which leads each connection to the next of them.
type gateways struct {
	t       *testing.T
	address string
	came    chan net.Conn // after its hello

	mu    sync.Mutex // guards what follows
	names []string
	next  int
	seen  map[string]int
}

func newGateways(t *testing.T, names ...string) *gateways {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateways{t: t, address: l.Addr().String(), came: make(chan net.Conn, 100), names: names, seen: map[string]int{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.meet(c)
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
		for {
			select {
			case c := <-g.came:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return g
}

func (g *gateways) meet(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	name := g.names[g.next%len(g.names)]
	g.next++
	if mac, err := agentapi.HearTunnel(c); err != nil || mac != "a" {
		g.t.Errorf("hello of %q: %v", mac, err)
	}
	_ = agentapi.SayGateway(c, name)
	g.seen[name]++
	g.came <- c
}

func (g *gateways) tries() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.next
}

// mac is a port with tunnels, which answers each connection with its name.
type mac struct {
	own    string
	served chan net.Conn
	l      *tunnel.Listener
	stop   func()
}

func newMac(t *testing.T, o tunnel.Options) *mac {
	t.Helper()
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Mac, o.MostWait, o.Log = "a", 300*time.Millisecond, logr.Discard()
	m := &mac{own: port.Addr().String(), served: make(chan net.Conn, 100), l: tunnel.Listen(port, o)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.l.Run(ctx) })
	wg.Go(func() {
		for {
			c, err := m.l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "port\n")
			m.served <- c
		}
	})
	m.stop = sync.OnceFunc(func() {
		cancel()
		_ = m.l.Close()
		wg.Wait()
	})
	t.Cleanup(func() {
		m.stop()
		for {
			select {
			case c := <-m.served:
				_ = c.Close()
			default:
				return
			}
		}
	})
	return m
}

func take(t *testing.T, what string, from <-chan net.Conn) net.Conn {
	t.Helper()
	select {
	case c := <-from:
		t.Cleanup(func() { _ = c.Close() })
		return c
	case <-time.After(patience.Of(t)):
		t.Fatalf("no %s", what)
		return nil
	}
}

func wantPort(t *testing.T, c net.Conn) {
	t.Helper()
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "port\n" {
		t.Errorf("%q, %v", line, err)
	}
}

func TestThePortServesTunnelsAndItsOwnConnections(t *testing.T) {
	g := newGateways(t, "g1")
	m := newMac(t, tunnel.Options{Gateways: []string{g.address}})
	wantPort(t, take(t, "tunnel", g.came))
	c, err := net.Dial("tcp", m.own)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // read
	wantPort(t, c)
}

// TestEachGatewayBehindAnAddressHasOneTunnel, in any order of connections.
func TestEachGatewayBehindAnAddressHasOneTunnel(t *testing.T) {
	g := newGateways(t, "g1", "g1", "g2", "g2", "g3")
	m := newMac(t, tunnel.Options{Gateways: []string{g.address}})
	for range 3 {
		take(t, "tunnel", m.served)
	}
	g.mu.Lock()
	for _, name := range []string{"g1", "g2", "g3"} {
		if g.seen[name] == 0 {
			t.Errorf("%s was not met", name)
		}
	}
	g.mu.Unlock()
	before := g.tries()
	for end := time.Now().Add(patience.Of(t)); g.tries() == before; { // it keeps looking for more
		if time.Now().After(end) {
			t.Fatal("there is no attempt to reach another gateway")
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-m.served:
		t.Error("a gateway has two tunnels")
	default:
	}
}

// TestALostTunnelIsOpenedAgain, also where it was lost at once.
func TestALostTunnelIsOpenedAgain(t *testing.T) {
	g := newGateways(t, "g1")
	m := newMac(t, tunnel.Options{Gateways: []string{g.address}})
	for range 3 {
		c := take(t, "tunnel", m.served)
		_ = c.Close()
	}
}

// TestTheEndLeavesTunnelsToThePort: Run ends, and running requests continue.
func TestTheEndLeavesTunnelsToThePort(t *testing.T) {
	g := newGateways(t, "g1")
	m := newMac(t, tunnel.Options{Gateways: []string{g.address}})
	at, c := take(t, "tunnel", g.came), take(t, "connection", m.served)
	m.stop()
	if _, err := io.WriteString(c, "last\n"); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if b, err := io.ReadAll(at); err != nil || string(b) != "port\nlast\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := m.l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the port takes more: %v", err)
	}
}

// TestANameThatIsNotFoundLeavesTheTunnels, and one that stands for several
// addresses is several gateways.
func TestANameThatIsNotFoundLeavesTheTunnels(t *testing.T) {
	g := newGateways(t, "g1")
	_, port, err := net.SplitHostPort(g.address)
	if err != nil {
		t.Fatal(err)
	}
	newMac(t, tunnel.Options{Gateways: []string{"nowhere:1", "gateways:" + port}, Lookup: func(_ context.Context, host string) ([]string, error) {
		if host == "gateways" {
			return []string{"127.0.0.1"}, nil
		}
		return nil, errors.New("no such name")
	}})
	take(t, "tunnel", g.came)
}
