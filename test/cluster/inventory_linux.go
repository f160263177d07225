package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// inventory is what a cluster could leave on a machine, by kind: a line for
// each thing that is there.
type inventory map[string][]string

// kinds of things, and how each is read. What cannot be read is an error, and not
// "none".
var kinds = map[string]func(dir string) ([]string, error){
	"mount":             mounts,
	"network link":      func(string) ([]string, error) { return names("/sys/class/net/*") },
	"named namespace":   func(string) ([]string, error) { return names("/run/netns/*") },
	"network namespace": networks,
	"control group":     func(string) ([]string, error) { return names(groups...) },
	"nftables line":     tables,
	"process":           processes,
}

// takeInventory reads all kinds; dir is the folder whose programs count.
func takeInventory(dir string) (inventory, error) {
	inv := inventory{}
	var errs []error
	for kind, read := range kinds {
		found, err := read(dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("inventory of the machine, %s: %w", kind, err))
		}
		inv[kind] = found
	}
	return inv, errors.Join(errs...)
}

// left is what is in now and was not in before, as an error that names each.
func (before inventory) left(now inventory) error {
	var errs []error
	for kind, things := range now {
		for _, thing := range things {
			if !slices.Contains(before[kind], thing) {
				errs = append(errs, fmt.Errorf("the cluster left a %s: %s", kind, thing))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func names(patterns ...string) ([]string, error) {
	var all []string
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// mounts are mount points with what is mounted there.
func mounts(string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		// "ID parent device root point options ... - type source options"
		if f := strings.Fields(line); len(f) > 4 {
			_, what, _ := strings.Cut(line, " - ")
			all = append(all, f[4]+" "+what)
		}
	}
	return all, nil
}

// networks are the network namespaces that processes are in.
func networks(string) ([]string, error) {
	return eachProcess(func(pid string) (string, error) { return os.Readlink("/proc/" + pid + "/ns/net") })
}

// processes run a program from dir, or work there.
func processes(dir string) ([]string, error) {
	return eachProcess(func(pid string) (string, error) {
		for _, link := range []string{"exe", "cwd"} {
			to, err := os.Readlink("/proc/" + pid + "/" + link)
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(to, dir+"/") {
				line, err := os.ReadFile("/proc/" + pid + "/cmdline")
				return pid + " " + strings.ReplaceAll(string(line), "\x00", " "), err
			}
		}
		return "", nil
	})
}

// eachProcess collects what describe returns for each process; one that has ended
// meanwhile, or has no program, is left out.
func eachProcess(describe func(pid string) (string, error)) ([]string, error) {
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, p := range pids {
		line, err := describe(filepath.Base(p))
		if err == nil && line != "" && !slices.Contains(all, line) {
			all = append(all, line)
		}
	}
	return all, nil
}

// tables are the rules of nftables in this network namespace. Their counters
// move, so they are left out.
func tables(string) ([]string, error) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		nft = "/usr/sbin/nft"
	}
	b, err := exec.Command(nft, "--stateless", "list", "ruleset").Output()
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), nil
}
