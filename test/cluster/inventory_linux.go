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
// "none". Network namespaces are not listed: those of the cluster end with its
// processes, which are in one process namespace, unless a mount or a name keeps
// them; and other tests on this machine may be making theirs.
var kinds = map[string]func(dir string) ([]string, error){
	"mount":           mounts,
	"network link":    func(string) ([]string, error) { return names("/sys/class/net/*") },
	"named namespace": func(string) ([]string, error) { return names("/run/netns/*") },
	"control group":   func(string) ([]string, error) { return names(groups...) },
	"nftables line":   tables,
	"process":         processes,
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

// processes run a program from dir, or work there. One that has ended meanwhile, or
// has no program, is left out.
func processes(dir string) ([]string, error) {
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, process := range found {
		for _, link := range []string{"exe", "cwd"} {
			to, err := os.Readlink(process + "/" + link)
			if err != nil || !strings.HasPrefix(to, dir+"/") {
				continue
			}
			if line, err := os.ReadFile(process + "/cmdline"); err == nil {
				all = append(all, filepath.Base(process)+" "+strings.ReplaceAll(string(line), "\x00", " "))
			}
			break
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
