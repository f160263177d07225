package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/test/cluster"
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/netns"
)

// newMacs makes four machines, each with a link and a disk of its own.
func newMacs(ctx context.Context) ([]fleet.Mac, map[string]*cluster.Mac, error) {
	links := map[string]*cluster.Mac{}
	var macs []fleet.Mac
	for i, chip := range []string{"M2Ultra", "M4Max", "M2Ultra", "M3Max"} {
		name := fmt.Sprintf("mac-%d", i+1)
		link, err := cluster.NewMac(ctx, name, i)
		if err != nil {
			return nil, nil, err
		}
		links[name] = link
		macs = append(macs, fleet.Mac{Name: name, Chip: chip, Memory: "64Gi", Address: link.Address, Inside: link.Command, Disk: mountDisk,
			Flags: []string{"--cache-free=8Mi"}})
	}
	return macs, links, nil
}

// vanish has every packet from and to a Mac disappear without a word, as where a
// switch dies; reappear ends that. A link that is taken down is told to who is
// at its other end, and the route with it.
func vanish(ctx context.Context, m *cluster.Mac) error {
	return inMac(ctx, m, "add table inet gone; add chain inet gone in { type filter hook input priority 0; policy drop; }; add chain inet gone out { type filter hook output priority 0; policy drop; }")
}

func reappear(ctx context.Context, m *cluster.Mac) error {
	return inMac(ctx, m, "delete table inet gone")
}

func inMac(ctx context.Context, m *cluster.Mac, rules string) error {
	program, args := m.Command("nft", rules)
	return netns.Run(ctx, program, args...)
}

// mountDisk gives a Mac a small disk of its own.
func mountDisk(state string) (undo func() error, err error) {
	if err := unix.Mount("tmpfs", state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=700", diskBytes)); err != nil {
		return nil, fmt.Errorf("mount a disk at %s: %w", state, err)
	}
	return func() error { return unix.Unmount(state, unix.MNT_DETACH) }, nil
}
