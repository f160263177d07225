package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The system libraries that are stubbed or left to the compiler.
const (
	libcxx    = "/usr/lib/libc++.1.dylib"
	libSystem = "/usr/lib/libSystem." // zig has a stub of its own
)

//go:embed libcxx.txt
var libcxxText string

// stubs maps the install name of a library to the names it offers.
type stubs map[string]map[string]bool

func (s stubs) add(library, name string) {
	if s[library] == nil {
		s[library] = map[string]bool{}
	}
	s[library][name] = true
}

// writeStubs writes, under out, text stubs of libc++ (lib/libc++.1.tbd) and of the
// libraries that Go's packages import on a Mac (lib and frameworks).
func writeStubs(mlx, packages, out string) error {
	library, err := readImage(mlx)
	if err != nil {
		return err
	}
	s := stubs{libcxx: offered(library)}
	if err := s.addImports(packages); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		to := filepath.Join(out, filepath.FromSlash(stubPath(name)))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("write stub: %w", err)
		}
		if err := os.WriteFile(to, []byte(stubText(name, s[name])), 0o644); err != nil {
			return fmt.Errorf("write stub: %w", err)
		}
	}
	return nil
}

// offered returns the names of libc++ that may be linked against: those that libmlx
// imports, and those of libcxx.txt. So no linked program needs a newer macOS than libmlx
// does.
func offered(mlx *image) map[string]bool {
	names := map[string]bool{}
	for _, i := range mlx.imports {
		if i.library == libcxx {
			names[i.name] = true
		}
	}
	for line := range strings.Lines(libcxxText) {
		if name, _, _ := strings.Cut(line, "#"); strings.TrimSpace(name) != "" {
			names[strings.TrimSpace(name)] = true
		}
	}
	return names
}

// addImports adds what the Go files of packages and of all they import name in
// cgo_import_dynamic: local name, name in the library, library.
func (s stubs) addImports(packages string) error {
	cmd := exec.Command("go", "list", "-deps", "-tags", "mlx", "-f", `{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}`, packages)
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1")
	cmd.Stderr = os.Stderr
	files, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list the Go files of %s for a Mac: %w", packages, err)
	}
	directive := regexp.MustCompile(`(?m)^//go:cgo_import_dynamic \S+ (\S+) "(/\S+)"$`)
	for file := range strings.Lines(string(files)) {
		text, err := os.ReadFile(strings.TrimSuffix(file, "\n"))
		if err != nil {
			return fmt.Errorf("read what Go imports: %w", err)
		}
		for _, m := range directive.FindAllSubmatch(text, -1) {
			if library := string(m[2]); !strings.HasPrefix(library, libSystem) {
				s.add(library, "_"+string(m[1]))
			}
		}
	}
	return nil
}

// stubPath is where a linker looks for a library: a framework under
// NAME.framework, libNAME.5.dylib by -lNAME; libc++ alone is named in full,
// because -lc++ would make zig build its own.
func stubPath(library string) string {
	base := path.Base(library)
	switch {
	case library == libcxx:
		return "lib/libc++.1.tbd"
	case strings.HasPrefix(library, "/usr/lib/"):
		name, _, _ := strings.Cut(base, ".")
		return "lib/" + name + ".tbd"
	}
	return "frameworks/" + base + ".framework/" + base + ".tbd"
}

// stubText is a stub in the text format of Apple's tapi, version 4.
func stubText(library string, names map[string]bool) string {
	return fmt.Sprintf(`--- !tapi-tbd
tbd-version: 4
targets: [ arm64-macos ]
install-name: '%s'
current-version: 1
compatibility-version: 1
exports:
  - targets: [ arm64-macos ]
    symbols: [ '%s' ]
...
`, library, strings.Join(slices.Sorted(maps.Keys(names)), "', '"))
}
