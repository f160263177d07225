package serving

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/weights"
	"metalfleet.dev/metalfleet/metal/wire"
	"metalfleet.dev/metalfleet/test/bench/models"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/bench/scenario"
	"metalfleet.dev/metalfleet/test/bench/traffic"
)

// hostile is a constraint that takes as much work as it can cause.
type hostile struct {
	Name           string
	Grammar, Regex string
	Schema         string `json:"json_schema"`
	// Then is repeated after the text, or the text is where Then is empty.
	Then   string
	Repeat int
}

//go:embed constraints.json
var hostileJSON []byte

const (
	hostileWords  = 150_000
	hostileTokens = 250 // of a stream
	// hostilePatience is how long each of the clients waits before it hangs up and asks again.
	hostilePatience = 5 * time.Second
	// mostStall ends a stream that stands still.
	mostStall = 60 * time.Second
	// mostDisturbed is p99 between tokens next to hostile constraints, as a multiple of the same next to as many streams
	// without constraints: rows of one batch share the processors, with constraints or without.
	mostDisturbed = 1.5
)

func constraintsScenario(before *string) scenario.Scenario {
	return scenario.Scenario{
		Name: "constraints", Title: "A stream next to hostile constraints", Rounds: 5,
		About: `A stream of 250 tokens runs alone, next to eight streams without constraints, and next to eight clients that each send one of
the constraints of constraints.json again and again, and hang up after five seconds. The model is random, 8 layers of 256, with a vocabulary
of 150,000 words, on ref. A stream that stands still is given up after a minute, which counts as one gap. With -before, an older
engine is measured in turns with this one.`,
		Run: func(ctx context.Context, e *scenario.Env, r *report.Report) error {
			return runConstraints(ctx, e, r, *before)
		},
	}
}

func runConstraints(ctx context.Context, e *scenario.Env, r *report.Report, before string) error {
	model, err := models.Write(filepath.Join(e.Cache, "words-150k.gguf"), tinymodel.Config{
		Seed: 1, Name: "words", Layers: 8, Hidden: 256, FeedForward: 768, QueryHeads: 4, KVHeads: 2, HeadSize: 64, Context: 2048, Vocabulary: hostileWords,
		Words: true, Endless: true, Type: weights.Q4_1, NormEps: 1e-5, Theta: 10000}, nil)
	if err != nil {
		return err
	}
	all, err := readHostile()
	if err != nil {
		return err
	}
	group := scenario.Group{Name: "constraints"}
	for name, program := range map[string]string{"now": e.Engine, "before": before} {
		if program == "" {
			continue
		}
		target, stop, err := ours(program, "ref", model, 2048, 1+len(all)).start(ctx)
		if err != nil {
			return err
		}
		e.Cleanup(stop)
		group.Turns = append(group.Turns, scenario.Turn{Name: name, Run: func(ctx context.Context) (scenario.Values, error) { return disturbed(ctx, target, all) }})
	}
	var figures []scenario.Figure
	for _, turn := range group.Turns {
		of, bound := func(value string) string { return turn.Name + "/" + value }, report.Bound{}
		if turn.Name == "now" {
			bound = report.AtMost(mostDisturbed)
		}
		figures = append(figures,
			scenario.Figure{Name: turn.Name + ", inter-token alone, p99", Unit: "ms", Of: of("alone")},
			scenario.Figure{Name: turn.Name + ", next to eight streams, p99", Unit: "ms", Of: of("streams")},
			scenario.Figure{Name: turn.Name + ", next to eight hostile constraints, p99", Unit: "ms", Of: of("hostile")},
			scenario.Figure{Name: turn.Name + ", p99, with constraints / alone", Of: of("hostile"), Over: of("alone")},
			scenario.Figure{Name: turn.Name + ", p99, with constraints / with streams", Of: of("hostile"), Over: of("streams"), Bound: bound})
	}
	return e.Measure(ctx, r, 0, figures, group)
}

func readHostile() (all []*wire.Constraint, err error) {
	var list []hostile
	if err := json.Unmarshal(hostileJSON, &list); err != nil {
		return nil, err
	}
	for _, h := range list {
		text := func(s string) string {
			if h.Then == "" {
				return strings.Repeat(s, max(1, h.Repeat))
			}
			return s + strings.Repeat(h.Then, h.Repeat)
		}
		c := &wire.Constraint{Param: "constraint"}
		switch {
		case h.Grammar != "":
			c.Form = &wire.Constraint_Grammar{Grammar: text(h.Grammar)}
		case h.Regex != "":
			c.Form = &wire.Constraint_Regex{Regex: text(h.Regex)}
		default:
			c.Form = &wire.Constraint_JsonSchema{JsonSchema: text(h.Schema)}
		}
		all = append(all, c)
	}
	return all, nil
}

// disturbed measures a stream alone, next to others, and next to hostile constraints.
func disturbed(ctx context.Context, target traffic.Target, all []*wire.Constraint) (scenario.Values, error) {
	alone, err := p99Of(ctx, target, nil)
	if err != nil {
		return nil, err
	}
	streams, err := p99Of(ctx, target, make([]*wire.Constraint, len(all)))
	if err != nil {
		return nil, err
	}
	hostile, err := p99Of(ctx, target, all)
	return scenario.Values{"alone": alone, "streams": streams, "hostile": hostile}, err
}

// p99Of is that of the time between the tokens of a stream, in milliseconds, while a client
// for each constraint asks again and again; one without a constraint does the same.
func p99Of(ctx context.Context, target traffic.Target, next []*wire.Constraint) (float64, error) {
	clients, leave := context.WithCancel(ctx)
	var others sync.WaitGroup
	for _, c := range next {
		others.Go(func() {
			for clients.Err() == nil {
				once, cancel := context.WithTimeout(clients, hostilePatience)
				traffic.Ask(once, target, traffic.Request{Prompt: "Hello", MaxTokens: 1000, Constraint: c}) // most are refused, or hang up
				cancel()
			}
		})
	}
	if len(next) > 0 {
		time.Sleep(hostilePatience / 5) // they are under way
	}
	stream, cancel := context.WithTimeout(ctx, mostStall)
	defer cancel()
	last := time.Now()
	var gaps []time.Duration
	_, err := target.Ask(stream, traffic.Request{Prompt: "Hello", MaxTokens: hostileTokens}, func() {
		now := time.Now()
		gaps, last = append(gaps, now.Sub(last)), now
	})
	stalled := stream.Err() != nil && ctx.Err() == nil
	if stalled {
		gaps, err = append(gaps, time.Since(last)), nil
	}
	leave()
	others.Wait()
	switch {
	case err != nil:
		return 0, err
	case len(gaps) < 2 && stalled:
		return traffic.Milliseconds(mostStall), nil
	case len(gaps) < 2:
		return 0, errors.New("the stream had no tokens")
	}
	return traffic.Milliseconds(traffic.Percentile(gaps[1:], 99)), nil
}
