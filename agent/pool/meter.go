package pool

import (
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// meter measures the memory of this Mac and of each engine.
type meter struct {
	*registry
	log    logr.Logger
	timing Timing
	probe  probe.Probe

	// registry.mu guards what follows.
	policy     v1alpha1.MacMemoryPolicy
	host       probe.Host // as last measured; hostKnown once it was
	hostKnown  bool
	measuredAt time.Time
}

// known reports whether the host was measured; the caller holds mu.
func (mt *meter) known() bool { return mt.hostKnown }

// last returns the host's memory as last measured; the caller holds mu.
func (mt *meter) last() probe.Host { return mt.host }

// hostNow measures the host.
func (mt *meter) hostNow() (probe.Host, error) { return mt.probe.Host(mt.life, mt.ownFootprint()) }

// setPolicy applies what the administrator allows; the caller holds mu.
func (mt *meter) setPolicy(policy v1alpha1.MacMemoryPolicy) {
	mt.policy = policy
	mt.setLedger()
}

// setLedger sets the limits of the ledger from the machine and its policy; the
// caller holds mu.
func (mt *meter) setLedger() {
	if !mt.hostKnown {
		return
	}
	h := footprint.Host{Total: mt.host.Total, MetalCap: mt.host.MetalCap, Policy: footprint.Policy(mt.policy.Policy)}
	if mt.policy.Ceiling != nil {
		h.Explicit = mt.policy.Ceiling.Value()
	}
	mt.ledger.SetHost(h)
}

// sample measures the Mac and its engines once and keeps the figures. What cannot
// be measured keeps its last figure, and is marked in the reading.
func (mt *meter) sample() memory.Reading {
	r, _ := mt.sampleHeld()
	return r
}

// sampleHeld is sample, and what each engine held before the host was measured,
// by its process id.
func (mt *meter) sampleHeld() (memory.Reading, map[int]int64) {
	known, held, own := map[*engine]bool{}, map[int]int64{}, int64(0)
	for _, g := range mt.running() {
		n, ok := mt.measure(g)
		known[g], held[g.pid] = ok, n
		own += n
	}
	host, err := mt.probe.Host(mt.life, own)
	if err != nil && mt.life.Err() == nil {
		mt.log.Error(err, "Cannot measure the memory of this Mac")
	}
	first := false
	var r memory.Reading
	mt.change(func() {
		if err == nil {
			first = !mt.hostKnown
			mt.host, mt.hostKnown, mt.measuredAt = host, true, time.Now()
			mt.setLedger()
		}
		r = mt.reading(known, err == nil)
	})
	if first {
		mt.replan()
	}
	return r, held
}

// reading puts a poll's figures together; the caller holds mu. The keys of known
// are the engines that were measured, its values whether that succeeded.
func (mt *meter) reading(known map[*engine]bool, hostKnown bool) memory.Reading {
	now := time.Now()
	account := mt.ledger.Account()
	r := memory.Reading{
		Now: now, Host: mt.host, HostKnown: hostKnown, Limits: account.Limits,
		Policy: footprint.Policy(mt.policy.Policy),
	}
	for _, e := range mt.entries {
		g := e.engine
		if g == nil {
			continue
		}
		if g.state == Exited { // it holds no memory, but its reservation until the host was checked
			r.Engines = append(r.Engines, memory.EngineReading{Key: e.key, FootprintKnown: true, Stopping: true, Reserved: account.Holders[e.key]})
			continue
		}
		// A starting engine holds nothing yet, and will.
		if ok, measured := known[g]; measured || g.state == Starting {
			r.Engines = append(r.Engines, mt.engineReading(e, g, ok || g.state == Starting, account.Holders[e.key], now))
		}
	}
	slices.SortFunc(r.Engines, func(a, b memory.EngineReading) int { return byKey(a.Key, b.Key) })
	return r
}

// accounted is what an engine can account for: weights, the KV of requests, and
// its prefix cache. The sum of accepted figures does not overflow.
func accounted(m *wire.Memory) int64 {
	return m.GetWeightsBytes() + m.GetKvInUseBytes() + m.GetPrefixCacheBytes()
}

// silentPolls is after how many polls without a status an engine counts as busy.
const silentPolls = 3

func (mt *meter) engineReading(e *entry, g *engine, known bool, reserved int64, now time.Time) memory.EngineReading {
	m := g.status.GetMemory()
	r := memory.EngineReading{
		Key: e.key, Footprint: g.footprint, FootprintKnown: known,
		Active: mt.figure(m.GetActiveBytes()), Pooled: mt.figure(m.GetPooledBytes()), Accounted: mt.figure(accounted(m)),
		Cached:   mt.figure(m.GetPrefixCacheBytes()),
		Reserved: reserved, Limit: g.config.LimitBytes, Loading: g.state == Starting || g.state == Loading,
		Stopping: g.leaving(), Lasting: g.lasts(now), Stuck: g.stop != nil && !g.stop.killed.IsZero() && now.Sub(g.stop.killed) > mt.timing.Killed,
		OnDemand: e.onDemand() || g.leaving() && e.assignment.Residency.OnDemand(), Namespace: e.assignment.Namespace, LoadBegan: g.loadBegan, ReadySince: g.readySince, Tenure: e.tenure, Holds: int64(len(g.holds)), Requests: requestsOf(g.status),
		BusyKnown: g.status != nil && now.Sub(g.statusAt) <= silentPolls*mt.timing.Poll,
		Priority:  e.assignment.Residency.EvictionPriority, TrimAsked: g.trim.asked, TrimAcknowledged: g.trim.acknowledged,
		HeadroomWanted: mt.figure(g.wanted()),
	}
	if r.Holds+r.Requests > 0 {
		g.use(now) // an engine in use does not age
	}
	g.lastUse = earlier(g.lastUse, now) // an adopted engine's may be of a clock that was ahead
	r.LastUse = g.lastUse
	if r.OnDemand {
		r.IdleAfter = e.idleAfter()
	} else {
		r.Priority = anyPriority // an always-resident replica may take any idle engine's memory
	}
	return r
}

// figure is a figure of an engine as far as it is possible: at most this Mac's memory,
// which may have been unknown when the status came; the caller holds mu.
func (mt *meter) figure(n int64) int64 {
	if mt.host.Total > 0 {
		return within(n, mt.host.Total)
	}
	return count(n)
}

// measure reads the footprint of one engine. It reports false where it cannot
// be read, with the last figure; an engine that is gone holds nothing.
func (mt *meter) measure(g *engine) (bytes int64, ok bool) {
	n, err := g.proc.Footprint()
	switch {
	case errors.Is(err, probe.ErrGone):
		return 0, true
	case err != nil:
		mt.log.Error(err, "Cannot measure the footprint of an engine", "pid", g.pid)
		mt.read(func() { bytes = g.footprint })
		return bytes, false
	}
	mt.read(func() { g.footprint, g.measured = n, time.Now() })
	return n, true
}

// ownFootprint measures all engines now and adds up what they hold; where one
// cannot be measured its last figure counts.
func (mt *meter) ownFootprint() (sum int64) {
	held, _, _ := mt.ownFootprints()
	for _, n := range held {
		sum += n
	}
	return sum
}

// ownFootprints is what each engine holds, by its process id, how many turned
// out to be gone, and which of the others could not be measured.
func (mt *meter) ownFootprints() (held map[int]int64, gone int64, unmeasured []*engine) {
	held = map[int]int64{}
	for _, g := range mt.running() {
		n, err := g.proc.Footprint()
		switch {
		case errors.Is(err, probe.ErrGone):
			gone++
			continue
		case err != nil:
			mt.read(func() { n = g.footprint })
			unmeasured = append(unmeasured, g)
		}
		held[g.pid] = n
	}
	return held, gone, unmeasured
}

// assumed returns what engines that cannot be measured have reserved, by their process
// id; false if one of them could lately.
func (mt *meter) assumed(unmeasured []*engine) (held map[int]int64, ok bool) {
	held, ok = map[int]int64{}, true
	mt.read(func() {
		account := mt.ledger.Account()
		for _, g := range unmeasured {
			last := g.measured
			if last.IsZero() {
				last = g.loadBegan
			}
			ok = ok && time.Since(last) >= memory.UnmeasuredTime
			held[g.pid] = max(g.footprint, account.Holders[g.key])
		}
	})
	return held, ok
}

// residue returns the memory in use while no engine runs; the caller holds mu.
func (mt *meter) residue(r memory.Reading) memory.Residue {
	var left memory.Residue
	for _, e := range r.Engines {
		left.Processes += e.Footprint
	}
	for k, bytes := range mt.ledger.Account().Holders {
		if e := mt.entries[k]; e == nil || e.engine == nil && (e.want == wantGone || e.released) {
			left.Reserved += bytes
		}
	}
	return left
}
