package agentapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
)

// Before TLS, in which the gateway is the client as on every connection, each
// end sends one line: the agent sends the name of the Mac whose certificate the
// gateway must verify, and the gateway sends its own name, so that an agent
// keeps one tunnel to each gateway. The lines prove nothing: TLS proves the
// first name, and the second only identifies the gateway.
const (
	tunnelHello = "metalfleet-tunnel/1 "
	tunnelReply = "metalfleet-gateway/1 "
	// maxTunnelName is the maximum length of both names: a Mac's name is a DNS
	// label.
	maxTunnelName = 63
)

// TunnelProtocol is an ALPN protocol that gateways offer on tunnels, and nowhere else, and that is
// never selected. The certificates are those of direct connections: without it, a client that joins
// the gateway's tunnel port with a Mac's own port, byte for byte, becomes that Mac's tunnel.
const TunnelProtocol = "metalfleet-tunnel/1"

// tunnelAddr is the local address of a tunnel at the Mac.
type tunnelAddr struct{ net.Addr }

// tunnelConn is a tunnel at the Mac.
type tunnelConn struct{ net.Conn }

// LocalAddr implements net.Conn.
func (c tunnelConn) LocalAddr() net.Addr { return tunnelAddr{c.Conn.LocalAddr()} }

// Tunnel returns a connection that an agent opened to a gateway; only on such a connection does
// ServerTLS accept a client that offers TunnelProtocol. Gateways of older versions do not offer it.
func Tunnel(c net.Conn) net.Conn { return tunnelConn{c} }

// errRelayed is returned for a tunnel that the Mac has not opened.
var errRelayed = errors.New("a gateway takes this connection for a tunnel, which this Mac did not open")

// notRelayed accepts TunnelProtocol only on tunnels.
func notRelayed(hello *tls.ClientHelloInfo) error {
	if _, tunnel := hello.Conn.LocalAddr().(tunnelAddr); !tunnel && slices.Contains(hello.SupportedProtos, TunnelProtocol) {
		return errRelayed
	}
	return nil
}

// errNoTunnel is returned when the other end does not speak the tunnel
// protocol.
var errNoTunnel = errors.New("the peer does not speak the tunnel protocol")

// SayTunnel begins a tunnel of the Mac called mac.
func SayTunnel(w io.Writer, mac string) error { return sayTunnel(w, tunnelHello, mac) }

// HearTunnel reads the name of the Mac that opened a tunnel, and not a byte
// more. The name is not verified.
func HearTunnel(r io.Reader) (mac string, err error) { return hearTunnel(r, tunnelHello) }

// SayGateway sends the gateway's name to the agent that opened a tunnel.
func SayGateway(w io.Writer, gateway string) error { return sayTunnel(w, tunnelReply, gateway) }

// HearGateway reads the name of the gateway at the other end of a tunnel, and
// not a byte more. The name is not verified.
func HearGateway(r io.Reader) (gateway string, err error) { return hearTunnel(r, tunnelReply) }

func sayTunnel(w io.Writer, as, name string) error {
	if !tunnelName(name) {
		return fmt.Errorf("%w: %q is not a valid name; want lower-case letters, digits and hyphens, at most %d", errNoTunnel, name, maxTunnelName)
	}
	_, err := io.WriteString(w, as+name+"\n")
	return err
}

func hearTunnel(r io.Reader, as string) (name string, err error) {
	line := make([]byte, 0, len(as)+maxTunnelName+1)
	for len(line) < cap(line) {
		next := line[len(line) : len(line)+1]
		if _, err := io.ReadFull(r, next); err != nil {
			return "", fmt.Errorf("%w: %w", errNoTunnel, err)
		}
		if next[0] == '\n' {
			break
		}
		line = line[:len(line)+1]
	}
	if name, ok := strings.CutPrefix(string(line), as); ok && tunnelName(name) {
		return name, nil
	}
	return "", errNoTunnel
}

// tunnelName reports whether a name can be that of a Mac or a gateway.
func tunnelName(name string) bool {
	return len(name) > 0 && len(name) <= maxTunnelName && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) < 0
}
