package report

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
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

// thisMachine describes the machine that this program runs on.
func thisMachine() Machine {
	m := Machine{CPU: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version()}
	var about string
	if runtime.GOOS == "linux" {
		for _, path := range []string{"/proc/cpuinfo", "/proc/meminfo", "/proc/sys/kernel/osrelease", "/proc/loadavg"} {
			b, _ := os.ReadFile(path) // a missing file is a missing field
			about += path + ": " + string(b)
		}
	} else {
		b, _ := exec.Command("sysctl", "machdep.cpu.brand_string", "hw.memsize", "kern.osrelease", "vm.loadavg").Output() // the same
		about = string(b)
	}
	m.parse(about)
	return m
}

// parse finds the fields in the files of Linux, or in the output of sysctl on
// macOS.
func (m *Machine) parse(about string) {
	field := func(pattern string) string {
		found := regexp.MustCompile(`(?m)^(?:` + pattern + `)[^\S\n]*(\S.*)$`).FindStringSubmatch(about)
		if found == nil {
			return ""
		}
		return strings.TrimSpace(found[1])
	}
	if cpu := field(`model name\s*:|machdep\.cpu\.brand_string:`); cpu != "" {
		m.CPU = cpu
	}
	if n, err := strconv.ParseInt(field(`hw\.memsize:`), 10, 64); err == nil {
		m.MemoryBytes = n
	}
	if n, err := strconv.ParseInt(strings.TrimSuffix(field(`(?:/proc/meminfo: )?MemTotal:`), " kB"), 10, 64); err == nil {
		m.MemoryBytes = n << 10
	}
	if v := field(`/proc/sys/kernel/osrelease:`); v != "" {
		m.Kernel = "Linux " + v
	}
	if v := field(`kern\.osrelease:`); v != "" {
		m.Kernel = "Darwin " + v
	}
	load, _, _ := strings.Cut(field(`/proc/loadavg:|vm\.loadavg: \{`), " ")
	m.Load, _ = strconv.ParseFloat(load, 64) // 0 without one
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
