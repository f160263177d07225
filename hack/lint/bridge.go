package lint

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// bridgeHeader declares what the bridge to MLX offers to Go.
const bridgeHeader = "metal/mlx/bridge.h"

// isBridge reports whether a file is C++ source of the bridge.
func isBridge(name string) bool {
	ok, _ := path.Match("metal/mlx/*.cpp", name)
	return ok
}

// declaredEntryPoints lists the functions that the bridge's header declares.
func declaredEntryPoints(header string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\w+ \*?(bridge_\w+)\(`).FindAllStringSubmatch(header, -1) {
		names = append(names, m[1])
	}
	return names
}

// entryPoint finds the functions that the bridge offers, with the beginning of
// their bodies. It does not find a function on a single line.
func entryPoint() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\w+ \*?(bridge_\w+)\(([^)]*)\) \{\n(.*)\n((?:.*\n)?)`)
}

// definedEntryPoints lists the functions of a file that entryPoint finds.
func definedEntryPoints(text string) []string {
	var names []string
	for _, m := range entryPoint().FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// unguarded lists the entry points in a file of the bridge that do not run in
// guarded, which keeps other threads out and exceptions in.
func unguarded(file, text string) []string {
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
			out = append(out, fmt.Sprintf("%s: %s does not begin with guarded or making: an exception could leave it, or another thread enter", file, name))
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
