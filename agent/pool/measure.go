package pool

import (
	"context"
	"errors"
	"time"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/wire"
)

// measureLoop measures every Poll while an engine is there, and every IdlePoll
// while none is, until the pool's life ends.
func (p *Pool) measureLoop() {
	tick := time.NewTicker(p.Timing.Poll)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-p.life.Done():
			return
		case <-tick.C:
		}
		engines := p.engines()
		if len(engines) == 0 && time.Since(last) < p.Timing.IdlePoll {
			continue
		}
		last = time.Now()
		p.poll(engines)
	}
}

// poll measures once. What cannot be read keeps its last figure and its time.
func (p *Pool) poll(engines []*engine) {
	for _, g := range engines {
		p.measure(g)
		if err := boundLog(g.files.log); err != nil {
			p.Log.Error(err, "Engine log is not bounded")
		}
		p.publishLimits(g)
	}
	p.measureHost()
}

// engines that have a process.
func (p *Pool) engines() (engines []*engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if e.engine != nil && e.engine.proc != nil {
			engines = append(engines, e.engine)
		}
	}
	return engines
}

// measure reads the footprint of one engine; 0 when it cannot be read.
func (p *Pool) measure(g *engine) int64 {
	n, err := g.proc.Footprint()
	if err != nil {
		if !errors.Is(err, probe.ErrGone) {
			p.Log.Error(err, "Footprint cannot be measured", "pid", g.proc.PID)
		}
		return 0
	}
	p.read(func() { g.footprint, g.measured = n, time.Now() })
	return n
}

// ownFootprint measures all engines now and adds up what they hold.
func (p *Pool) ownFootprint() (sum int64) {
	for _, g := range p.engines() {
		if n, err := g.proc.Footprint(); err == nil {
			sum += n
		}
	}
	return sum
}

// measureHost reads the machine and tells the ledger.
func (p *Pool) measureHost() {
	h, err := p.Probe.Host(p.life, p.ownFootprint())
	if err != nil {
		p.Log.Error(err, "Memory of this Mac cannot be measured")
		return
	}
	known := false
	p.change(func() {
		known = p.hostKnown
		p.host, p.hostKnown, p.measuredAt = h, true, time.Now()
		p.setLedger()
	})
	if !known {
		p.wake()
	}
}

// publishLimits tells an engine its limits, as one value, without waiting for
// it: an engine that hangs must not delay the others' poll.
func (p *Pool) publishLimits(g *engine) {
	ask := false
	p.read(func() {
		if ask = g.status != nil && !g.asking; ask {
			g.asking = true
		}
	})
	if !ask {
		return
	}
	limits := &wire.Limits{
		MemoryBytes: g.config.LimitBytes, CacheBytes: g.config.LimitBytes / 16,
		Sequence: time.Now().UnixNano(), // grows over restarts of the agent too
	}
	p.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(p.life, p.Timing.Hello)
		defer cancel()
		_, err := g.client.SetLimits(ctx, limits)
		p.read(func() { g.asking = false })
		if err != nil && ctx.Err() != nil && p.life.Err() == nil {
			p.Log.Error(err, "Engine does not take its limits", "pid", g.proc.PID)
		}
	})
}
