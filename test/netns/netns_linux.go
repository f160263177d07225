// Package netns runs a program inside a network and a tree of mounts of its own,
// where it can make machines with links that it cuts.
//
// It owns the start inside, the loopback there and the address at which machines
// reach this one. It refuses whoever is not root, a machine that lacks a program
// which the sandbox runs, and any system but Linux.
//
// Start reading at Sandboxed.
package netns

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
)

// stage tells the program, started again, that it is inside.
const stage = "METALFLEET_NETNS_INSIDE"

// Address is where the machines inside reach this one; nobody else has it (RFC 5737).
const Address = "192.0.2.10"

// Sandboxed runs story in this same program, started again with a network and
// mounts of its own: what it makes there ends with it.
func Sandboxed(ctx context.Context, story func(context.Context) error) error {
	if os.Getenv(stage) != "" {
		if err := furnish(ctx); err != nil {
			return err
		}
		return story(ctx)
	}
	if os.Geteuid() != 0 {
		return errors.New("it makes machines and cuts their links in namespaces of its own, which needs root")
	}
	// Some have a PATH that leaves out where Debian keeps ip and nft.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	if err := equipped(); err != nil {
		return err
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

// furnish gives the namespaces a loopback with the address, and a folder for the
// networks of machines.
func furnish(ctx context.Context) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, line := range []string{"link set lo up", "addr add " + Address + "/32 dev lo"} {
		if err := Run(ctx, "ip", strings.Fields(line)...); err != nil {
			return err
		}
	}
	return nil
}

// Inside is a command line that runs in the network of that name, as ip netns
// keeps it.
func Inside(name, program string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=/run/netns/" + name, "--", program}, args...)
}

// Run runs a command, and says what it said where it fails.
func Run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return nil
}
