package history

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool"
)

// agent is the agent's pool while it runs, and its journal while it does not.
type agent struct {
	dir  string
	disk disk
	jump time.Duration // of the wall clock, since the last agent started

	pool   *pool.Pool
	ledger *memory.Ledger
	stop   context.CancelFunc // nil while no agent runs
	ended  chan struct{}
}

func (g *agent) running() bool { return g.stop != nil }

// boot starts a pool of that configuration over the journal; opened is called
// before it adopts engines.
func (g *agent) boot(c pool.Config, opened func()) error {
	if err := g.shift(); err != nil {
		return err
	}
	j, err := journal.Open(g.dir, time.Now())
	if err != nil {
		return err
	}
	g.ledger = memory.NewLedger()
	c.Journal, c.Ledger, c.StateDir = books{j, &g.disk}, g.ledger, g.dir
	if g.pool, err = pool.New(c); err != nil {
		return err
	}
	opened()
	ctx, stop := context.WithCancel(context.Background())
	g.pool.Adopt(ctx)
	g.stop, g.ended = stop, make(chan struct{})
	go func(p *pool.Pool, ended chan struct{}) {
		defer close(ended)
		_ = p.Run(ctx)
	}(g.pool, g.ended)
	return nil
}

// halt ends the pool and leaves the engines.
func (g *agent) halt() {
	if g.stop != nil {
		g.stop()
		<-g.ended
		g.stop = nil
	}
}

// apply gives the pool its assignments.
func (g *agent) apply(d journal.Desired) {
	if g.running() {
		g.pool.Apply(d)
	}
}

// journal changes the file while no agent runs.
func (g *agent) journal(change func(*journal.State)) error {
	j, err := journal.Open(g.dir, time.Now())
	if err != nil {
		return err
	}
	return j.Update(change)
}

// stops returns the processes of the engines that the journal says were asked to end: what could not
// be written is not known to the next agent.
func (g *agent) stops() map[int]bool {
	j, err := journal.Open(g.dir, time.Now())
	if err != nil {
		return nil
	}
	stops := map[int]bool{}
	for _, e := range j.View().Engines {
		stops[e.PID] = e.Stop != nil
	}
	return stops
}

// shift makes what the journal says agree with a clock that jumped.
func (g *agent) shift() error {
	by := g.jump
	g.jump = 0
	if by == 0 {
		return nil
	}
	return g.journal(func(s *journal.State) {
		for i := range s.Engines {
			if e := &s.Engines[i]; e.LastUse != nil {
				*e.LastUse = e.LastUse.Add(-by)
			}
			if e := &s.Engines[i]; e.Stop != nil {
				e.Stop.Since = e.Stop.Since.Add(-by)
			}
		}
		for i := range s.Replicas {
			for k := range s.Replicas[i].Crashes {
				s.Replicas[i].Crashes[k] = s.Replicas[i].Crashes[k].Add(-by)
			}
		}
	})
}
