package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// declared finds the tests of a test file.
func declared() *regexp.Regexp { return regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`) }

// named wants each entry's -run to name a test of its package: one that has
// another name meanwhile would be noticed only by the part that comes by it.
func named(root string, entries []entry) error {
	byPackage := map[string][]string{}
	var errs []error
	for _, e := range entries {
		names, ok := byPackage[e.pkg]
		if !ok {
			names = testsOf(filepath.Join(root, e.pkg))
			byPackage[e.pkg] = names
		}
		if err := e.runs(names); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %s: %w", e.line, e.name, err))
		}
	}
	return errors.Join(errs...)
}

// runs wants the entry's -run, up to its first slash, to match one of names.
func (e entry) runs(names []string) error {
	pattern, _, _ := strings.Cut(e.args[1], "/")
	run, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("-run %s: %w", e.args[1], err)
	}
	for _, n := range names {
		if run.MatchString(n) {
			return nil
		}
	}
	return fmt.Errorf("%s has no test called %s: has it another name now?", e.pkg, pattern)
}

func testsOf(dir string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is well formed
	var names []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // its tests are then not found, which is said
		}
		for _, m := range declared().FindAllStringSubmatch(string(b), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
