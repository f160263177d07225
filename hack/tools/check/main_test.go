package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestFaultsOfGoVetAndOfStaticcheckAreFound(t *testing.T) {
	out, err := exec.Command("go", "run", ".", "./testdata/faults").CombinedOutput()
	if err == nil {
		t.Error("packages with faults pass")
	}
	for _, want := range []string{"has arg \"text\" of wrong type string (printf)", "(SA1000)", "func unused is unused (U1000)", "faults_test.go"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output misses %q:\n%s", want, out)
		}
	}
	if out, err := exec.Command("go", "run", ".", "./testdata/clean").CombinedOutput(); err != nil {
		t.Errorf("a package without faults: %v\n%s", err, out)
	}
}

func TestShallowFindsFaultsOfGoVet(t *testing.T) {
	found, err := shallow(".", "./testdata/faults")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(found, "\n")
	for _, want := range []string{"faults.go:12:", "has arg \"text\" of wrong type string (printf)", "faults_test.go:8:"} {
		if !strings.Contains(all, want) {
			t.Errorf("it misses %q:\n%s", want, all)
		}
	}
	if found, err := shallow(".", "./testdata/clean"); err != nil || len(found) > 0 {
		t.Errorf("a package without faults: %v, %v", found, err)
	}
	if _, err := shallow(".", "./testdata/nowhere"); err == nil {
		t.Error("a package that does not exist passes")
	}
}
