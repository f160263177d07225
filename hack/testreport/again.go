package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// most is how many tests may be looked at again: more are no accident.
const most = 2

// runner runs one top-level test of a package alone with a suite's command, and
// returns what it printed and whether it passed.
type runner func(command, pkg, test string) (string, bool)

func alone(command, pkg, test string) (string, bool) {
	args := append(strings.Fields(command), "-run", "^"+test+"$", pkg)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	return string(out), err == nil
}

// suspect is a top-level test that failed, of a suite that tells how to run it.
type suspect struct{ command, pkg, test string }

// suspects are the failures that may turn out to be of the company.
type suspects struct {
	tests  []suspect
	guilty bool // one failed in a way that no second run can acquit
}

// grave is what a second run cannot take back: a race was seen, a program died.
var grave = []string{"DATA RACE", "panic:", "fatal error:", "test timed out"}

func (s *suspects) add(command string, e event, output fmt.Stringer) {
	top, _, _ := strings.Cut(e.Test, "/")
	if one := (suspect{command, e.Package, top}); !slices.Contains(s.tests, one) {
		s.tests = append(s.tests, one)
	}
	s.guilty = s.guilty || command == "" || isGrave(output)
}

// addPackage is told of each package that failed and how many tests ended in it.
func (s *suspects) addPackage(e event, ended int, output fmt.Stringer) {
	of := func(one suspect) bool { return one.pkg == e.Package }
	s.guilty = s.guilty || ended == 0 || isGrave(output) || !slices.ContainsFunc(s.tests, of)
}

func isGrave(output fmt.Stringer) bool {
	b, _ := output.(*strings.Builder)
	return b != nil && slices.ContainsFunc(grave, func(word string) bool { return strings.Contains(b.String(), word) })
}

// acquit runs what failed once more, alone, and returns what is to be said of it.
// The run has not failed if every failure was of the company.
func (r *report) acquit(alone runner) string {
	s := r.suspects
	if len(s.tests) == 0 || len(s.tests) > most || s.guilty {
		return ""
	}
	var flaky []string
	for _, one := range s.tests {
		output, passed := alone(one.command, one.pkg, one.test)
		if !passed {
			fmt.Fprintf(r.out, "%s of %s fails alone too:\n%s", one.test, one.pkg, output)
			return ""
		}
		fmt.Fprintf(r.out, "FLAKY %s of %s: it failed beside others and passes alone; find out why (CONTRIBUTING.md)\n", one.test, one.pkg)
		flaky = append(flaky, one.test)
	}
	r.broken = nil
	return ", FLAKY: " + strings.Join(flaky, ", ")
}
