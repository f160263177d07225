package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLarge(t *testing.T) {
	if Check(11) == nil {
		t.Error("11 was accepted")
	}
}

func TestBlind(t *testing.T) {
	_ = Check(-1)
}

func TestRed(t *testing.T) {
	t.Error("red with or without a change")
}

func TestSkips(t *testing.T) {
	t.Skip("never runs, whatever is changed")
}

func TestRuleOfTheCRD(t *testing.T) {
	glob := os.Getenv("TESTENV_CRDS")
	if glob == "" {
		glob = "../config/crd/*.yaml"
	}
	files, err := filepath.Glob(glob)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(b), "maximum: 10") {
		t.Errorf("the rule is gone: %s %v", b, err)
	}
}
