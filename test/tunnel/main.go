// Command tunnel is the test behind make test-tunnel: two Macs behind NAT, whose
// agents open tunnels to two gateways that cannot reach them.
//
// It owns the office network, the load and the verdict: answers come through the
// tunnels of both Macs; another Mac's certificate opens none in a Mac's name; a
// link that dies takes its Mac out of the picks, what did not begin there is
// answered elsewhere, and it comes back by itself; where all links die requests
// wait until one is back; a gateway that is killed is found again; an agent that
// is stopped costs no request. Programs are package fleet's.
//
// It runs inside a network and a tree of mounts of its own: Linux alone, as root.
//
// Start reading at test.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/netns"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

// patience bounds each wait; many times what a busy two-core machine took.
const patience = 2 * time.Minute

const (
	model  = "chat"
	second = "second" // the gateway beside the first
)

// Ports of the gateways for tunnels. Nobody else is in this network.
var tunnelPorts = map[string]string{"gateway": "7444", second: "7445"}

func main() {
	root := flag.String("root", ".", "folder of the module, whose bin holds the programs")
	keep := flag.String("logs", filepath.Join(".run", "tunnel-failed"), "folder for the logs of a run that failed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: tunnel [-root DIR] [-logs DIR]; make test-tunnel")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := netns.Sandboxed(ctx, func(ctx context.Context) error { return run(ctx, *root, *keep) }); err != nil {
		fmt.Fprintln(os.Stderr, "test-tunnel:", err)
		os.Exit(1)
	}
}

// run makes the office and a fleet in it.
func run(ctx context.Context, root, keep string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	scratch, err := os.MkdirTemp("", "mf-tunnel-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := writeModel(filepath.Join(scratch, "slow.gguf")); err != nil {
		return err
	}
	o, err := newOffice(ctx, "studio", "mini")
	if err != nil {
		return err
	}
	options := fleet.Options{Root: root, ModelRoot: scratch, Address: netns.Address, GatewayFlags: map[string][]string{},
		Say: func(step string) { fmt.Println("  ", step) }}
	var flags []string
	for _, name := range []string{"gateway", second} {
		at := netns.Address + ":" + tunnelPorts[name]
		options.GatewayFlags[name] = []string{"--tunnels=" + at, "--verbose"}
		flags = append(flags, "--tunnel="+at)
	}
	for _, m := range o.macs {
		options.Macs = append(options.Macs, fleet.Mac{Name: m.name, Chip: "M2Ultra", Memory: "64Gi", Address: m.address, Flags: flags,
			Inside: func(program string, args ...string) (string, []string) { return netns.Inside(m.name, program, args...) }})
	}
	return fleet.With(ctx, options, keep, func(ctx context.Context, f *fleet.Fleet) error { return test(ctx, f, o) })
}

// writeModel makes one whose long answers take seconds.
func writeModel(path string) error {
	c := tinymodel.Default()
	c.Name, c.Seed, c.Context, c.Endless = "slow", 2, 4096, true
	c.Layers, c.Hidden, c.FeedForward, c.QueryHeads, c.KVHeads, c.HeadSize = 4, 256, 768, 8, 4, 32
	if err := tinymodel.Write(path, c); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}
