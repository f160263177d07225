package engine

import (
	"math"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
)

const (
	// fewSteps are measured before a cost is known, and an average is of about manySteps.
	fewSteps, manySteps = 8, 64
	// After remeasure steps without drafts, what steps with drafts take is measured again.
	remeasure = 4096
)

// draftCosts measure what steps of few rows take with and without drafts. A step with a
// draft for each row yields up to twice the tokens, and takes as long where a device waits
// for weights, but up to twice as long where it computes, or reads other experts for each
// token.
type draftCosts struct {
	// fixed replaces what is measured; 0 means that it does not. Tests set it.
	fixed          float64
	plain, drafted [maxDrafting + 1]average
}

// average is one of the latest durations.
type average struct {
	duration time.Duration
	steps    int
}

func (a *average) add(d time.Duration) {
	a.steps++
	a.duration += (d - a.duration) / time.Duration(min(a.steps, manySteps))
}

// of returns what a step with drafts costs, in steps of as many rows without: infinite until
// these were measured, and less than 1 until those with drafts were.
func (c *draftCosts) of(rows int) float64 {
	plain, drafted := c.plain[rows], c.drafted[rows]
	switch {
	case c.fixed > 0:
		return c.fixed
	case plain.steps < fewSteps:
		return math.Inf(1)
	case drafted.steps < fewSteps:
		return 0
	}
	return float64(drafted.duration) / float64(max(1, plain.duration))
}

// took notes the duration of a step, including that of the draft head. Only steps that
// decode count, with drafts for all rows or for none.
func (c *draftCosts) took(step batch.Step, d time.Duration) {
	rows := len(step.Rows)
	if rows > maxDrafting || step.Decodes() != rows {
		return
	}
	switch step.Drafts() {
	case rows:
		c.drafted[rows].add(d)
	case 0:
		c.plain[rows].add(d)
		if c.plain[rows].steps%remeasure == 0 {
			c.drafted[rows] = average{}
		}
	}
}
