package pool

import (
	"errors"
	"slices"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// look measures the Mac and its engines once and keeps the figures. What cannot
// be read keeps its last figure and its time, and the reading says so.
func (p *Pool) look() memory.Reading {
	known, own := map[*engine]bool{}, int64(0)
	for _, g := range p.engines() {
		n, ok := p.measure(g)
		known[g] = ok
		own += n
	}
	host, err := p.Probe.Host(p.life, own)
	if err != nil && p.life.Err() == nil {
		p.Log.Error(err, "Cannot measure the memory of this Mac")
	}
	first := false
	var r memory.Reading
	p.change(func() {
		if err == nil {
			first = !p.hostKnown
			p.host, p.hostKnown, p.measuredAt = host, true, time.Now()
			p.setLedger()
		}
		r = p.reading(known, err == nil)
	})
	if first {
		p.wake()
	}
	return r
}

// reading puts a poll's figures together; the caller holds mu. The engines in
// known were measured, and known says with success.
func (p *Pool) reading(known map[*engine]bool, hostKnown bool) memory.Reading {
	now := time.Now()
	account := p.Ledger.Account()
	r := memory.Reading{
		Now: now, Host: p.host, HostKnown: hostKnown, Limits: account.Limits,
		Policy: footprint.Policy(p.policy.Policy),
	}
	for _, e := range p.entries {
		g := e.engine
		if g == nil {
			continue
		}
		if g.gone { // it holds nothing, and its reservation until that was checked
			r.Engines = append(r.Engines, memory.EngineReading{Key: e.key, FootprintKnown: true, Stopping: true, Reserved: account.Holders[e.key]})
			continue
		}
		// What is about to have a process holds nothing yet, and will.
		if ok, measured := known[g]; measured || g.proc == nil {
			r.Engines = append(r.Engines, p.engineReading(e, g, ok || g.proc == nil, account.Holders[e.key], now))
		}
	}
	slices.SortFunc(r.Engines, func(a, b memory.EngineReading) int { return byKey(a.Key, b.Key) })
	return r
}

// accounted is what an engine can name: weights, the KV of requests, and what it
// remembers of prompts.
func accounted(m *wire.Memory) int64 {
	return m.GetWeightsBytes() + m.GetKvInUseBytes() + m.GetPrefixCacheBytes()
}

// silentPolls is how many polls an engine may say nothing before it counts as busy.
const silentPolls = 3

func (p *Pool) engineReading(e *entry, g *engine, known bool, reserved int64, now time.Time) memory.EngineReading {
	m, a := g.status.GetMemory(), g.status.GetActivity()
	r := memory.EngineReading{
		Key: e.key, Footprint: g.footprint, FootprintKnown: known,
		Active: m.GetActiveBytes(), Pooled: m.GetPooledBytes(), Accounted: accounted(m),
		Cached:   m.GetPrefixCacheBytes(),
		Reserved: reserved, Limit: g.config.LimitBytes, Loading: !g.ready && g.stop == nil,
		Stopping: g.stop != nil, Stuck: g.stop != nil && !g.stop.killed.IsZero() && now.Sub(g.stop.killed) > p.Timing.Killed,
		OnDemand: e.onDemand(), Holds: int64(len(g.holds)), Requests: a.GetRunning() + a.GetQueued(),
		BusyKnown: g.status != nil && now.Sub(g.heardAt) <= silentPolls*p.Timing.Poll,
		Priority:  e.order.Residency.Priority, TrimAsked: g.trim.asked, TrimAcknowledged: g.trim.acknowledged,
		HeadroomWanted: g.wanted(),
	}
	if r.Holds+r.Requests > 0 {
		g.use(now) // an engine in use does not age
	}
	r.LastUse = g.lastUse
	if r.OnDemand {
		r.IdleAfter = e.idleAfter()
	} else {
		r.Priority = anyPriority // what is always resident may have any idle engine's memory
	}
	return r
}

// engines that have a process.
func (p *Pool) engines() (engines []*engine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if e.engine != nil && e.engine.proc != nil && !e.engine.gone {
			engines = append(engines, e.engine)
		}
	}
	return engines
}

// measure reads the footprint of one engine. It reports false where it cannot
// be read, with the last figure; an engine that is gone holds nothing.
func (p *Pool) measure(g *engine) (bytes int64, ok bool) {
	n, err := g.proc.Footprint()
	switch {
	case errors.Is(err, probe.ErrGone):
		return 0, true
	case err != nil:
		p.Log.Error(err, "Cannot measure the footprint of an engine", "pid", g.pid)
		p.read(func() { bytes = g.footprint })
		return bytes, false
	}
	p.read(func() { g.footprint, g.measured = n, time.Now() })
	return n, true
}

// ownFootprint measures all engines now and adds up what they hold; where one
// cannot be measured its last figure counts.
func (p *Pool) ownFootprint() (sum int64) {
	held, _, _ := p.ownFootprints()
	for _, n := range held {
		sum += n
	}
	return sum
}

// ownFootprints is what each engine holds, by its process id, how many turned
// out to be gone, and whether all others could be measured.
func (p *Pool) ownFootprints() (held map[int]int64, gone int64, known bool) {
	held, known = map[int]int64{}, true
	for _, g := range p.engines() {
		n, err := g.proc.Footprint()
		switch {
		case errors.Is(err, probe.ErrGone):
			gone++
			continue
		case err != nil:
			p.read(func() { n = g.footprint })
			known = false
		}
		held[g.pid] = n
	}
	return held, gone, known
}

// residue is what is left where nothing should be; the caller holds mu.
func (p *Pool) residue(r memory.Reading) memory.Residue {
	var left memory.Residue
	for _, e := range r.Engines {
		left.Processes += e.Footprint
	}
	for k, bytes := range p.Ledger.Account().Holders {
		if e := p.entries[k]; e == nil || e.engine == nil && (e.want == wantGone || e.released) {
			left.Reserved += bytes
		}
	}
	return left
}

// boundLogs keeps the engines' logs from filling the disk.
func (p *Pool) boundLogs() {
	for _, g := range p.engines() {
		if err := boundLog(g.files.log); err != nil {
			p.Log.Error(err, "Failed to truncate an engine log")
		}
	}
}
