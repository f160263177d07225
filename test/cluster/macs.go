package cluster

import (
	"context"
	"fmt"
	"strings"
)

// Mac is a machine of its own: a network namespace with one link to the node
// and no other way out.
type Mac struct {
	// Name, also of its namespace.
	Name string
	// Address that gateways reach it at.
	Address string

	link string // the node's end
}

// namespaces are those with a name. The folder is a shared mount from the
// start: else ip makes it one with the first Mac, on top of the namespaces of
// Pods, which can then be removed no more.
const namespaces = "/run/netns"

// mostMacs have addresses.
const mostMacs = 60

// AddMac makes a Mac beside the cluster's node.
func (c *Cluster) AddMac(ctx context.Context, name string, number int) (*Mac, error) {
	return NewMac(ctx, name, number)
}

// NewMac makes a Mac in the network that this process is in, which should be one
// of its own; number, from 0, gives its address.
func NewMac(ctx context.Context, name string, number int) (*Mac, error) {
	if number < 0 || number >= mostMacs {
		return nil, fmt.Errorf("Mac %s is number %d: there are addresses for %d", name, number, mostMacs)
	}
	host, mac := fmt.Sprintf("198.51.100.%d", 4*number+1), fmt.Sprintf("198.51.100.%d", 4*number+2)
	m := &Mac{Name: name, Address: mac, link: fmt.Sprintf("mac%d", number)}
	for _, line := range []string{
		"netns add " + name,
		"link add " + m.link + " type veth peer name en0 netns " + name,
		"addr add " + host + "/30 dev " + m.link, "link set " + m.link + " up",
		"-n " + name + " link set lo up",
		"-n " + name + " addr add " + mac + "/30 dev en0", "-n " + name + " link set en0 up",
		"-n " + name + " route add default via " + host,
	} {
		if err := run(ctx, "ip", strings.Fields(line)...); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Command is a command line that runs inside the Mac's namespace.
func (m *Mac) Command(program string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=" + namespaces + "/" + m.Name, "--", program}, args...)
}

// Cut takes the Mac's link down, Mend up again.
func (m *Mac) Cut(ctx context.Context) error { return run(ctx, "ip", "link", "set", m.link, "down") }

// Mend takes the Mac's link up again.
func (m *Mac) Mend(ctx context.Context) error { return run(ctx, "ip", "link", "set", m.link, "up") }
