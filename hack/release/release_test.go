//go:build !race

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestAVersionIsThatOfACommit(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for name, c := range map[string]struct{ asked, changes, want, fault string }{
		"none":                   {want: "v0.0.0-dev.g0123456789ab"},
		"none, with changes":     {changes: " M x", want: "v0.0.0-dev.g0123456789ab.changed"},
		"one":                    {asked: "v0.1.0", want: "v0.1.0"},
		"a candidate":            {asked: "v1.2.3-rc.1", want: "v1.2.3-rc.1"},
		"one, with changes":      {asked: "v0.1.0", changes: " M x", fault: "commit or stash"},
		"without a v":            {asked: "0.1.0", fault: "is no version"},
		"what no tag may hold":   {asked: "v0.1.0+build", fault: "is no version"},
		"what leads elsewhere":   {asked: "v0.1.0-../x", fault: "is no version"},
		"a number with a zero":   {asked: "v0.01.0", fault: "is no version"},
		"what git describe says": {asked: "0123456-dirty", fault: "is no version"},
	} {
		got, err := versionOf(c.asked, commit, c.changes)
		if c.fault == "" && (err != nil || got != c.want) || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if err == nil && !versions.MatchString(got) {
			t.Errorf("%s: %q is no version itself", name, got)
		}
	}
}

// gpl is the beginning of a file under the GPL, which licensecheck recognizes.
const gpl = `This program is free software: you can redistribute it and/or modify
it under the terms of the GNU General Public License as published by
the Free Software Foundation, either version 3 of the License, or
(at your option) any later version.

This program is distributed in the hope that it will be useful,
but WITHOUT ANY WARRANTY; without even the implied warranty of
MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the
GNU General Public License for more details.
`

func own(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestALicenceThatIsNotAllowedIsRefused(t *testing.T) {
	mit, _, _ := strings.Cut(string(libmlxParts), "\n---\n")
	for name, c := range map[string]struct {
		text string
		want []string // nil for an error
	}{
		"ours":                 {text: own(t), want: []string{"Apache-2.0"}},
		"MIT":                  {text: mit, want: []string{"MIT"}},
		"two that are allowed": {text: own(t) + "\n" + mit, want: []string{"Apache-2.0", "MIT"}},
		"the GPL":              {text: gpl, want: nil},
		"MIT and the GPL":      {text: mit + gpl, want: nil},
		"an unknown licence":   {text: "You may run this on Tuesdays, if you are kind to your cousins and to their cats.", want: nil},
		"MIT with more terms":  {text: mit + strings.Repeat("And you shall not use it to compete with us in any field of endeavour. ", 60), want: nil},
		"nothing":              {want: nil},
	} {
		got, err := judge([]byte(c.text))
		if !slices.Equal(got, c.want) || (c.want == nil) != errors.Is(err, errLicence) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestWhatLiesBesideALinkedPackageCounts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE": own(t), "NOTICE": "made by us", "license.go": "package m // GPL", "sub/LICENSE.md": gpl, "other/COPYING": gpl,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	linked := func(sub string) (map[string]*module, error) {
		all := map[string]*module{}
		l := listed{Dir: filepath.Join(dir, sub)}
		l.Module = &struct {
			Path, Version, Dir string
			Main               bool
			Replace            *struct{ Path, Version, Dir string }
		}{Path: "example.org/m", Version: "v1.0.0", Dir: dir}
		return all, addPackage(all, map[string]bool{}, l)
	}
	all, err := linked("good/inner")
	if errors.Is(err, os.ErrNotExist) {
		err = errors.Join(os.MkdirAll(filepath.Join(dir, "good/inner"), 0o755))
		if err == nil {
			all, err = linked("good/inner")
		}
	}
	if m := all["example.org/m"]; err != nil || !slices.Equal(m.licences, []string{"Apache-2.0"}) || !slices.Contains(m.texts, "made by us") || len(m.texts) != 2 {
		t.Errorf("%+v, %v", all["example.org/m"], err)
	}
	if _, err := linked("sub"); !errors.Is(err, errLicence) || !strings.Contains(err.Error(), "example.org/m v1.0.0: LICENSE.md") {
		t.Errorf("a package under the GPL: %v", err)
	}
}

func TestEveryModuleThatIsLinkedIsKnown(t *testing.T) {
	info := &debug.BuildInfo{Deps: []*debug.Module{{Path: "a", Version: "v1"}}}
	std := &module{path: "std", version: "1", licences: []string{"BSD-3-Clause"}}
	for name, c := range map[string]struct {
		a    *module
		want string
	}{
		"known":           {a: &module{path: "a", version: "v1", licences: []string{"MIT"}}, want: ""},
		"not listed":      {want: "go list does not say so"},
		"another version": {a: &module{path: "a", version: "v2", licences: []string{"MIT"}}, want: "go list does not say so"},
		"no licence":      {a: &module{path: "a", version: "v1"}, want: "there is no LICENSE"},
	} {
		all := map[string]*module{"std": std}
		if c.a != nil {
			all["a"] = c.a
		}
		list, err := complete(all, info)
		if c.want == "" && (err != nil || len(list) != 2) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
}

func TestAFolderThatIsNoReleaseIsNotCleared(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := clear(dir); err == nil || !strings.Contains(err.Error(), "name another folder") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "thesis.tex")); err != nil {
		t.Fatal("it was removed")
	}
	if err := os.WriteFile(filepath.Join(dir, sums), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := clear(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestTheOldestMacOSIsThatOfTheScript(t *testing.T) {
	b, err := os.ReadFile("../../config/macos/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^oldest=(\d+)$`).FindSubmatch(b); m == nil || string(m[1]) != strconv.Itoa(oldest) {
		t.Errorf("install.sh: %q, here %d", m, oldest)
	}
}

func TestTheMacsArchiveHoldsWhatInstallShWants(t *testing.T) {
	b, err := os.ReadFile("../../config/macos/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^  for f in (VERSION .*); do$`).FindStringSubmatch(string(b))
	if m == nil {
		t.Fatal("install.sh looks for no files in its own folder")
	}
	list := strings.NewReplacer(`"$label.plist"`, "dev.metalfleet.agent.plist", `"$limit_label.plist"`, "dev.metalfleet.wired-limit.plist").Replace(m[1])
	held := macNames()
	for _, f := range strings.Fields(list) {
		if f != sums && !slices.Contains(held, f) {
			t.Errorf("install.sh wants %s, which the archive does not hold", f)
		}
	}
}
