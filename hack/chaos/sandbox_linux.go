package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"metalfleet.dev/metalfleet/hack/cluster"
	"metalfleet.dev/metalfleet/hack/fleet"
)

// stage tells the program, started again, that it is inside.
const stage = "METALFLEET_CHAOS_INSIDE"

// serverAddress is where Macs reach the API server; nobody else has it (RFC 5737).
const serverAddress = "192.0.2.10"

// sandboxed runs story in this same program, started again with a network and
// mounts of its own: what it makes there ends with it.
func sandboxed(ctx context.Context, story func(context.Context) error) error {
	if os.Getenv(stage) != "" {
		if err := furnish(ctx); err != nil {
			return err
		}
		return story(ctx)
	}
	if os.Geteuid() != 0 {
		return errors.New("it cuts links and fills disks in namespaces of its own, which needs root")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), stage+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("new namespaces: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals: // it takes everything down and ends
				_ = cmd.Process.Signal(s)
			case <-ended:
				return
			}
		}
	}()
	err := cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		os.Exit(exit.ExitCode()) // it has said why
	}
	return err
}

// furnish gives the namespaces a loopback with the API server's address, and a
// folder for the networks of Macs.
func furnish(ctx context.Context) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, line := range []string{"link set lo up", "addr add " + serverAddress + "/32 dev lo"} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

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
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft on %s: %w: %s", m.Name, err, out)
	}
	return nil
}

// mountDisk gives a Mac a small disk of its own.
func mountDisk(state string) (undo func() error, err error) {
	if err := unix.Mount("tmpfs", state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=700", diskBytes)); err != nil {
		return nil, fmt.Errorf("mount a disk at %s: %w", state, err)
	}
	return func() error { return unix.Unmount(state, unix.MNT_DETACH) }, nil
}
