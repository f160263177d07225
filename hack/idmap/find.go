package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// named is the beginning of a test's name that holds ids: TestP4..., or
// TestP9P10... for several.
var (
	named = regexp.MustCompile(`^Test((?:(?:[PMGKBX][0-9]{1,2}|A1[4-8]|A2[89]|Invariant[0-9]{1,2}))+)(?:[A-Z_]|$)`)
	each  = regexp.MustCompile(`[PMGKBX][0-9]{1,2}|A1[4-8]|A2[89]|Invariant[0-9]{1,2}`)
)

// rooms are the folders whose tests are looked at.
var rooms = []string{"agent", "api", "controllers", "gateway", "metal", "cmd", "hack"}

// find lists the tests of each id as "room.TestName", sorted. A test that
// is skipped unconditionally would be found too: hack/lint forbids those.
func find(root string) (map[string][]string, error) {
	found := map[string][]string{}
	for _, room := range rooms {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return filepath.SkipDir
			case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
				return nil
			}
			return findIn(root, path, found)
		})
		if err != nil {
			return nil, fmt.Errorf("look for tests: %w", err)
		}
	}
	for id := range found {
		slices.Sort(found[id])
	}
	return found, nil
}

func findIn(root, path string, found map[string][]string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, err := filepath.Rel(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil {
			continue
		}
		for _, id := range idsOf(f.Name.Name) {
			found[id] = append(found[id], filepath.ToSlash(dir)+"."+f.Name.Name)
		}
	}
	return nil
}

// idsOf reads the ids at the beginning of a test's name.
func idsOf(name string) []string {
	m := named.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	return each.FindAllString(m[1], -1)
}
