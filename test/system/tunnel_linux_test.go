//go:build stories

package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/identity"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/sandbox"
)

// tunnelPorts are those of the gateways for tunnels, in a network of their own.
var tunnelPorts = map[string]string{"gateway": "7444", "second": "7445"}

const tunnelsMetric = "metalfleet_gateway_tunnels"

// TestTunnel has two Macs in a network with NAT, whose agents open tunnels to two
// gateways that cannot reach them. Answers come through the tunnels of both Macs; another
// Mac's certificate opens none in a Mac's name; a link that dies takes its Mac out
// of the picks, what had not begun there is answered elsewhere, and the Mac comes
// back by itself; if all links die requests wait until one is back; a gateway that
// is killed is found again; an agent that is stopped costs no request.
//
// It runs in a sandbox (Linux, root).
func TestTunnel(t *testing.T) {
	if !sandbox.Inside() {
		t.Parallel()
		takeTurn(t)
	}
	if !sandbox.Enter(t) {
		return
	}
	u := newOffice(t, "studio", "mini")
	options := fleet.Options{Address: sandbox.Address, GatewayFlags: map[string][]string{}}
	var flags []string
	for name, port := range tunnelPorts {
		options.GatewayFlags[name] = []string{"--tunnels=" + sandbox.Address + ":" + port, "--verbose"}
		flags = append(flags, "--tunnel="+sandbox.Address+":"+port)
	}
	for _, m := range u.macs {
		options.Macs = append(options.Macs, fleet.Mac{Name: m.Name, Chip: "M2Ultra", Memory: "64Gi", Address: m.Address, Flags: flags, Inside: m.Command})
	}
	u.world = start(t, options, models())
	sequence(t,
		step{name: "a second gateway and a model on both Macs", do: u.serve},
		step{name: "no gateway reaches the Macs, and both answer through both", do: u.answers},
		step{name: "another Mac's certificate opens no tunnel in a Mac's name", do: u.forged},
		step{name: "clients leave streams, and the tunnels serve on", do: u.left},
		step{name: "one Mac's link dies under load and comes back", do: u.linkDies},
		step{name: "the office's link dies; a request waits until it is back", do: u.officeDies},
		step{name: "a gateway is killed and found again", do: u.gatewayDies},
		step{name: "an agent is stopped under load, and starts again", do: u.agentStops},
	)
	must(t, u.Failed())
}

// office is a router with two Macs, and the fleet that they belong to.
type office struct {
	*world
	router *sandbox.Machine
	macs   []*sandbox.Machine
	second *fleet.Gateway
	asked  int
}

// nat is what the router does: packets that leave get its address, and none comes
// in that was not asked for.
const nat = `
table ip nat {
	chain out { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet guard {
	chain in { type filter hook input priority 0; policy accept; iifname "wan0" ct state != { established, related } drop; }
	chain through { type filter hook forward priority 0; policy accept; iifname "wan0" ct state != { established, related } drop; }
}`

// newOffice makes a router and Macs in its network. There is a route to the Macs:
// it is the router that keeps gateways out.
func newOffice(t *testing.T, names ...string) *office {
	t.Helper()
	lines := []string{
		"netns add router",
		"link add office type veth peer name wan0 netns router",
		"addr add 198.51.100.1/30 dev office", "link set office up",
		"-n router link set lo up", "-n router addr add 198.51.100.2/30 dev wan0", "-n router link set wan0 up",
		"-n router route add default via 198.51.100.1", "route add 10.77.0.0/16 via 198.51.100.2",
	}
	u := &office{router: &sandbox.Machine{Name: "router"}}
	for i, name := range names {
		gate, own := fmt.Sprintf("10.77.%d.1", i), fmt.Sprintf("10.77.%d.2", i)
		u.macs = append(u.macs, &sandbox.Machine{Name: name, Address: own})
		lines = append(lines, "netns add "+name,
			"-n router link add "+name+" type veth peer name en0 netns "+name,
			"-n router addr add "+gate+"/24 dev "+name, "-n router link set "+name+" up",
			"-n "+name+" link set lo up", "-n "+name+" addr add "+own+"/24 dev en0", "-n "+name+" link set en0 up",
			"-n "+name+" route add default via "+gate)
	}
	must(t, sandbox.IP(t.Context(), lines...))
	must(t, u.router.Run(t.Context(), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
	must(t, u.router.Run(t.Context(), "nft", nat))
	return u
}

func (u *office) serve(t *testing.T) {
	var err error
	u.second, err = u.AddGateway(t.Context(), "second")
	must(t, err)
	u.deploy(t, fleet.Model{Name: "chat", File: "slow.gguf", MaxTokens: slowContext, MaxConcurrentRequests: 4, KVCacheTokens: 4 * slowContext, DrainSeconds: 60}, replicas(2))
	for _, m := range u.macs {
		u.waitMac(t, m.Name, m.Name+" serves and opens tunnels", func(node *v1alpha1.MacNode) error {
			if a := node.Status.Address; a == nil || a.Reach != v1alpha1.ReachTunnel || len(node.Status.Assignments) != 1 || node.Status.Assignments[0].PID == 0 {
				return fmt.Errorf("address %+v, assignments %+v", a, node.Status.Assignments)
			}
			return nil
		})
	}
}

// request sends one request that is answered whole. Each has another text: those
// that begin alike are sent to one Mac.
func (u *office) request(ctx context.Context, url string) (mac string, err error) {
	u.asked++
	a, err := fleet.Ask(ctx, url, fleet.Question{Model: "chat", Text: fmt.Sprintf("%d is the number of this question. Why?", u.asked), MaxTokens: 4, Patience: patience})
	return a.Mac, err
}

// answersOf asks a gateway until each of the Macs has answered.
func (u *office) answersOf(t *testing.T, url string, macs ...string) {
	t.Helper()
	for _, want := range macs {
		eventually(t, want+" answers through "+url, func(ctx context.Context) error {
			mac, err := u.request(ctx, url)
			if err == nil && mac != want {
				err = fmt.Errorf("%s answered", mac)
			}
			return err
		})
	}
}

func (u *office) answers(t *testing.T) {
	for _, m := range u.macs {
		address := u.node(t, m.Name).Status.Address
		c, err := net.DialTimeout("tcp", net.JoinHostPort(address.Host, strconv.Itoa(int(address.Port))), time.Second)
		if err == nil {
			c.Close()
			t.Fatalf("%s can be reached from a gateway, so there is no NAT and this shows nothing", m.Name)
		}
	}
	for _, url := range []string{u.URL, u.second.URL} {
		u.answersOf(t, url, "studio", "mini")
		a, err := fleet.Ask(t.Context(), url, fleet.Question{Model: "chat", Text: "Stream", MaxTokens: 64, Stream: true})
		if err != nil || a.Finish == "" {
			t.Errorf("a stream through %s ended with %q: %v", url, a.Finish, err)
		}
	}
	if n, err := u.FirstGateway().Metric(t.Context(), tunnelsMetric); err != nil || n != 2 {
		t.Errorf("the gateway counts %v tunnels, want 2 (%v)", n, err)
	}
}

// forged opens a tunnel with the certificate of one Mac in the name of another, and
// serves on it what a gateway must not ask.
func (u *office) forged(t *testing.T) {
	id, err := identity.Open(filepath.Join(u.Dir(), "mini"), "mini", logr.Discard())
	must(t, err)
	c, err := net.DialTimeout("tcp", sandbox.Address+":"+tunnelPorts["gateway"], patience)
	must(t, err)
	defer c.Close() //nolint:errcheck // closed by the gateway
	must(t, agentapi.SayTunnel(c, "studio"))
	_, err = agentapi.HearGateway(c)
	must(t, err)
	asked, ended := make(chan struct{}, 1), make(chan struct{})
	server := &http.Server{TLSConfig: id.ServerTLS(), ReadHeaderTimeout: patience, ErrorLog: log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(ended)
			}
		}}
	defer server.Close() //nolint:errcheck // it served one connection
	go func() { _ = server.ServeTLS(&oneConn{Conn: agentapi.Tunnel(c), done: ended}, "", "") }()
	select {
	case <-ended:
	case <-asked:
		t.Fatal("the gateway sent a request to it")
	case <-time.After(patience):
		t.Fatal("the gateway keeps it")
	}
	u.answersOf(t, u.URL, "studio") // whose own tunnel is as it was
}

// oneConn is a listener of one connection.
type oneConn struct {
	net.Conn
	done <-chan struct{}
	once sync.Once
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.Conn })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.LocalAddr() }

// left begins streams and hangs up; then everything is free again.
func (u *office) left(t *testing.T) {
	for range 4 {
		stream := u.stream(t, "chat", 3000)
		stream.Leave()
		if _, err := end(t, stream); !errors.Is(err, context.Canceled) {
			t.Errorf("a stream that was left ended with %v", err)
		}
	}
	must(t, u.FirstGateway().WaitInFlight(t.Context(), 0))
	for _, m := range u.macs { // the agents noticed
		u.waitMac(t, m.Name, "the ledger of "+m.Name+" is right", func(*v1alpha1.MacNode) error { return u.CheckLedger(t.Context(), m.Name) })
	}
	u.answersOf(t, u.URL, "studio", "mini")
}

// underLoad does something while clients ask through both gateways, and wants every
// answer whole.
func (u *office) underLoad(t *testing.T, do func()) {
	t.Helper()
	clients := make([]fleet.Question, 6)
	for i := range clients {
		clients[i] = fleet.Question{Model: "chat", MaxTokens: 4, Patience: patience}
	}
	load := u.StartLoad(t.Context(), fleet.LoadOptions{Clients: clients, Gateways: []*fleet.Gateway{u.FirstGateway(), u.second}, Pause: 10 * time.Millisecond, Limit: patience})
	t.Cleanup(func() { load.End() })
	do()
	wantWhole(t, load)
}

func (u *office) wantTunnels(t *testing.T, n float64) {
	t.Helper()
	must(t, u.FirstGateway().WaitMetric(t.Context(), tunnelsMetric, n))
}

// linkDies: a dead link takes its Mac out of the picks, and no request with it.
func (u *office) linkDies(t *testing.T) {
	u.underLoad(t, func() {
		must(t, u.macs[0].Vanish(t.Context()))
		cut := time.Now()
		u.wantTunnels(t, 1)
		t.Logf("out of the picks after %.2f s", time.Since(cut).Seconds())
		for range 8 {
			if mac, err := u.request(t.Context(), u.URL); err != nil || mac != "mini" {
				t.Errorf("%s answered (%v) while the link of studio is dead", mac, err)
			}
		}
		must(t, u.macs[0].Reappear(t.Context()))
		mended := time.Now()
		u.answersOf(t, u.URL, "studio")
		u.answersOf(t, u.second.URL, "studio")
		t.Logf("back in both gateways after %.1f s", time.Since(mended).Seconds())
	})
}

// officeDies: with no Mac left a request waits; it is answered when one is back.
func (u *office) officeDies(t *testing.T) {
	must(t, u.router.Vanish(t.Context()))
	u.wantTunnels(t, 0)
	answered := make(chan error, 1)
	go func() {
		_, err := u.request(t.Context(), u.URL)
		answered <- err
	}()
	must(t, u.FirstGateway().WaitMetric(t.Context(), "vllm:num_requests_waiting", 1))
	must(t, u.router.Reappear(t.Context()))
	must(t, <-answered)
	u.wantTunnels(t, 2)
	u.answersOf(t, u.second.URL, "studio", "mini")
}

func (u *office) gatewayDies(t *testing.T) {
	must(t, u.second.Kill())
	must(t, u.second.Start(t.Context()))
	u.answersOf(t, u.second.URL, "studio", "mini")
}

// agentStops: its drain costs no request, and its tunnels come back with it.
func (u *office) agentStops(t *testing.T) {
	u.underLoad(t, func() {
		must(t, u.Agent("studio").Stop(t.Context()))
		u.wantTunnels(t, 1)
		must(t, u.Agent("studio").Start())
		u.answersOf(t, u.URL, "studio")
		u.answersOf(t, u.second.URL, "studio")
	})
}
