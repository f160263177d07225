package scenario

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/test/bench/report"
)

// Values are the figures of one turn, by name.
type Values map[string]float64

// Turn is one thing to measure, such as a program that decodes.
type Turn struct {
	Name string
	Run  func(context.Context) (Values, error)
}

// Group is turns that are compared: in each repetition all of them run one
// after another, each time beginning with the next one.
type Group struct {
	Name  string
	Turns []Turn
	// Repeat is the number of repetitions in a round; 0 means 1.
	Repeat int
	// Every skips the group except in every nth round; 0 means each round.
	Every int
}

// One is a group of a single turn.
func One(name string, run func(context.Context) (Values, error)) Group {
	return Group{Name: name, Turns: []Turn{{Name: name, Run: run}}}
}

// Measure runs groups for the rounds of the scenario, after some that do not
// count, and adds figures to the report, also those of rounds before an error.
func (e *Env) Measure(ctx context.Context, r *report.Report, warm int, figures []Figure, groups ...Group) error {
	samples, err := Rounds{Count: e.Rounds, Warm: warm, Log: e.Log}.Run(ctx, groups...)
	if len(samples) > 0 {
		samples.Fill(r, figures...)
	}
	return err
}

// Rounds is how often groups run.
type Rounds struct {
	Count int
	// Warm rounds come first and do not count.
	Warm int
	// Budget ends the rounds early once at least Fewest have counted; 0 means no
	// budget.
	Budget time.Duration
	Fewest int
	// Log receives a line for each round.
	Log io.Writer
}

// Run runs all groups, round by round.
func (n Rounds) Run(ctx context.Context, groups ...Group) (Samples, error) {
	samples := Samples{}
	began := time.Now()
	for round := -n.Warm; round < n.Count; round++ {
		if n.Budget > 0 && round >= n.Fewest && time.Since(began) > n.Budget {
			break
		}
		for _, g := range groups {
			if g.Every > 1 && round > 0 && round%g.Every != 0 {
				continue
			}
			if err := g.run(ctx, round, samples); err != nil {
				return samples, fmt.Errorf("%s, round %d: %w", g.Name, round+1, err)
			}
		}
		if n.Log != nil && round >= 0 {
			fmt.Fprintf(n.Log, "%s: round %d of %d done\n", groups[0].Name, round+1, n.Count)
		}
	}
	return samples, nil
}

func (g Group) run(ctx context.Context, round int, samples Samples) error {
	repeat := max(1, g.Repeat)
	for i := range repeat {
		repetition := round*repeat + i
		for j := range g.Turns {
			t := g.Turns[(j+max(0, repetition))%len(g.Turns)]
			values, err := t.Run(ctx)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", t.Name, err)
			}
			if round < 0 {
				continue
			}
			for name, v := range values {
				samples.set(t.Name+"/"+name, repetition, v)
			}
		}
	}
	return nil
}

// Samples are values by "turn/name" and repetition.
type Samples map[string]map[int]float64

func (s Samples) set(key string, repetition int, v float64) {
	if s[key] == nil {
		s[key] = map[int]float64{}
	}
	s[key][repetition] = v
}

// Set adds values of a turn that ran outside of rounds: the nth of each name is
// that of repetition n.
func (s Samples) Set(key string, runs ...float64) {
	for i, v := range runs {
		s.set(key, i, v)
	}
}

// Runs returns the values of a key in the order of repetitions.
func (s Samples) Runs(key string) []float64 { return s.combine(key, "", nil) }

// combine applies f within each repetition that has both values.
func (s Samples) combine(a, b string, f func(a, b float64) float64) []float64 {
	var out []float64
	for _, n := range slices.Sorted(maps.Keys(s[a])) {
		if f == nil {
			out = append(out, s[a][n])
		} else if v, ok := s[b][n]; ok {
			out = append(out, f(s[a][n], v))
		}
	}
	return out
}

// Figure is one line of a report, computed from samples.
type Figure struct {
	Name, Unit string
	// Of is the key of the values; Over divides them and Less is subtracted from
	// them, within each repetition.
	Of, Over, Less string
	// Scale multiplies the result; 0 means 1.
	Scale float64
	Bound report.Bound
}

// Fill adds figures to a report.
func (s Samples) Fill(r *report.Report, figures ...Figure) {
	for _, f := range figures {
		var runs []float64
		switch {
		case f.Over != "":
			runs = s.combine(f.Of, f.Over, func(a, b float64) float64 { return a / b })
		case f.Less != "":
			runs = s.combine(f.Of, f.Less, func(a, b float64) float64 { return a - b })
		default:
			runs = s.Runs(f.Of)
		}
		if f.Scale != 0 {
			for i := range runs {
				runs[i] *= f.Scale
			}
		}
		if f.Over != "" && f.Unit == "" {
			f.Unit = "x"
		}
		r.Add(f.Name, f.Unit, f.Bound, runs...)
	}
}
