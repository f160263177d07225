package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc: the kernel's USER_HZ, which is
// 100 on every machine that Go runs on.
const tick = 10 * time.Millisecond

var errNoFigure = errors.New("the file has no such figure")

// processorTime of a proxy and its children, so far; zero where its pid is unknown.
func (t *target) processorTime() (time.Duration, error) {
	sum := int64(0)
	err := t.family(func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return err
		}
		n, err := ticksIn(string(b))
		sum += n
		return err
	})
	return time.Duration(sum) * tick, err
}

// ticksIn are those of a line of /proc/PID/stat: user's and system's.
func ticksIn(stat string) (int64, error) {
	// The name may hold anything; what follows it is numbers.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12
	if len(fields) <= system {
		return 0, fmt.Errorf("processor time: %w", errNoFigure)
	}
	u, err := strconv.ParseInt(fields[user], 10, 64)
	s, e := strconv.ParseInt(fields[system], 10, 64)
	return u + s, errors.Join(err, e)
}

// memory in bytes that a proxy and its children hold, what they share counted
// once.
func (t *target) memory() (int64, error) {
	sum := int64(0)
	err := t.family(func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			return err
		}
		n, err := pssIn(string(b))
		sum += n
		return err
	})
	return sum, err
}

// pssIn is the figure of a /proc/PID/smaps_rollup.
func pssIn(rollup string) (int64, error) {
	for line := range strings.Lines(rollup) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("memory: %w", errNoFigure)
}

// family calls f with the folder of a proxy and those of its children.
func (t *target) family(f func(dir string) error) error {
	if t.pid == 0 {
		return nil
	}
	own := filepath.Join("/proc", strconv.Itoa(t.pid))
	if err := f(own); err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	b, err := os.ReadFile(filepath.Join(own, "task", strconv.Itoa(t.pid), "children"))
	if err != nil {
		return fmt.Errorf("%s: %w", t.name, err)
	}
	for child := range strings.FieldsSeq(string(b)) {
		if err := f(filepath.Join("/proc", child)); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

// allowedCores are those that this process may run on.
func allowedCores() ([]string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("cores: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return coresIn(strings.TrimSpace(list))
		}
	}
	return nil, fmt.Errorf("cores: %w", errNoFigure)
}

// coresIn reads a list such as 0-2,5.
func coresIn(list string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		low, high, is := strings.Cut(part, "-")
		if !is {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, e := strconv.Atoi(high)
		if err := errors.Join(err, e); err != nil {
			return nil, fmt.Errorf("list of cores %q: %w", list, err)
		}
		for n := from; n <= to; n++ {
			out = append(out, strconv.Itoa(n))
		}
	}
	return out, nil
}
