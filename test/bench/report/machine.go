package report

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// Machine is where a measurement ran. Fields that the system does not report
// stay empty.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	// MemoryBytes is the size of the machine's memory.
	MemoryBytes int64  `json:"memoryBytes,omitempty"`
	Kernel      string `json:"kernel,omitempty"`
	Go          string `json:"go"`
	// Load is the load average over the minute before the measurement. More than
	// a fraction means that other programs disturbed it.
	Load float64 `json:"load"`
}

// ThisMachine describes the machine that this program runs on.
func ThisMachine() Machine {
	m := Machine{CPU: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	if runtime.GOOS == "linux" {
		m.readLinux(os.ReadFile)
	} else {
		m.readDarwin(sysctl)
	}
	return m
}

func (m *Machine) readLinux(read func(path string) ([]byte, error)) {
	if name := field(read, "/proc/cpuinfo", "model name"); name != "" {
		m.CPU = name
	}
	if kib, err := strconv.ParseInt(strings.TrimSuffix(field(read, "/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryBytes = kib << 10
	}
	if b, err := read("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + string(bytes.TrimSpace(b))
	}
	if b, err := read("/proc/loadavg"); err == nil {
		m.Load = first(string(b))
	}
}

// field returns the value of the first "key: value" line of a file.
func field(read func(string) ([]byte, error), path, key string) string {
	b, err := read(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// readDarwin asks sysctl for each field.
func (m *Machine) readDarwin(ask func(name string) string) {
	if name := ask("machdep.cpu.brand_string"); name != "" {
		m.CPU = name
	}
	if n, err := strconv.ParseInt(ask("hw.memsize"), 10, 64); err == nil {
		m.MemoryBytes = n
	}
	if v := ask("kern.osrelease"); v != "" {
		m.Kernel = "Darwin " + v
	}
	m.Load = first(strings.Trim(ask("vm.loadavg"), "{ }"))
}

func sysctl(name string) string {
	b, err := exec.Command("sysctl", "-n", name).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// first returns the first of several numbers, or 0.
func first(s string) float64 {
	f := strings.Fields(s)
	if len(f) == 0 {
		return 0
	}
	v, err := strconv.ParseFloat(f[0], 64)
	if err != nil {
		return 0
	}
	return v
}

// String is the machine in one line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)
	if m.MemoryBytes > 0 {
		s += fmt.Sprintf(", %.1f GB", float64(m.MemoryBytes)/1e9)
	}
	if m.Kernel != "" {
		s += ", " + m.Kernel
	}
	return s + fmt.Sprintf(", %s, load %.1f before", m.Go, m.Load)
}
