//go:build !race

package scenario

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/test/bench/report"
)

func TestTurnsRotateAndWarmRoundsDoNotCount(t *testing.T) {
	var order []string
	turn := func(name string) Turn {
		n := 0.0
		return Turn{Name: name, Run: func(context.Context) (Values, error) {
			order = append(order, name)
			n++
			return Values{"n": n}, nil
		}}
	}
	samples, err := Rounds{Count: 2, Warm: 1}.Run(t.Context(), Group{Turns: []Turn{turn("a"), turn("b"), turn("c")}, Repeat: 2}, Group{Turns: []Turn{turn("d")}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(order, ""), "abcabcd"+"abcbcad"+"cababcd"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
	if got := samples.Runs("a/n"); !slices.Equal(got, []float64{3, 4, 5, 6}) {
		t.Errorf("samples of a: %v", got)
	}
	if got := samples.Runs("d/n"); !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("samples of d: %v", got)
	}
}

func TestAGroupCanBeSkippedAndABudgetEndsTheRounds(t *testing.T) {
	count := func(name string) Turn {
		return Turn{Name: name, Run: func(context.Context) (Values, error) { return Values{"n": 1}, nil }}
	}
	groups := []Group{{Turns: []Turn{count("each")}}, {Turns: []Turn{count("third")}, Every: 3}}
	samples, err := Rounds{Count: 7}.Run(t.Context(), groups...)
	if err != nil || len(samples["each/n"]) != 7 || len(samples["third/n"]) != 3 {
		t.Errorf("%v, %v", samples, err)
	}
	samples, err = Rounds{Count: 7, Budget: 1, Fewest: 2}.Run(t.Context(), groups...)
	if err != nil || len(samples["each/n"]) != 2 {
		t.Errorf("%v, %v", samples, err)
	}
}

func TestATurnThatFailsEndsTheRounds(t *testing.T) {
	gone := errors.New("gone")
	g := Group{Name: "a and b", Turns: []Turn{{Name: "b", Run: func(context.Context) (Values, error) { return nil, gone }}}}
	if _, err := (Rounds{Count: 3}).Run(t.Context(), g); !errors.Is(err, gone) || !strings.Contains(err.Error(), "a and b, round 1: b") {
		t.Error(err)
	}
}

func TestRatiosAndDifferencesAreTakenWithinARepetition(t *testing.T) {
	s := Samples{"peer/v": {0: 2, 1: 40, 2: 8}, "once/v": {1: 7}}
	s.Set("ours/v", 1, 30, 2)
	r := report.New("x", "", "")
	s.Fill(r,
		Figure{Name: "plain", Unit: "ms", Of: "ours/v", Scale: 1000},
		Figure{Name: "ratio", Of: "ours/v", Over: "peer/v", Bound: report.AtLeast(0.5)},
		Figure{Name: "difference", Unit: "ms", Of: "ours/v", Less: "peer/v"},
		Figure{Name: "rare", Of: "ours/v", Over: "once/v"},
		Figure{Name: "missing", Of: "ours/v", Over: "nothing/v"},
		Figure{Name: "zero", Of: "ours/v", Over: "zero/v"})
	want := [][]float64{{1000, 30000, 2000}, {0.5, 0.75, 0.25}, {-1, -10, -6}, {30.0 / 7}, nil, nil}
	for i, l := range r.Lines {
		if !slices.Equal(l.Runs, want[i]) || l.Passed != (want[i] != nil) {
			t.Errorf("%s: %+v, want %v", l.Name, l, want[i])
		}
	}
	if r.Lines[1].Unit != "x" {
		t.Errorf("unit of a ratio %q", r.Lines[1].Unit)
	}
}

// runWith runs two scenarios, one of which misses its bound.
func runWith(t *testing.T, args ...string) (log, reports []string, err error) {
	t.Helper()
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	e := Flags(flags)
	out := t.TempDir()
	if err := flags.Parse(append([]string{"-out", out}, args...)); err != nil {
		t.Fatal(err)
	}
	e.Log = io.Discard
	scenario := func(name string, value float64, parts ...string) Scenario {
		return Scenario{Name: name, Rounds: 5, Parts: parts, Run: func(_ context.Context, e *Env, r *report.Report) error {
			for _, p := range append(parts, "all") {
				if e.Wants(p) {
					log = append(log, name+" "+p)
				}
			}
			r.Add("rounds", "", report.AtLeast(value), float64(e.Rounds))
			return nil
		}}
	}
	broken := Scenario{Name: "broken", GPU: true}
	err = e.Run(t.Context(), Subject{Name: "s", Scenarios: []Scenario{scenario("slow", 6, "a", "b"), scenario("fast", 2), broken}}, io.Discard)
	files, globErr := filepath.Glob(filepath.Join(out, "*.json"))
	if globErr != nil {
		t.Fatal(globErr)
	}
	for _, f := range files {
		reports = append(reports, filepath.Base(f))
	}
	return log, reports, err
}

func TestScenariosAreSelectedJudgedAndReported(t *testing.T) {
	for name, c := range map[string]struct {
		args         []string
		log, reports []string
		missed       bool
	}{
		"all":       {log: []string{"slow a", "slow b", "slow all", "fast all"}, reports: []string{"s-fast.json", "s-slow.json"}, missed: true},
		"no bounds": {args: []string{"-no-bounds", "-only", "slow"}, log: []string{"slow a", "slow b", "slow all"}, reports: []string{"s-slow.json"}},
		"one part":  {args: []string{"-only", "slow b"}, log: []string{"slow b"}, reports: []string{"s-slow.json"}, missed: true},
		"rounds":    {args: []string{"-rounds", "6", "-only", "^slow a"}, log: []string{"slow a", "slow all"}, reports: []string{"s-slow.json"}},
		"fast":      {args: []string{"-only", "fast"}, log: []string{"fast all"}, reports: []string{"s-fast.json"}},
	} {
		log, reports, err := runWith(t, c.args...)
		if !slices.Equal(log, c.log) || !slices.Equal(reports, c.reports) || (err != nil) != c.missed {
			t.Errorf("%s: %v, %v, %v", name, log, reports, err)
		}
		if err != nil && !strings.Contains(err.Error(), "s slow: rounds") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		if _, _, err := runWith(t, "-gpu"); err == nil || !strings.Contains(err.Error(), "test/bench/gpu/run.sh") {
			t.Errorf("without a GPU: %v", err)
		}
	}
}
