package engine

import (
	"testing"
	"time"

	"metalfleet.dev/metalfleet/metal/batch"
)

// decoded is a step of rows that decode, with as many drafts.
func decoded(rows, drafts int) (s batch.Step) {
	for i := range rows {
		r := batch.Row{ID: batch.ID(i), Start: 9, Length: 1, Sample: true}
		if i < drafts {
			r.Length, r.Drafts = 2, 1
		}
		s.Rows = append(s.Rows, r)
	}
	return s
}

func TestTheCostOfDraftsIsMeasuredByTheNumberOfRows(t *testing.T) {
	var c draftCosts
	took := func(n int, s batch.Step, d time.Duration) {
		for range n {
			c.took(s, d)
		}
	}
	took(fewSteps-1, decoded(2, 0), 10*time.Millisecond)
	if got := c.of(2); got < 1e9 {
		t.Errorf("before steps without drafts were measured it is %v", got)
	}
	took(1, decoded(2, 0), 10*time.Millisecond)
	if got := c.of(2); got != 0 {
		t.Errorf("before steps with drafts were measured it is %v", got)
	}
	prompt := decoded(2, 0)
	prompt.Rows[1] = batch.Row{ID: 1, Length: 7}
	took(fewSteps, prompt, time.Hour)         // a prompt is not decoded
	took(fewSteps, decoded(2, 1), time.Hour)  // drafts for some of the rows
	took(fewSteps, decoded(3, 3), time.Hour)  // other numbers of rows
	took(fewSteps, decoded(40, 0), time.Hour) // more than have drafts
	took(fewSteps, decoded(2, 2), 13*time.Millisecond)
	if got := c.of(2); got < 1.29 || got > 1.31 {
		t.Errorf("13 ms to 10 cost %v", got)
	}
	took(8*manySteps, decoded(2, 2), 21*time.Millisecond)
	if got := c.of(2); got < 2.09 || got > 2.11 {
		t.Errorf("21 ms to 10 cost %v later", got)
	}
	took(remeasure, decoded(2, 0), 10*time.Millisecond)
	if got := c.of(2); got != 0 {
		t.Errorf("after a long time without drafts the cost is %v, and not measured again", got)
	}
}

func TestDraftsPauseWhereTheirShareDoesNotMakeUpForTheirCost(t *testing.T) {
	for name, c := range map[string]struct {
		right int // of each trial
		cost  float64
		pause bool
	}{
		"all right, twice as long":            {draftTrial, 2, false},
		"half right, half as long again":      {draftTrial / 2, 1.5, false},
		"fewer right, half as long again":     {draftTrial/2 - 1, 1.5, true},
		"none right, no longer":               {0, 1, false},
		"few right, a little longer":          {4, 1.2, true},
		"most right, more than twice as long": {draftTrial - 1, 2.2, true},
	} {
		var d draftState
		for i := range draftTrial {
			if d.resume != 0 {
				t.Errorf("%s: it was judged after %d drafts", name, i)
			}
			d.judge(i < c.right, 100+i, c.cost)
		}
		if paused := d.resume == 100+draftTrial-1+draftPause; paused != c.pause || d.made != 0 {
			t.Errorf("%s: paused until %d, want a pause: %t", name, d.resume, c.pause)
		}
	}
}
