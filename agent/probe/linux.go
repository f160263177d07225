//go:build linux

package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// System reads the machine this program runs on.
type System struct{}

// NewSystem probes this machine.
func NewSystem() System { return System{} }

// Host reads /proc/meminfo.
func (System) Host(_ context.Context, own int64) (Host, error) {
	m, err := readFields("/proc/meminfo", meminfo()...)
	if err != nil {
		return Host{}, err
	}
	return hostOf(m, own), nil
}

// meminfo are the lines that hostOf reads.
func meminfo() []string {
	return []string{"MemTotal", "MemFree", "MemAvailable", "AnonPages", "Shmem", "SwapTotal", "SwapFree", "Active(file)", "Inactive(file)"}
}

// hostOf parses the lines of /proc/meminfo, in bytes. Inactive counts
// file pages only: anonymous ones are in the footprints of their processes, our
// engines included, and would count twice; without swap the kernel cannot reclaim
// them at all. The file pages that it calls active were read twice, by an engine perhaps,
// and it gives them up as soon as the others. Wired and pressure have no counterpart.
func hostOf(m map[string]int64, own int64) Host {
	swap := max(0, m["SwapTotal"]-m["SwapFree"])
	return Host{
		Total: m["MemTotal"], Free: m["MemFree"], Inactive: m["Inactive(file)"] + m["Active(file)"], SwapUsed: swap,
		Used:    min(m["MemTotal"]+m["SwapTotal"], m["AnonPages"]+m["Shmem"]+swap),
		Foreign: max(0, m["MemTotal"]-m["MemAvailable"]-own),
	}
}

// Footprint is RssAnon + RssShmem + VmSwap and the page tables, VmPTE, of which a process
// that only reads may have gigabytes: mapped file pages can be taken
// back at any time, and darwin's figure does not count them either. The kernel counts these as
// they change. For smaps_rollup it visits each mapped page under a lock that the process can take.
// Shared memory counts in full: an engine makes no process that could share it.
func (System) Footprint(pid int) (int64, error) {
	names := []string{"RssAnon", "RssShmem", "VmSwap", "VmPTE"}
	var m map[string]int64
	err := ErrGone
	for n := 0; n < 20 && errors.Is(err, ErrGone); n++ { // its threads may replace one another
		if _, err := startTime(pid); err != nil {
			return 0, err
		}
		m, err = readFields(fmt.Sprintf("/proc/%d/status", pid), names...)
		if errors.Is(err, ErrGone) { // so is perhaps its first thread alone
			rest, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			for i := 0; i < len(rest) && errors.Is(err, ErrGone); i++ {
				m, err = readFields(rest[i], names...)
			}
		}
	}
	if errors.Is(err, ErrGone) {
		return 0, fmt.Errorf("measure process %d: it lives, and each of its threads ended before it was read", pid)
	}
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, n := range names {
		sum += m[n]
	}
	return sum, nil
}

// StartTime is the boot and the clock tick of the start.
func (System) StartTime(pid int) (string, error) {
	ticks, err := startTime(pid)
	if err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot ID: %w", err)
	}
	return strings.TrimSpace(string(boot)) + "/" + ticks, nil
}

// startTime is field 22 of /proc/PID/stat. The second field is the program's name
// in parentheses and may contain anything, so counting starts after the last
// parenthesis.
func startTime(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", gone(pid, err)
	}
	_, rest, found := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 20 {
		return "", fmt.Errorf("parse /proc/%d/stat: %d fields after the process name", pid, len(fields))
	}
	const threads = 17 // that are left: the first one of a process may end before the others
	if state := fields[0]; state == "X" || state == "Z" && fields[threads] == "1" {
		return "", fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return fields[19], nil
}

// gone maps the errors of a process that ended, before or while it was read.
func gone(pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return fmt.Errorf("read process %d: %w", pid, err)
}

// readFields reads lines of the form "Name:  123 kB" and wants all names.
func readFields(path string, names ...string) (map[string]int64, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("read %s: %w", path, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read memory figures: %w", err)
	}
	found := map[string]int64{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), ":")
		kib, isKiB := strings.CutSuffix(strings.TrimSpace(value), " kB")
		if !ok || !isKiB || !slices.Contains(names, name) { // a process chooses its name
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(kib), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", name, path, err)
		}
		found[name] = n << 10
	}
	for _, n := range names {
		if _, ok := found[n]; !ok {
			if len(found) == 0 { // a zombie's file has no figures
				return nil, fmt.Errorf("read %s: %w", path, ErrGone)
			}
			return nil, fmt.Errorf("read %s: it has no line %q", path, n)
		}
	}
	return found, nil
}
