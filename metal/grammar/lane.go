package grammar

import (
	"context"
	"runtime"

	"metalfleet.dev/metalfleet/metal/share"
)

// lane is a tenant's way to places: of the processors that long work on constraints may
// take while the others compute tokens, or of the constraints that are compiled at once.
// Places of processors are given back after each slice of work, so that none holds up
// another.
type lane struct {
	turns  *share.Turns
	tenant string
}

func (l *lane) take(ctx context.Context) error { return l.turns.Take(ctx, l.tenant) }
func (l *lane) give()                          { l.turns.Give(l.tenant) }

// laneShare is the part of the processors that lanes have together.
const laneShare = 4

func newProcessors() *share.Turns { return share.NewTurns(max(1, runtime.GOMAXPROCS(0)/laneShare)) }
