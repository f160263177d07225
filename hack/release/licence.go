package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// module is linked into a program; it has licences.
type module struct {
	path, version string
	licences      []string // SPDX names, sorted
	texts         []string // texts of licences and notices
}

func (m module) String() string { return m.path + " " + m.version }

// allowed are the licences that are compatible with Apache-2.0 and require only that their
// text is included.
func allowed() []string { return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"} }

// known is the minimum match of a text with a licence, in percent; the rest are names and
// years.
const known = 75

var errLicence = errors.New("its licence is not one that may be linked")

// judge returns the licences of a text, or an error if it is unknown.
func judge(text []byte) ([]string, error) {
	found := licensecheck.Scan(text)
	var names []string
	for _, m := range found.Match {
		// The appendix of Apache-2.0 on how to apply it.
		names = append(names, strings.TrimSuffix(m.ID, "-Header"))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 || found.Percent < known {
		return nil, fmt.Errorf("%w: the text is known by %.0f %% only (%s)", errLicence, found.Percent, strings.Join(names, ", "))
	}
	for _, n := range names {
		if !slices.Contains(allowed(), n) {
			return nil, fmt.Errorf("%w: %s; allowed are %s", errLicence, n, strings.Join(allowed(), ", "))
		}
	}
	return names, nil
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying)([.-].*)?$`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents)([.-].*)?$`)
	codeFile    = regexp.MustCompile(`(?i)\.(go|s|c|h)$`)
)

// read adds the licences and notices of one folder.
func (m *module) read(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		isLicence := licenceFile.MatchString(f.Name())
		if f.IsDir() || codeFile.MatchString(f.Name()) || !isLicence && !noticeFile.MatchString(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		if isLicence {
			names, err := judge(text)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", m, f.Name(), err)
			}
			m.licences = append(m.licences, names...)
		}
		if clean := strings.TrimSpace(string(text)); !slices.Contains(m.texts, clean) {
			m.texts = append(m.texts, clean)
		}
	}
	slices.Sort(m.licences)
	m.licences = slices.Compact(m.licences)
	return nil
}

// listed is the output of `go list` for a package.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version, Dir string }
	}
}

// linked returns the modules of a program with their licences: those at a module's root,
// and those in folders on the path to each linked package.
func (r *release) linked(ctx context.Context, p *program) ([]module, error) {
	tags := ""
	if p.mlx {
		tags = "mlx"
	}
	text, err := output(ctx, r.root, p.variables(), "go", "list", "-deps", "-tags", tags, "-json=ImportPath,Dir,Standard,Module", "./cmd/"+p.name)
	if err != nil {
		return nil, err
	}
	goroot, err := output(ctx, r.root, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := module{path: "std", version: strings.TrimPrefix(p.info.GoVersion, "go")}
	if err := std.read(strings.TrimSpace(goroot)); err != nil {
		return nil, err
	}
	all := map[string]*module{"std": &std}
	seen := map[string]bool{}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("what go list says: %w", err)
		}
		if l.Standard || l.Module == nil || l.Module.Main {
			continue
		}
		if err := addPackage(all, seen, l); err != nil {
			return nil, err
		}
	}
	return complete(all, p.info)
}

func addPackage(all map[string]*module, seen map[string]bool, l listed) error {
	if l.Module.Replace != nil {
		return fmt.Errorf("module %s is replaced: a release is made of published modules only", l.Module.Path)
	}
	m := all[l.Module.Path]
	if m == nil {
		m = &module{path: l.Module.Path, version: l.Module.Version}
		all[m.path] = m
	}
	for dir := l.Dir; ; dir = filepath.Dir(dir) {
		if !seen[dir] {
			seen[dir] = true
			if err := m.read(dir); err != nil {
				return err
			}
		}
		if dir == l.Module.Dir || len(dir) < len(l.Module.Dir) {
			return nil
		}
	}
}

// complete compares with the build info in the program: each module must have been found,
// and have a licence.
func complete(all map[string]*module, info *debug.BuildInfo) ([]module, error) {
	list := []module{*all["std"]}
	for _, d := range info.Deps {
		m := all[d.Path]
		if m == nil || m.version != d.Version {
			return nil, fmt.Errorf("%s %s is linked, and go list does not say so", d.Path, d.Version)
		}
		list = append(list, *m)
	}
	for _, m := range list {
		if len(m.licences) == 0 {
			return nil, fmt.Errorf("%s: %w: there is no LICENSE or COPYING", m, errLicence)
		}
	}
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

// libmlxParts are the third-party parts of libmlx. MLX's wheel includes the licences of
// itself and of metal-cpp; the others are compiled in.
//
//go:embed libmlx.txt
var libmlxParts []byte

// libmlx returns MLX with all its parts, from the SDK's folder.
func libmlx(sdk, version string) ([]module, error) {
	mlx := module{path: "mlx", version: version}
	files, err := filepath.Glob(filepath.Join(sdk, "*.dist-info", "licenses"))
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("MLX's licence is not in %s", sdk)
	}
	metal := module{path: "metal-cpp", version: "as in mlx " + version}
	if err := errors.Join(mlx.read(files[0]), metal.read(filepath.Join(sdk, "mlx", "include", "metal_cpp"))); err != nil {
		return nil, err
	}
	list := []module{metal, mlx}
	for part := range bytes.SplitSeq(libmlxParts, []byte("\n---\n")) {
		name, text, _ := strings.Cut(strings.TrimSpace(string(part)), "\n")
		m := module{path: name, version: "as in mlx " + version, texts: []string{strings.TrimSpace(text)}}
		if m.licences, err = judge([]byte(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", m, err)
		}
		list = append(list, m)
	}
	for _, m := range list {
		if len(m.licences) == 0 {
			return nil, fmt.Errorf("%s: %w: there is none", m, errLicence)
		}
	}
	return list, nil
}

// notice is the text that is shipped with programs: the authors and licences of the modules
// that are linked into them. A text that several share is included once.
func notice(names string, list []module) string {
	var b strings.Builder
	fmt.Fprintf(&b, "metalfleet (%s)\nLicensed under the Apache License, Version 2.0; see LICENSE.\n\nIt contains the following, under the licences below.\n\n", names)
	var texts []string
	of := map[string][]string{}
	for _, m := range list {
		fmt.Fprintf(&b, "  %s (%s)\n", m, strings.Join(m.licences, ", "))
		for _, t := range m.texts {
			if of[t] == nil {
				texts = append(texts, t)
			}
			of[t] = append(of[t], m.path)
		}
	}
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(of[t], "\n"), t)
	}
	return b.String()
}

// union of the modules of several programs, by path.
func union(lists ...[]module) []module {
	var all []module
	for _, l := range lists {
		for _, m := range l {
			i := slices.IndexFunc(all, func(o module) bool { return o.path == m.path && o.version == m.version })
			if i < 0 {
				all = append(all, m)
				continue
			}
			for _, t := range m.texts {
				if !slices.Contains(all[i].texts, t) {
					all[i].texts = append(slices.Clone(all[i].texts), t)
				}
			}
			all[i].licences = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(all[i].licences), m.licences...))))
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return all
}
