package agentapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// errNotAMacs is returned for a name that resolves only to addresses that no Mac may advertise.
var errNotAMacs = errors.New("the name has no address that a Mac may advertise: only loopback, link-local, multicast or unspecified ones; set agent --advertise to another")

// Dial opens a TCP connection to HOST:PORT, where a Mac says it is. An admission policy judges IP
// addresses before. The Mac may also choose what a name resolves to, each time it is asked, so Dial
// judges those addresses, and dials one of them: if another were dialed after a refusal, its owner would
// learn which ports of others are open, of thousands with each dial. failures is how many
// connections to the Mac failed before, for any reason; after each the next address is due.
func Dial(ctx context.Context, d net.Dialer, address string, failures uint32) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address of a Mac: %w", err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return d.DialContext(ctx, "tcp", address)
	}
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	found, err := d.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve the name of a Mac: %w", err)
	}
	found = slices.DeleteFunc(found, func(a netip.Addr) bool {
		a = a.Unmap()
		return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %w", host, errNotAMacs)
	}
	one := found[uint64(failures)%uint64(len(found))]
	return d.DialContext(ctx, "tcp", net.JoinHostPort(one.Unmap().String(), port))
}
