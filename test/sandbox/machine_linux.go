package sandbox

import (
	"context"
	"fmt"
	"strings"
)

// namespaces are those with a name, as ip netns keeps them.
const namespaces = "/run/netns"

// Machine is a network namespace with a link.
type Machine struct {
	// Name, also of its namespace.
	Name string
	// Address that others reach it at.
	Address string

	link string // the sandbox's end
}

// mostMachines have addresses.
const mostMachines = 60

// NewMachine makes a machine with one link to the sandbox and no other way out;
// number, from 0, gives its address.
func NewMachine(ctx context.Context, name string, number int) (*Machine, error) {
	if number < 0 || number >= mostMachines {
		return nil, fmt.Errorf("machine %s is number %d: there are addresses for %d", name, number, mostMachines)
	}
	host, own := fmt.Sprintf("198.51.100.%d", 4*number+1), fmt.Sprintf("198.51.100.%d", 4*number+2)
	m := &Machine{Name: name, Address: own, link: fmt.Sprintf("mac%d", number)}
	return m, IP(ctx,
		"netns add "+name,
		"link add "+m.link+" type veth peer name en0 netns "+name,
		"addr add "+host+"/30 dev "+m.link, "link set "+m.link+" up",
		"-n "+name+" link set lo up",
		"-n "+name+" addr add "+own+"/30 dev en0", "-n "+name+" link set en0 up",
		"-n "+name+" route add default via "+host)
}

// IP runs ip for each line.
func IP(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if err := Run(ctx, "ip", strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// Command is a command line that runs on the machine.
func (m *Machine) Command(program string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=" + namespaces + "/" + m.Name, "--", program}, args...)
}

// Run runs a program on the machine to its end.
func (m *Machine) Run(ctx context.Context, program string, args ...string) error {
	program, args = m.Command(program, args...)
	return Run(ctx, program, args...)
}

// Cut takes the machine's link down: both ends and their routes see it.
func (m *Machine) Cut(ctx context.Context) error { return IP(ctx, "link set "+m.link+" down") }

// Mend takes the machine's link up again.
func (m *Machine) Mend(ctx context.Context) error { return IP(ctx, "link set "+m.link+" up") }

// Vanish drops every packet from, to and through the machine, as where a switch
// dies: no end of a link is notified.
func (m *Machine) Vanish(ctx context.Context) error {
	rules := "add table inet gone;"
	for _, hook := range []string{"input", "output", "forward"} {
		rules += fmt.Sprintf(" add chain inet gone %s { type filter hook %s priority 0; policy drop; };", hook, hook)
	}
	return m.Run(ctx, "nft", rules)
}

// Reappear ends Vanish.
func (m *Machine) Reappear(ctx context.Context) error {
	return m.Run(ctx, "nft", "delete table inet gone")
}
