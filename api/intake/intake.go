// Package intake bounds the memory that clients use before a program serves them:
// connections, TLS handshakes, and request bodies that are being read.
//
// It owns accepted connections, those that have not authenticated, and the buffers of
// request bodies. When a limit is reached, it closes the connection or drops the body that has been
// incomplete for longest, of the address or tenant that holds the most; only if there is
// none does it refuse the newcomer. A part of the connections is for addresses that have few. A
// request that has arrived completely is never dropped, unless its client does not read the response.
// It also rejects requests with two lengths or very many header lines, which net/http
// accepts.
//
// Start reading at Listener.Accept, Own, Authenticate, PortServer and Bodies.Read.
package intake

import (
	"net/netip"
	"time"
)

// retry is the Retry-After of refusals.
const retry = time.Second

// AddressOf returns the address that a client's share counts against: the host, or for IPv6
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
