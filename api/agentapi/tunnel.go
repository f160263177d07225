package agentapi

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// DefaultTunnelPort is where gateways take tunnels.
const DefaultTunnelPort = 7444

// Before TLS, in which the gateway is the client as it is everywhere, each end
// says one line: the agent whose certificate the gateway must find, the gateway
// which of several it is, so that an agent has one tunnel to each. Neither is
// proven by that; TLS proves the first, and the second decides nothing else.
const (
	tunnelHello = "metalfleet-tunnel/1 "
	tunnelReply = "metalfleet-gateway/1 "
	// maxTunnelName bounds both names: a Mac's is a DNS label.
	maxTunnelName = 63
)

// ErrNoTunnel says that something else is at the other end than a tunnel has.
var ErrNoTunnel = errors.New("not the other end of a tunnel")

// SayTunnel begins a tunnel of the Mac called mac.
func SayTunnel(w io.Writer, mac string) error { return sayTunnel(w, tunnelHello, mac) }

// HearTunnel reads which Mac says that it opened a tunnel, and not a byte more.
// Nothing is proven by it.
func HearTunnel(r io.Reader) (mac string, err error) { return hearTunnel(r, tunnelHello) }

// SayGateway tells an agent which gateway its tunnel came to.
func SayGateway(w io.Writer, gateway string) error { return sayTunnel(w, tunnelReply, gateway) }

// HearGateway reads which gateway a tunnel came to, and not a byte more. Nothing
// is proven by it.
func HearGateway(r io.Reader) (gateway string, err error) { return hearTunnel(r, tunnelReply) }

func sayTunnel(w io.Writer, as, name string) error {
	if !tunnelName(name) {
		return fmt.Errorf("%w: %q is no name: lower-case letters, digits and hyphens, at most %d", ErrNoTunnel, name, maxTunnelName)
	}
	_, err := io.WriteString(w, as+name+"\n")
	return err
}

func hearTunnel(r io.Reader, as string) (name string, err error) {
	line := make([]byte, 0, len(as)+maxTunnelName+1)
	for len(line) < cap(line) {
		next := line[len(line) : len(line)+1]
		if _, err := io.ReadFull(r, next); err != nil {
			return "", fmt.Errorf("%w: %w", ErrNoTunnel, err)
		}
		if next[0] == '\n' {
			break
		}
		line = line[:len(line)+1]
	}
	if name, ok := strings.CutPrefix(string(line), as); ok && tunnelName(name) {
		return name, nil
	}
	return "", ErrNoTunnel
}

// tunnelName says that a name can be a Mac's or a gateway's.
func tunnelName(name string) bool {
	return len(name) > 0 && len(name) <= maxTunnelName && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) < 0
}
