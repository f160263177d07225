package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/netns"
)

// router is the office's machine between its Macs and everybody else: what goes
// out gets its address, and nothing comes in that was not asked for.
const router = "router"

const nat = `
table ip nat {
	chain out { type nat hook postrouting priority srcnat; oifname "wan0" masquerade; }
}
table inet guard {
	chain in { type filter hook input priority 0; policy accept; iifname "wan0" ct state != { established, related } drop; }
	chain through { type filter hook forward priority 0; policy accept; iifname "wan0" ct state != { established, related } drop; }
}`

// mac is a machine of the office.
type mac struct{ name, address string }

type office struct{ macs []mac }

// newOffice makes a router and Macs behind it. The route to the Macs is there:
// what keeps gateways out is the router.
func newOffice(ctx context.Context, names ...string) (*office, error) {
	lines := []string{
		"netns add " + router,
		"link add office type veth peer name wan0 netns " + router,
		"addr add 198.51.100.1/30 dev office", "link set office up",
		"-n " + router + " link set lo up", "-n " + router + " addr add 198.51.100.2/30 dev wan0", "-n " + router + " link set wan0 up",
		"-n " + router + " route add default via 198.51.100.1", "route add 10.77.0.0/16 via 198.51.100.2",
	}
	o := &office{}
	for i, name := range names {
		gate, own := fmt.Sprintf("10.77.%d.1", i), fmt.Sprintf("10.77.%d.2", i)
		o.macs = append(o.macs, mac{name, own})
		lines = append(lines, "netns add "+name,
			"-n "+router+" link add "+name+" type veth peer name en0 netns "+name,
			"-n "+router+" addr add "+gate+"/24 dev "+name, "-n "+router+" link set "+name+" up",
			"-n "+name+" link set lo up", "-n "+name+" addr add "+own+"/24 dev en0", "-n "+name+" link set en0 up",
			"-n "+name+" route add default via "+gate)
	}
	for _, line := range lines {
		if err := netns.Run(ctx, "ip", strings.Fields(line)...); err != nil {
			return nil, err
		}
	}
	if err := o.inside(ctx, router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"); err != nil {
		return nil, err
	}
	return o, o.inside(ctx, router, "nft", nat)
}

func (o *office) inside(ctx context.Context, name, program string, args ...string) error {
	program, args = netns.Inside(name, program, args...)
	return netns.Run(ctx, program, args...)
}

// cut has every packet from and to a machine disappear without a word.
func (o *office) cut(ctx context.Context, name string) error {
	return o.inside(ctx, name, "nft", "add table inet gone; add chain inet gone in { type filter hook input priority 0; policy drop; }; "+
		"add chain inet gone out { type filter hook output priority 0; policy drop; }; add chain inet gone through { type filter hook forward priority 0; policy drop; }")
}

func (o *office) mend(ctx context.Context, name string) error {
	return o.inside(ctx, name, "nft", "delete table inet gone")
}

// shut wants a Mac's port to be out of reach from here, or this tests nothing.
func shut(ctx context.Context, host, port string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil
	}
	return fmt.Errorf("%s can be reached from a gateway, so there is no NAT to be tested: %w", c.RemoteAddr(), c.Close())
}
