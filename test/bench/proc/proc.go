// Package proc reads what Linux reports about processes, memory, cores and the
// page cache.
//
// It owns the parsing of /proc and the calls that only Linux has. It refuses to
// guess: on another system, or if a figure is missing, functions return an
// error.
//
// Start reading at Footprint.
package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Footprint returns Pss_Anon + Pss_Shmem + SwapPss of a process in bytes: what
// it holds alone, without mapped files.
func Footprint(pid int) (int64, error) {
	return kilobytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss_Anon", "Pss_Shmem", "SwapPss")
}

// Peak returns VmHWM of a process in bytes: the most that was ever resident,
// including pages of programs and libraries.
func Peak(pid int) (int64, error) { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmHWM") }

// Shared returns the proportional set size, in bytes, of a process and its
// children: memory that they share counts once.
func Shared(pid int) (int64, error) {
	return ofFamily(pid, func(pid string) (int64, error) { return kilobytes("/proc/"+pid+"/smaps_rollup", "Pss") })
}

// Available returns how many bytes programs can still allocate without swapping.
func Available() (int64, error) { return kilobytes("/proc/meminfo", "MemAvailable") }

// tick is the unit of processor time in /proc: USER_HZ, which is 100 on every
// machine that Go runs on.
const tick = 10 * time.Millisecond

// CPUTime returns the processor time that a process and its children have used.
func CPUTime(pid int) (time.Duration, error) {
	n, err := ofFamily(pid, func(pid string) (int64, error) {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return 0, err
		}
		return ticks(string(b))
	})
	return time.Duration(n) * tick, err
}

// Cores returns the cores that this process may run on.
func Cores() ([]int, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("cores: %w", err)
	}
	_, list, ok := strings.Cut(string(b), "\nCpus_allowed_list:")
	if !ok {
		return nil, errors.New("cores: /proc/self/status has no Cpus_allowed_list")
	}
	list, _, _ = strings.Cut(list, "\n")
	return coreList(strings.TrimSpace(list))
}

// Pin restricts all threads of this process to some cores, and with them the
// programs that it starts from then on.
func Pin(cores []int) error {
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(cores), " ", ","), "[]")
	if out, err := exec.Command("taskset", "--all-tasks", "--cpu-list", "--pid", list, strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
		return fmt.Errorf("pin this process to cores %s: %w\n%s", list, err, out)
	}
	runtime.GOMAXPROCS(len(cores))
	return nil
}

// Heap returns the heap of this process in bytes, after a collection.
func Heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// kilobytes adds fields of a file of "key: n kB" lines, in bytes.
func kilobytes(path string, keys ...string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	fields := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read memory: %s: %q: %w", path, line, err)
		}
		fields[strings.TrimSuffix(f[0], ":")] = n << 10
	}
	var sum int64
	for _, k := range keys {
		n, ok := fields[k]
		if !ok {
			return 0, fmt.Errorf("read memory: %s has no %s", path, k)
		}
		sum += n
	}
	return sum, nil
}

// ticks returns the 14th and the 15th field of a stat file, the processor time
// in user and kernel mode. The second field is the program's name in brackets,
// which may contain blanks and brackets.
func ticks(stat string) (sum int64, err error) {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	for _, i := range []int{14 - 3, 15 - 3} {
		if i >= len(f) {
			return 0, fmt.Errorf("processor time: %q is too short", stat)
		}
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time: %q: %w", stat, err)
		}
		sum += n
	}
	return sum, nil
}

// ofFamily adds a figure of a process and its children.
func ofFamily(pid int, figure func(pid string) (int64, error)) (int64, error) {
	own := strconv.Itoa(pid)
	children, err := os.ReadFile("/proc/" + own + "/task/" + own + "/children")
	if err != nil {
		return 0, fmt.Errorf("children of process %d: %w", pid, err)
	}
	var sum int64
	for _, p := range append(strings.Fields(string(children)), own) {
		n, err := figure(p)
		if err != nil {
			return 0, fmt.Errorf("process %s: %w", p, err)
		}
		sum += n
	}
	return sum, nil
}

// coreList parses a list such as 0-2,5.
func coreList(list string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		low, high, ok := strings.Cut(part, "-")
		if !ok {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, e := strconv.Atoi(high)
		if err := errors.Join(err, e); err != nil {
			return nil, fmt.Errorf("list of cores %q: %w", list, err)
		}
		for n := from; n <= to; n++ {
			out = append(out, n)
		}
	}
	return out, nil
}
