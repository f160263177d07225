package selftest

import (
	"fmt"
	"runtime"
)

// Machine describes this machine as names and values; unknown ones are left
// out.
func Machine() map[string]string {
	system, chip, memory := machine()
	facts := map[string]string{
		"system": system, "chip": chip, "architecture": runtime.GOARCH,
		"cpus": fmt.Sprint(runtime.NumCPU()), "go": runtime.Version(),
	}
	if memory > 0 {
		facts["memory"] = fmt.Sprint(memory)
	}
	for name, value := range facts {
		if value == "" {
			delete(facts, name)
		}
	}
	return facts
}
