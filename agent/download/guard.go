package download

import (
	"context"
	"net/netip"
	"syscall"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// special are address blocks that look global and are not public: a Mac never
// dials them for a tenant.
var special = []struct {
	block netip.Prefix
	name  string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("2001::/32"), "tunnelled"},
	{netip.MustParsePrefix("2002::/16"), "tunnelled"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
}

// publicV6 is the only IPv6 block that is assigned to the Internet. Translation
// prefixes such as 64:ff9b::/96 are outside of it, so an IPv4 address cannot hide
// in one.
var publicV6 = netip.MustParsePrefix("2000::/3")

// notPublic returns why an address is not public; "" for a public one.
func notPublic(a netip.Addr) string {
	a = a.Unmap()
	switch {
	case !a.IsValid():
		return "invalid"
	case a.IsUnspecified():
		return "unspecified"
	case a.IsLoopback():
		return "loopback"
	case a.IsLinkLocalUnicast():
		return "link-local"
	case a.IsMulticast():
		return "multicast"
	case a.Is4() && a.IsPrivate():
		return "private"
	case a.Is6() && a.IsPrivate():
		return "unique-local"
	case a.Is6() && !publicV6.Contains(a):
		return "reserved"
	}
	for _, s := range special {
		if s.block.Contains(a) {
			return s.name
		}
	}
	return ""
}

// checkAddress refuses to dial an address that is neither public nor allowed.
func (p Policy) checkAddress(host string, a netip.Addr) error {
	kind := notPublic(a)
	if kind == "" {
		return nil
	}
	networks := p.Allow
	if p.AllowNow != nil {
		networks = p.AllowNow()
	}
	for _, allowed := range networks {
		if allowed.Contains(a.Unmap().WithZone("")) {
			return nil
		}
	}
	return failf(v1alpha1.ReasonSourceForbidden,
		"host %s has a %s address, but sources must have public addresses; use another source, or have an administrator allow its network with settings.allowedSourceCIDRs of the MacClass or with agent --allow-source-cidr", host, kind)
}

type hostKey struct{}

// control runs for every address just before it is dialed: after DNS, and again
// for every redirect.
func (p Policy) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	host, _ := ctx.Value(hostKey{}).(string)
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return failf(v1alpha1.ReasonSourceForbidden, "host %s has an address that the agent cannot classify", host)
	}
	return p.checkAddress(host, ap.Addr())
}
