//go:build mlx

package mlx

import (
	"slices"
	"strconv"
	"testing"
)

func TestAttendStepKernelOnTheProcessor(t *testing.T) {
	checkErrors(t, runKernel(t, "attend_step", attendStepHeader, "attend_step_numbers", "attend_step_source"), 11, 0.016)
}

func TestRecurStepKernelOnTheProcessor(t *testing.T) {
	checkErrors(t, runKernel(t, "recur_step", recurStepHeader, "recur_step_source", "recur_step_source"), 4, 2e-6)
}

// Five operations round to 8 bits.
func TestAddNormKernelOnTheProcessor(t *testing.T) {
	checkErrors(t, runKernel(t, "add_norm", addNormHeader, "add_norm_numbers", "add_norm_source", "cut.inc=norm_cut_source"), 10, 0.012)
}

func TestRowKernelsOnTheProcessor(t *testing.T) {
	lines := runKernel(t, "join_runs", rowKernelsHeader, "gate_numbers", "join_runs_source", "geglu.inc=geglu_source")
	if len(lines) != 4 || !slices.Equal(lines[:3], []string{"0", "0", "0"}) {
		t.Fatalf("joined rows have wrong numbers: %q, want 0 in three cases", lines)
	}
	if worst, err := strconv.ParseFloat(lines[3], 64); err != nil || worst > 0.03 || worst == 0 { // eight operations round to 8 bits
		t.Errorf("GELU times a number is off by %v, want at most 0.03 (%v)", worst, err)
	}
}

// checkErrors compares an error on each line with a limit. Where one token sees itself
// alone there may be none.
func checkErrors(t *testing.T, lines []string, cases int, limit float64) {
	t.Helper()
	if len(lines) != cases {
		t.Errorf("%d cases were run, want %d: %q", len(lines), cases, lines)
	}
	for i, line := range lines {
		worst, err := strconv.ParseFloat(line, 64)
		if err != nil || worst > limit || worst == 0 && i > 0 {
			t.Errorf("case %d is off by %q, want at most %v", i, line, limit)
		}
	}
}
