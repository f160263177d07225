package main

import (
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
		"nothing at all":        {in: "", says: []string{"0 passed"}, err: "no test ran"},
		"packages, but no test": {in: `{"Action":"skip","Package":"p"}` + "\n", says: []string{"1 without tests"}, err: "no test ran"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := run(strings.NewReader(c.in), &out)
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
