package engine

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
)

// TestStepsNextToImagesAndRankingOwePauses: parts of images between steps, and the ranking of prompts, do not take
// prompts out of the bound on how long answers of another tenant take.
func TestStepsNextToImagesAndRankingOwePauses(t *testing.T) {
	const perStep, prolonged, perToken, part = 10 * time.Millisecond, 30 * time.Millisecond, 500 * time.Microsecond, 20 * time.Millisecond
	for name, c := range map[string]struct {
		encoding, ahead bool
		ranking         time.Duration
		least           int // steps with a prompt
	}{
		"alone":                            {least: 300},
		"after parts of images":            {encoding: true, least: 400}, // whose chunks do not grow
		"in flight during parts of images": {encoding: true, ahead: true, least: 250},
		"with ranking":                     {ranking: 50 * time.Millisecond, least: 150},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &loop{shared: &shared{log: slog.New(slog.DiscardHandler)}, sequences: &sequences{sched: &batch.Scheduler{}}, blocks: &blocks{}, planner: &planner{}}
				answer := batch.Row{ID: 1, Start: 100, Length: 1, Sample: true}
				work := batch.Work{Decodes: 1, DecodeContext: 100, Prompts: []batch.Span{{From: 0, To: 100_000}}, Head: 2, Shared: true}
				step := func(encodes bool) (took time.Duration, prompt bool) {
					tokens := l.planner.pace.Tokens(work, 512)
					f := &inflightStep{began: time.Now(), step: batch.Step{Rows: []batch.Row{answer}, Shared: true}}
					took = perStep
					if tokens > 0 {
						f.step.Rows = append(f.step.Rows, batch.Row{ID: 2, Length: tokens})
						took += prolonged + time.Duration(tokens)*perToken + c.ranking
						if c.ranking > 0 {
							f.promptLogprobs, f.ranking = make([]promptLogprobs, 2), c.ranking
						}
					}
					time.Sleep(took)
					if l.encoded = encodes && tokens > 0; l.encoded && c.ahead { // a prompt that waits wants none
						time.Sleep(part)
					}
					l.record(f)
					return took, tokens > 0
				}
				for range 300 { // which show how long steps take
					step(false)
				}
				const steps = 2000
				prompts, all := 0, time.Duration(0)
				for range steps {
					took, prompt := step(c.encoding)
					if all += took; prompt {
						prompts++
					}
				}
				if all >= 2*steps*perStep || prompts < c.least {
					t.Errorf("%d steps of %d have a prompt, and they take %v on average, of answers alone %v", prompts, steps, all/steps, perStep)
				}
			})
		})
	}
}
