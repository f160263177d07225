package pool

import (
	"context"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// tieHeadroom handles the open requests for headroom of one poll: they wait for
// the engine that is evicted for them, or for one that is being unloaded anyway;
// else they are answered now.
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

// answerHeadroom answers the requests for headroom that waited for the end of
// victim, once no other engine is being unloaded: the memory of several may be
// needed. The caller holds mu.
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

// publishLimits sends every engine its limits, each time as one message, without
// waiting for any of them.
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
// Mac is shared among the busy engines, and an idle one gets what it would have
// if it became busy, so that all together cannot take more than there is.
func limitsOf(e memory.EngineReading, r memory.Reading, d memory.Decision, busy int64) *wire.Limits {
	share := busy
	if e.Idle() {
		share++
	}
	l := &wire.Limits{
		MemoryBytes: e.Limit, CacheBytes: footprint.PooledLimit(e.Limit), PausePrefill: d.PausePrefill,
		HeadroomKnown: r.HostKnown && d.GuardInactive == "", HeadroomBytes: max(0, d.Headroom/max(1, share)),
		CanMakeRoom: memory.CanMakeRoom(r.Engines, e.Priority, e.Key),
	}
	if e.FootprintKnown {
		l.FootprintBytes = e.Footprint
	}
	return l
}

// nextLimits returns the sequence of the next limits of an engine, which ignores all that
// are not newer than its own, of an earlier agent as well. It is no time: the Mac's clock
// may be set back. The caller holds registry.mu.
func (g *engine) nextLimits() int64 {
	g.limitsSent = max(g.limitsSent, g.status.GetGuard().GetLimitsSequence()) + 1
	return g.limitsSent
}

// publishTo sends limits to an engine that reports and has answered the last
// ones. With the answer to its request for headroom it gets what it asked for,
// as far as that is left, and not only its share.
func (p *pressure) publishTo(r memory.EngineReading, l *wire.Limits, left *int64) {
	var g *engine
	p.read(func() {
		e := p.entries[r.Key]
		if e == nil || e.engine == nil || e.engine.status == nil || e.engine.state == Exited {
			return
		}
		if e.engine.resend = !e.engine.limitsSentAt.IsZero(); !e.engine.resend {
			g = e.engine
			g.limitsSentAt = time.Now()
			if g.untakenSince.IsZero() {
				g.untakenSince = g.limitsSentAt
			}
			l.Sequence, l.HeadroomAnswered = g.nextLimits(), g.headroom.answered
			if g.headroom.answered > g.headroom.sent && l.HeadroomKnown {
				g.headroom.sent = g.headroom.answered
				grant := min(*left, g.asks())
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
		if g.limitsRefused = err != nil; err == nil {
			g.untakenSince = time.Time{}
		}
		g.limitsSentAt = time.Time{}
		if g.resend { // the limits of a later poll were not sent
			g.resend = false
			p.pollNow()
		}
	})
}
