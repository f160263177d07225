// Command peersbugs keeps docs/peers-bugs.md: for each defect of another system
// that taught us something, the tests that show it is not ours.
//
// It owns the list of defects (bugs.go), each with its tests by folder and name,
// or with a word where no test can be: "not built yet" and why. It refuses a
// defect without either, a test that is not there, and a page that is not what it
// would write.
//
//	go run ./hack/peersbugs            checks list and page, then runs exactly those tests (make test-peers-bugs)
//	go run ./hack/peersbugs -write     writes the page
//	go run ./hack/peersbugs -check     checks alone
//
// Start reading at check.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// bug is one defect of others.
type bug struct {
	// part of ours that it would be in: a headline of the page.
	part string
	// saw is who had it, and what what happened.
	saw, what string
	// tests as "folder.TestName".
	tests []string
	// word says why there is no test.
	word string
}

func main() {
	root := flag.String("root", ".", "root of the repository")
	write := flag.Bool("write", false, "write the page instead of checking it")
	only := flag.Bool("check", false, "check list and page, and run nothing")
	timeout := flag.String("timeout", "20m", "for the tests of one folder")
	flag.Parse()
	if err := run(*root, *write, *only, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "peersbugs:", err)
		os.Exit(1)
	}
}

func run(root string, write, only bool, timeout string) error {
	if err := check(bugs(), func(folder, name string) bool { return has(root, folder, name) }); err != nil {
		return err
	}
	file := filepath.Join(root, "docs", "peers-bugs.md")
	text := page(bugs())
	if write {
		return os.WriteFile(file, text, 0o644)
	}
	old, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(old, text) {
		return errors.Join(err, errors.New("docs/peers-bugs.md is not what its list says; run `go run ./hack/peersbugs -write`"))
	}
	if only {
		return nil
	}
	return runTests(root, bugs(), timeout)
}

// check wants each defect to have tests that are there, or a word.
func check(list []bug, there func(folder, name string) bool) error {
	var errs []error
	for _, b := range list {
		switch {
		case len(b.tests) == 0 && b.word == "":
			errs = append(errs, fmt.Errorf("%s, %q: no test and no word", b.saw, b.what))
		case len(b.tests) > 0 && b.word != "":
			errs = append(errs, fmt.Errorf("%s, %q: it has tests, so take its word out", b.saw, b.what))
		}
		for _, t := range b.tests {
			if folder, name, ok := strings.Cut(t, "."); !ok || !there(folder, name) {
				errs = append(errs, fmt.Errorf("%s, %q: there is no test %s", b.saw, b.what, t))
			}
		}
	}
	return errors.Join(errs...)
}

// has says whether a folder has a test of that name.
func has(root, folder, name string) bool {
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		return false
	}
	declares := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\)`)
	return slices.ContainsFunc(files, func(file string) bool {
		b, err := os.ReadFile(file)
		return err == nil && declares.Match(b)
	})
}

// page is docs/peers-bugs.md.
func page(list []bug) []byte {
	var b bytes.Buffer
	b.WriteString("# Bugs of others that are our regression tests\n\n<!-- written by `go run ./hack/peersbugs -write` from hack/peersbugs/bugs.go -->\n\n" +
		"What broke in other systems that serve models, and the tests that show it does not break here. `make test-peers-bugs` runs\nexactly these, and fails where a line has none.\n")
	part := ""
	for _, x := range list {
		if x.part != part {
			part = x.part
			fmt.Fprintf(&b, "\n## %s\n\n| seen in | what happened | tests |\n|---|---|---|\n", part)
		}
		answer := x.word
		if len(x.tests) > 0 {
			var named []string
			for _, t := range x.tests {
				folder, name, _ := strings.Cut(t, ".")
				named = append(named, "`"+name+"` ("+folder+")")
			}
			answer = strings.Join(named, "; ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", x.saw, x.what, answer)
	}
	return b.Bytes()
}

// chosen are the tests of each folder.
func chosen(list []bug) map[string][]string {
	out := map[string][]string{}
	for _, b := range list {
		for _, t := range b.tests {
			folder, name, _ := strings.Cut(t, ".")
			if !slices.Contains(out[folder], name) {
				out[folder] = append(out[folder], name)
			}
		}
	}
	return out
}

// runTests runs them, and wants each to have been run and to pass.
func runTests(root string, list []bug, timeout string) error {
	var errs []error
	all := chosen(list)
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		names := all[folder]
		cmd := exec.Command("go", "test", "-count=1", "-v", "-timeout", timeout, "-run", "^("+strings.Join(names, "|")+")$", "./"+folder)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		missing := notPassed(string(out), names)
		verdict := fmt.Sprintf("%d passed", len(names))
		if err != nil || len(missing) > 0 {
			verdict = "FAILED"
			errs = append(errs, fmt.Errorf("%s: %w; not passed: %v\n%s", folder, errors.Join(err, errors.New("tests")), missing, tail(out)))
		}
		fmt.Printf("   %-40s %s\n", folder, verdict)
	}
	return errors.Join(errs...)
}

// notPassed are those of which the output does not say that they passed: a test
// that was skipped showed nothing.
func notPassed(output string, names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.Contains(output, "--- PASS: "+name+" (") })
}

func tail(b []byte) string {
	const most = 4000
	return string(b[max(0, len(b)-most):])
}
