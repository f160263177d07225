package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/gateway/route"
)

// nameServer answers each question over UDP with a number of addresses, or as truncated.
type nameServer struct {
	records   int
	truncated bool
	overTCP   atomic.Int64 // connections

	mu    sync.Mutex
	asked map[string]bool // first label of each name
}

// listen makes a resolver ask this server, wherever it would ask.
func (s *nameServer) listen(t *testing.T, r *net.Resolver) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.asked = map[string]bool{}
	var served sync.WaitGroup
	t.Cleanup(func() { _, _ = udp.Close(), tcp.Close(); served.Wait() })
	served.Go(func() {
		buf := make([]byte, 1500)
		for n, from, err := udp.ReadFrom(buf); err == nil; n, from, err = udp.ReadFrom(buf) {
			_, _ = udp.WriteTo(s.respond(buf[:n]), from)
		}
	})
	served.Go(func() {
		for c, err := tcp.Accept(); err == nil; c, err = tcp.Accept() {
			s.overTCP.Add(1)
			_ = c.Close()
		}
	})
	dial := r.Dial
	r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		if network == "tcp" {
			return dial(ctx, network, tcp.Addr().String())
		}
		return dial(ctx, network, udp.LocalAddr().String())
	}
}

func (s *nameServer) respond(question []byte) []byte {
	end := 12 + bytes.IndexByte(question[12:], 0) + 5 // of the name, its type and its class
	s.mu.Lock()
	s.asked[string(question[13:13+question[12]])] = true
	s.mu.Unlock()
	out := slices.Concat(question[:2], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question[12:end])
	if s.truncated {
		out[2] |= 2
		return out
	}
	if question[end-3] != 1 { // only A
		return out
	}
	for i := range s.records {
		out[7]++
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 10, 0, 0, byte(i+1))
	}
	return out
}

func (s *nameServer) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.asked))
}

// TestAttackANameWithALongAnswer: a DNS server asks others over the protocol that it was asked over, and
// keeps the answer in memory.
func TestAttackANameWithALongAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		server *nameServer
		want   int // addresses; 0 is an error
	}{
		"one address":          {&nameServer{records: 1}, 1},
		"as many as are taken": {&nameServer{records: maxRecords}, maxRecords},
		"one more":             {&nameServer{records: maxRecords + 1}, 0},
		"longer than UDP":      {&nameServer{truncated: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := resolver()
			tc.server.listen(t, r)
			found, _ := r.LookupNetIP(t.Context(), "ip", "mac.example.")
			if len(found) != tc.want {
				t.Errorf("%d addresses, want %d", len(found), tc.want)
			}
			if tc.want == 0 {
				n := &names{lookups: lookups{resolver: r}}
				if _, err := n.dial(t.Context(), "mac.example.:7443", 0); !errors.Is(err, errLongAnswer) {
					t.Errorf("the error is %v", err)
				}
			}
			if n := tc.server.overTCP.Load(); n > 0 {
				t.Errorf("asked %d times over TCP", n)
			}
		})
	}
}

// TestAttackAMacThatChangesItsName: for requests and for probes, both of which dial.
func TestAttackAMacThatChangesItsName(t *testing.T) {
	p, _ := poolOf(t, func(net.Conn) { t.Error("a connection was opened") })
	s := &nameServer{} // no addresses
	s.listen(t, p.lookups.resolver)
	ask := func(name string) {
		named := name + ".mac.example.:7443"
		r := &http.Request{Method: http.MethodGet, Header: http.Header{}, URL: &url.URL{Scheme: "https", Host: named, Path: "/"}}
		resp, err := p.To(route.Endpoint{Mac: "a", MacUID: agentapitest.UID("a"), Address: named}).RoundTrip(r.WithContext(t.Context()))
		if err == nil {
			_ = resp.Body.Close()
		}
		if !NotReached(err) {
			t.Errorf("the request ended with %v", err)
		}
	}
	for i := range 40 {
		ask(fmt.Sprintf("n%02d", i))
	}
	if got := s.names(); len(got) > 8 || !slices.Contains(got, "n00") || !slices.Contains(got, "n01") { // more than two on a slow machine
		t.Errorf("asked for %v, want the first name and one change", got)
	}
}

// TestNamesThatChange: hours of a Mac that changes its name as often as it can.
func TestNamesThatChange(t *testing.T) {
	changes := func(n *names, from, to time.Time, step time.Duration) (count int) {
		for now := from; now.Before(to); now = now.Add(step) {
			if n.admit(fmt.Sprintf("n%d.example:7443", now.UnixNano()), now) == nil {
				count++
			}
		}
		return count
	}
	start, shared := time.Now(), newLookups()
	one := &names{lookups: shared}
	// The first, one at once, then after 4, 8 ... 512 s, and each 10 min.
	if got, most := changes(one, start, start.Add(time.Hour), time.Second), 2+8+6; got < 2+8 || got > most {
		t.Errorf("%d names in one hour, want at most %d", got, most)
	}
	many := make([]*names, 500)
	count := 0
	for i := range many {
		many[i] = &names{lookups: shared}
	}
	for now := start.Add(time.Hour); now.Before(start.Add(2 * time.Hour)); now = now.Add(10 * time.Second) {
		for _, n := range many {
			count += changes(n, now, now.Add(time.Second), time.Second)
		}
	}
	if most := 2*len(many) + nameBurst + 60*namesPerMinute; count > most {
		t.Errorf("%d names of %d Macs in one hour, want at most %d", count, len(many), most)
	}
}

// TestAnHonestNameIsLookedUpAtOnce: also while the names of other Macs change.
func TestAnHonestNameIsLookedUpAtOnce(t *testing.T) {
	start, shared := time.Now(), newLookups()
	n := &names{lookups: shared}
	for _, step := range []struct {
		address string
		after   time.Duration
	}{{"192.0.2.7:7443", 0}, {"mac.example:7443", 0}, {"mac.example:7443", time.Second}, {"other.example:7443", 2 * time.Second},
		{"[2001:db8::7]:7443", 2 * time.Second}, {"192.0.2.8:7443", 2 * time.Second}, {"other.example:1", 3 * time.Second},
		{"third.example:7443", 3*time.Second + nameSettled}} {
		for shared.changes.AllowN(start.Add(step.after), 1) { // by other Macs
		}
		if err := n.admit(step.address, start.Add(step.after)); err != nil {
			t.Errorf("%s after %s: %v", step.address, step.after, err)
		}
	}
}
