package lint

import (
	"fmt"
	"regexp"
	"strings"
)

// bridgeFile is the one file of C++.
const bridgeFile = "metal/mlx/bridge.cpp"

// entryPoint finds the functions that a bridge offers, with the beginning of
// their bodies.
func entryPoint() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\w+ \*?(bridge_\w+)\(([^)]*)\) \{\n(.*)\n((?:.*\n)?)`)
}

// unguarded lists the entry points of a bridge that do not go through guarded,
// which keeps foreign threads out and exceptions in, with their first
// statement.
func unguarded(text string) []string {
	var out []string
	for _, m := range entryPoint().FindAllStringSubmatch(text, -1) {
		name, arguments, first := m[1], m[2], strings.TrimSpace(m[3])
		switch {
		case strings.HasPrefix(first, "return guarded<") && strings.Contains(first, ">(owner, "),
			strings.HasPrefix(first, "return making(owner, "),
			name == "bridge_attach" && strings.HasPrefix(first, "return guarded<bridge_attached>(become_owner(), "):
		case !strings.Contains(arguments, "uint64_t owner") && first == "try {":
			// It touches no framework; it still lets nothing out.
		default:
			out = append(out, fmt.Sprintf("%s: %s does not begin with guarded or making: an exception could leave it, or another thread enter", bridgeFile, name))
		}
	}
	return out
}

// poolClears lists the lines that empty a framework's pool.
func poolClears(name, text string) []string {
	var out []string
	for i, line := range strings.Split(text, "\n") {
		if strings.Contains(line, "clear_"+"cache(") {
			out = append(out, fmt.Sprintf("%s:%d: empties the framework's pool: only bridge_trim may, behind synchronize", name, i+1))
		}
	}
	return out
}
