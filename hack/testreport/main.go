// Command testreport reads `go test -json` and prints what a reader needs: one
// line per package, the whole output of each test that failed, and at the end
// how many tests ran, so that a run that tested nothing cannot look green.
//
// A suite that says so has its failures looked at once more, when all else is
// over: a test that failed in company and passes alone, five times of five, is
// flaky. That is a defect too and is printed as one, but it does not hide that
// everything else passed.
//
// It refuses (exit 1) failures, output it cannot read, and a run without any
// test. Start reading at report.add, then again.go.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Stdin, os.Stdout, alone); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
}

// event is one line of go test -json, or of hack/test.sh about a suite of tests:
// "suite" begins one, Output is the command that runs one of its tests alone, if
// any; "ended" ends it, Elapsed is the exit status.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
	// ImportPath says which package did not compile.
	ImportPath string
}

// report counts as it reads.
type report struct {
	out                     io.Writer
	passed, failed, skipped int
	packages, untested      int
	output                  map[string]*strings.Builder // of tests that have not ended
	ran                     map[string]int              // tests by package
	broken                  []string                    // names of what failed
	again                   string                      // the command of the suite that runs
	suite                   int                         // failures when it began
	suspects                suspects
}

func run(in io.Reader, out io.Writer, alone runner) error {
	r := &report{out: out, output: map[string]*strings.Builder{}, ran: map[string]int{}}
	lines := bufio.NewReader(in)
	began := time.Now()
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read: %w", err)
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			fmt.Fprint(out, string(line)) // go itself speaks, not a test
			continue
		}
		r.add(e)
	}
	flaky := r.acquit(alone)
	fmt.Fprintf(out, "tests: %d passed, %d failed, %d skipped in %d packages (%d without tests), %s%s\n",
		r.passed, r.failed, r.skipped, r.packages, r.untested, time.Since(began).Round(time.Second), flaky)
	switch {
	case len(r.broken) > 0:
		return fmt.Errorf("failed: %s", strings.Join(r.broken, ", "))
	case r.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		b := r.output[key]
		if b == nil {
			b = &strings.Builder{}
			r.output[key] = b
		}
		b.WriteString(e.Output)
	case "suite":
		r.again, r.suite = e.Output, len(r.broken)
	case "ended":
		if e.Elapsed != 0 && len(r.broken) == r.suite {
			r.broken = append(r.broken, fmt.Sprintf("a suite of tests (it ended with status %.0f)", e.Elapsed))
			r.suspects.guilty = true
		}
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.broken = append(r.broken, e.ImportPath+" (does not compile)")
		r.suspects.guilty = true
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e, key)
		} else {
			r.endTest(e, key)
		}
		delete(r.output, key)
	}
}

func (r *report) endTest(e event, key string) {
	r.ran[e.Package]++
	switch e.Action {
	case "pass":
		r.passed++
	case "skip":
		r.skipped++
		r.print(key) // with its reason
	case "fail":
		r.failed++
		r.broken = append(r.broken, e.Test)
		r.suspects.add(r.again, e, r.output[key])
		r.print(key)
	}
}

func (r *report) endPackage(e event, key string) {
	r.packages++
	n := r.ran[e.Package]
	if n == 0 && e.Action != "fail" {
		r.untested++
		return
	}
	if e.Action == "fail" {
		r.print(key) // a panic or a time limit is the package's output
		// A test binary that died in the middle leaves tests without an end.
		for name, b := range r.output {
			if strings.HasPrefix(name, e.Package+" ") && name != key {
				fmt.Fprintf(r.out, "did not end: %s\n%s", name, b)
				r.suspects.guilty = true
			}
		}
		r.broken = append(r.broken, e.Package)
		r.suspects.addPackage(e, n, r.output[key])
	}
	fmt.Fprintf(r.out, "%-4s %4d tests %7.1f s  %s\n", e.Action, n, e.Elapsed, e.Package)
}

func (r *report) print(key string) {
	if b := r.output[key]; b != nil {
		fmt.Fprint(r.out, b)
	}
}
