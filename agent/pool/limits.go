package pool

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// tieHeadroom deals with the open questions of one poll: they wait for the
// engine that goes for them, or for one that is going anyway; else they are
// answered now.
func (p *pressure) tieHeadroom(victim *engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		g := e.engine
		if g == nil || g.headroom.victim != nil {
			continue
		}
		question, going := g.headroom.seen, victim
		if going == nil || going.state == Exited {
			going = p.leaving(g)
		}
		switch {
		case question <= g.headroom.answered:
		case going != nil:
			g.headroom.tied, g.headroom.victim = question, going
		default:
			g.headroom.answered = question
		}
	}
}

// answerHeadroom answers the questions that waited for the end of victim, once
// nothing else is going: several that go at once may all be needed. The caller
// holds mu.
func (p *pressure) answerHeadroom(victim *engine) {
	for _, e := range p.entries {
		g := e.engine
		if g == nil || g.headroom.victim != victim {
			continue
		}
		if g.headroom.victim = p.leaving(g); g.headroom.victim == nil {
			g.headroom.answered = g.headroom.tied
		}
	}
}

// publishLimits tells every engine its limits, each as one value, in every
// poll, without waiting for any of them.
func (p *pressure) publishLimits(r memory.Reading, d memory.Decision) {
	busy := int64(0)
	for _, e := range r.Engines {
		if !e.Idle() && !e.Stopping {
			busy++
		}
	}
	left := d.Headroom
	for _, e := range r.Engines {
		p.publishTo(e, limitsOf(e, r, d, busy), &left)
	}
}

// limitsOf is what one engine may use until the next poll. The headroom of the
// Mac is shared among the busy engines, and an idle one is given what it would
// have if it began: so all of them together cannot take more than there is.
func limitsOf(e memory.EngineReading, r memory.Reading, d memory.Decision, busy int64) *wire.Limits {
	share := busy
	if e.Idle() {
		share++
	}
	l := &wire.Limits{
		MemoryBytes: e.Limit, CacheBytes: footprint.PooledLimit(e.Limit), PausePrefill: d.PausePrefill,
		HeadroomKnown: r.HostKnown && d.GuardInactive == "", HeadroomBytes: max(0, d.Headroom/max(1, share)),
		CanMakeRoom: memory.CanMakeRoom(r.Engines, e.Priority, e.Key),
		Sequence:    time.Now().UnixNano(), // grows over restarts of the agent too
	}
	if e.FootprintKnown {
		l.FootprintBytes = e.Footprint
	}
	return l
}

// publishTo sends limits to an engine that is heard from and owes no answer.
// With the answer to its question it is given what it asked for, as far as
// that is left, and not only its share.
func (p *pressure) publishTo(r memory.EngineReading, l *wire.Limits, left *int64) {
	var g *engine
	p.read(func() {
		e := p.entries[r.Key]
		if e == nil || e.engine == nil || e.engine.status == nil || e.engine.state == Exited {
			return
		}
		if e.engine.behind = !e.engine.asking.IsZero(); !e.engine.behind {
			g = e.engine
			g.asking = time.Now()
			l.HeadroomAnswered = g.headroom.answered
			if g.headroom.answered > g.headroom.told && l.HeadroomKnown {
				g.headroom.told = g.headroom.answered
				grant := min(*left, g.status.GetGuard().GetHeadroomBytes())
				l.HeadroomBytes = max(l.HeadroomBytes, grant)
				*left = max(0, *left-l.HeadroomBytes)
			}
		}
	})
	if g == nil {
		return
	}
	p.ask(g, "SetLimits", func(ctx context.Context) error {
		_, err := g.client.SetLimits(ctx, l)
		return err
	}, func(err error) {
		g.limitsRefused = err != nil
		g.asking = time.Time{}
		if g.behind { // what a poll found meanwhile was not sent
			g.behind = false
			p.poke()
		}
	})
}
