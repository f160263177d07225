package agentapi

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
)

// nameServer answers each question for addresses with all of these.
func nameServer(t *testing.T, answers ...string) *net.Resolver {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	go func() {
		defer close(ended)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(respond(buf[:n], answers), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// respond returns the answers to a DNS question that are of its type.
func respond(question []byte, answers []string) []byte {
	end := 12 + bytes.IndexByte(question[12:], 0) + 5 // of the name, its type and its class
	kind := question[end-4 : end-2]
	out := slices.Concat(question[:2], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question[12:end])
	for _, answer := range answers {
		ip := netip.MustParseAddr(answer)
		if (kind[1] == 1) != ip.Is4() { // A, or AAAA
			continue
		}
		out[7]++
		out = slices.Concat(out, []byte{0xc0, 12}, kind, []byte{0, 1, 0, 0, 0, 0, 0, byte(ip.BitLen() / 8)}, ip.AsSlice())
	}
	return out
}

// TestAttackANameOfManyAddresses: after a refusal by one, its owner would see a connection to the next.
func TestAttackANameOfManyAddresses(t *testing.T) {
	for name, tc := range map[string]struct{ answers, dialed []string }{
		"a dial for each address, the next after a failure": {answers: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, dialed: []string{"10.0.0.1:7443", "10.0.0.2:7443", "10.0.0.3:7443"}},
		"none for those of gateways": {answers: []string{"127.0.0.1", "169.254.169.254", "0.0.0.0", "224.0.0.1", "10.0.0.1",
			"::1", "fe80::1", "::", "ff02::1", "::ffff:127.0.0.1", "2001:db8::1"}, dialed: []string{"10.0.0.1:7443", "[2001:db8::1]:7443"}},
		"none at all": {answers: []string{"127.0.0.1", "::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused := errors.New("connection refused")
			var all []string
			d := net.Dialer{Resolver: nameServer(t, tc.answers...)}
			for failures := range uint32(max(1, len(tc.dialed))) {
				var dialed []string
				d.Control = func(_, address string, _ syscall.RawConn) error {
					dialed = append(dialed, address)
					return refused
				}
				if _, err := Dial(t.Context(), d, "mac.example:7443", failures); err == nil || len(tc.dialed) > 0 && !errors.Is(err, refused) {
					t.Errorf("after %d failures: %v", failures, err)
				}
				if len(dialed) > 1 {
					t.Errorf("one dial connects to %v", dialed)
				}
				all = append(all, dialed...)
			}
			if slices.Sort(all); !slices.Equal(all, tc.dialed) {
				t.Errorf("dialed %v, want %v", all, tc.dialed)
			}
		})
	}
}

// TestAnIPAddressIsDialedAsItIs: whether a Mac may advertise it was decided when it did.
func TestAnIPAddressIsDialedAsItIs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), net.Dialer{}, l.Addr().String(), 7)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
