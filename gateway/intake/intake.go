// Package intake bounds the memory that clients hold before the gateway serves them:
// connections, and request bodies that are on their way in.
//
// It owns the listener of the front, the connections that it has accepted, and the
// buffers of request bodies. Where the room is full, it takes back the connection or the
// body that has been incomplete for longest, of the address or the tenant that holds the
// most; only if there is none does it refuse the newcomer. A request that has arrived
// completely is never taken back. It also refuses requests with two lengths, which
// net/http accepts.
//
// Start reading at Listener.Accept and Bodies.Read.
package intake

import (
	"net/netip"
	"time"
)

// retry is what Retry-After says to a client that is refused.
const retry = time.Second

// AddressOf returns whose share a remote address counts against: a host, or for IPv6
// the network of one customer.
func AddressOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	host := at.Addr().Unmap().WithZone("")
	if host.Is4() {
		return host.String()
	}
	network, err := host.Prefix(64)
	if err != nil {
		return host.String()
	}
	return network.String()
}
