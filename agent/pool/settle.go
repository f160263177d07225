package pool

import (
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// settleRounds is how often the host is looked at before the check gives up.
const settleRounds = 10

// settle asks the host whether it got back what the engine held. While other
// engines work its figures cannot be attributed: one look, no waiting, nobody
// disturbed. The lock is not held.
func (p *Pool) settle(g *engine, freed *int64) v1alpha1.HostCheck {
	if freed == nil || g.stop.before.Total == 0 {
		return v1alpha1.HostCheckIndeterminate
	}
	for range settleRounds {
		now, err := p.Probe.Host(p.life, p.ownFootprint())
		others := false
		p.read(func() { others = !g.stop.alone || !p.alone(g) })
		if err != nil || others {
			return v1alpha1.HostCheckIndeterminate
		}
		if memory.Settled(g.stop.before, now, *freed) {
			return v1alpha1.HostCheckVerified
		}
		select {
		case <-p.life.Done():
			return v1alpha1.HostCheckIndeterminate
		case <-time.After(p.Timing.Settle):
		}
	}
	if p.strandedNow() {
		return v1alpha1.HostCheckStranded
	}
	return v1alpha1.HostCheckIndeterminate
}

// strandedNow reports whether more is wired than the living own and the bound
// allows, in one look. The condition wants two, at least 10 s apart.
func (p *Pool) strandedNow() (yes bool) {
	host, err := p.Probe.Host(p.life, p.ownFootprint())
	if err != nil || !host.WiredKnown {
		return false
	}
	own, known := p.ownFootprints() // after the host: what was wired for an engine that goes meanwhile counts as nobody's
	if !known {
		return false
	}
	p.read(func() {
		yes = p.stranding.BaselineKnown && host.Wired-own-p.stranding.Baseline > memory.StrandingBound(host.Total)
	})
	return yes
}

// watchWired lets the judge of stranded memory look once. host was read before
// the footprints are.
func (p *Pool) watchWired(host probe.Host, known bool) {
	w := memory.WiredReading{At: time.Now(), Wired: host.Wired, Known: known && host.WiredKnown, Measurable: host.WiredKnown || !known, Total: host.Total}
	own, measured := p.ownFootprints()
	w.Footprints, w.Engines = own, len(p.engines())
	w.Known = w.Known && measured // else the bytes of an engine would seem to be nobody's
	before, after := false, false
	p.change(func() {
		before = p.stranding.MayStart()
		p.mac.wired = p.stranding.Observe(w)
		after = p.stranding.MayStart()
	})
	if before == after {
		return
	}
	if after {
		p.wake() // starts waited for it
	}
	if err := p.Journal.Update(func(s *journal.State) { s.Unsettled = !after }); err != nil {
		p.Log.Error(err, "Failed to store whether the host's memory is settled")
	}
}
