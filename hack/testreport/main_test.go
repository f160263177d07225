package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestReportsWhatRanAndRefusesAnEmptyRun(t *testing.T) {
	cases := map[string]struct {
		in   string
		says []string
		err  string
	}{
		"a passing package": {
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"pass","Package":"p","Elapsed":0.2}
`,
			says: []string{"pass    1 tests", "tests: 1 passed, 0 failed, 0 skipped in 1 packages"},
		},
		"a failing test shows its output": {
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`,
			says: []string{"got 1, want 2", "1 failed"},
			err:  "failed: TestA, p",
		},
		"a package that does not compile": {
			in: `{"ImportPath":"p","Action":"build-output","Output":"syntax error\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","FailedBuild":"p"}
`,
			says: []string{"syntax error"},
			err:  "does not compile",
		},
		"a binary that died in the middle": {
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}
`,
			says: []string{"panic: test timed out"},
			err:  "failed: p",
		},
		"a suite that failed in silence": {
			in: `{"Action":"suite"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}
{"Action":"ended","Elapsed":2}
`,
			err: "failed: a suite of tests (it ended with status 2)",
		},
		"nothing at all":        {in: "", says: []string{"0 passed"}, err: "no test ran"},
		"packages, but no test": {in: `{"Action":"skip","Package":"p"}` + "\n", says: []string{"1 without tests"}, err: "no test ran"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(c.in), &out, func(string, string, string) (string, bool) { panic("nothing is run again") })
			for _, want := range c.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the report does not say %q:\n%s", want, out.String())
				}
			}
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// what a suite prints whose command says how to run a test again; lines come
// between TestA's beginning and its end.
func suite(command, output string, failed ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"Action":"suite","Output":%q}`+"\n", command)
	for _, f := range failed {
		fmt.Fprintf(&b, `{"Action":"output","Package":"p","Test":%q,"Output":%q}`+"\n", f, output)
		fmt.Fprintf(&b, `{"Action":"fail","Package":"p","Test":%q}`+"\n", f)
	}
	b.WriteString(`{"Action":"pass","Package":"p","Test":"TestFine"}` + "\n" + `{"Action":"fail","Package":"p"}` + "\n" + `{"Action":"ended","Elapsed":1}` + "\n")
	return b.String()
}

func TestOnlyAFailureOfCompanyIsForgiven(t *testing.T) {
	build := `{"Action":"build-fail","ImportPath":"q"}` + "\n" + `{"Action":"fail","Package":"q"}` + "\n"
	for name, c := range map[string]struct {
		in     string
		alone  bool // whether a test passes alone
		ran    []string
		passes bool
	}{
		"alone it passes":              {suite("go test", "got 1", "TestA/x", "TestA"), true, []string{"go test p TestA"}, true},
		"alone it fails":               {suite("go test", "got 1", "TestA"), false, []string{"go test p TestA"}, false},
		"two":                          {suite("go test", "got 1", "TestA", "TestB"), true, []string{"go test p TestA", "go test p TestB"}, true},
		"three are no accident":        {suite("go test", "got 1", "TestA", "TestB", "TestC"), true, nil, false},
		"a race is a race":             {suite("go test", "WARNING: DATA RACE", "TestA"), true, nil, false},
		"a panic":                      {suite("go test", "panic: index out of range", "TestA"), true, nil, false},
		"a suite that does not say":    {suite("", "got 1", "TestA"), true, nil, false},
		"beside what does not compile": {build + suite("go test", "got 1", "TestA"), true, nil, false},
		"a program that died": {`{"Action":"suite","Output":"go test"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"..."}
{"Action":"fail","Package":"p"}
`, true, nil, false},
		"a package that failed without a test": {suite("go test", "got 1", "TestA") + `{"Action":"pass","Package":"q","Test":"TestQ"}
{"Action":"fail","Package":"q"}
`, true, nil, false},
		"another suite's command is not this one's": {suite("go test", "got 1", "TestA") + suite("", "got 1", "TestB"), true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			var ran []string
			err := run(strings.NewReader(c.in), &out, func(command, pkg, test string) (string, bool) {
				ran = append(ran, command+" "+pkg+" "+test)
				return "", c.alone
			})
			if (err == nil) != c.passes || !slices.Equal(ran, c.ran) {
				t.Errorf("error %v, ran %v", err, ran)
			}
			if got := strings.Contains(out.String(), "FLAKY"); got != c.passes {
				t.Errorf("the report says FLAKY: %t\n%s", got, out.String())
			}
		})
	}
}
