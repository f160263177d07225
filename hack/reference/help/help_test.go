//go:build !race

package help

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFlagsAreReadFromHelp(t *testing.T) {
	text := "Usage of p:\n  -grace duration\n    \thow long, with\n    \ttwo lines (default 20s)\n  -v\tshort\n  -engine program\n    \tthe engine program (default \"/x/engine\")\n"
	want := []Flag{
		{Name: "grace", Placeholder: "duration", Default: "20s", Usage: "how long, with two lines"}, {Name: "v", Usage: "short"}, {Name: "engine", Placeholder: "program", Default: `"/x/engine"`, Usage: "the engine program"},
	}
	if diff := cmp.Diff(want, Flags(text)); diff != "" {
		t.Error(diff)
	}
}

func TestAProgramThatIsMissingNamesTheTarget(t *testing.T) {
	if _, err := Of(t.TempDir(), "agent"); err == nil {
		t.Error("no error")
	}
}
