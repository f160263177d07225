//go:build !race

package main

import (
	"io"
	"strings"
	"testing"
)

func TestEverySubjectIsListed(t *testing.T) {
	for _, s := range subjects() {
		var out strings.Builder
		if err := run(t.Context(), []string{s.Name, "-list"}, &out); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		seen := map[string]bool{}
		for _, c := range s.Scenarios {
			if seen[c.Name] || c.Title == "" || c.About == "" || c.Rounds < 1 || !strings.Contains(out.String(), c.Name+": ") {
				t.Errorf("%s %s is incomplete or listed twice:\n%s", s.Name, c.Name, out.String())
			}
			seen[c.Name] = true
		}
	}
}

func TestUnknownArgumentsAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"usage: bench SUBJECT":          nil,
		"engine ":                       {"-rounds", "1"},
		`unknown subject "engines"`:     {"engines"},
		`unexpected argument "now"`:     {"placement", "now"},
		"-rounds is -1":                 {"placement", "-rounds", "-1"},
		"no scenario of placement was ": {"placement", "-only", "no such scenario"},
	} {
		if err := run(t.Context(), args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
