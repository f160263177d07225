package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryTestThatTheScriptNamesIsThere: -run of a name that is gone runs
// nothing, and passes.
func TestEveryTestThatTheScriptNamesIsThere(t *testing.T) {
	script, err := os.ReadFile("../test.sh")
	if err != nil {
		t.Fatal(err)
	}
	var there strings.Builder
	for _, dir := range []string{"../../metal/ref", "../../metal/engine"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			there.Write(text)
		}
	}
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(script), -1)
	if len(names) < 11 {
		t.Errorf("only %d tests are named: %v", len(names), names)
	}
	for _, name := range names {
		if !strings.Contains(there.String(), "func "+name+"(t *testing.T)") {
			t.Errorf("hack/test.sh names %s, which neither metal/ref nor metal/engine has", name)
		}
	}
}
