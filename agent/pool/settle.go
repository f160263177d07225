package pool

import (
	"time"

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

// strandedNow reports whether more is wired than living processes account for
// and the bound allows, in one look. The condition wants two, at least 10 s
// apart.
func (p *Pool) strandedNow() (yes bool) {
	host, err := p.Probe.Host(p.life, p.ownFootprint())
	if err != nil || !host.WiredKnown {
		return false
	}
	own, _, known := p.ownFootprints() // after the host: what was wired for an engine that ends meanwhile counts as left
	if !known {
		return false
	}
	var sum int64
	for _, n := range own {
		sum += n
	}
	p.read(func() { yes = p.stranding.Exceeds(host.Wired, sum, host.Total) })
	return yes
}

// mayStart reports whether engines may be started: the Mac's memory is in order,
// and what is started can be written down; the caller holds mu.
func (p *Pool) mayStart() bool { return p.stranding.MayStart() && p.unsaved == "" }

// unsettled reports whether a restarted agent has to check the Mac's memory
// before it starts anything; the caller holds mu.
func (p *Pool) unsettled() bool { return !p.stranding.MayStart() || p.stranding.Behind(p.ends) }

// blocked is why no engine can be started for longer than a check of the Mac's
// memory takes, as a reason and a sentence with the next step; empty where that
// is not so. The caller holds mu.
func (p *Pool) blocked() (reason, why string) {
	switch {
	case !p.hostKnown, !p.stranding.MayStart() && p.mac.wiredUnseen:
		return v1alpha1.ReasonHostUnsettled, "the memory of this Mac could not be measured"
	case p.stranding.Evidence().Stranded:
		return v1alpha1.ReasonHostUnsettled, v1alpha1.FormatBytes(p.stranding.Evidence().Left) + " stayed wired when engines ended, and no living process owns them; reboot this Mac to free them"
	case p.unsaved != "":
		return ReasonStateNotSaved, "the agent's journal cannot be written (" + p.unsaved + "); free disk space on this Mac"
	}
	return "", ""
}

// watchWired lets the judge of stranded memory look once. host was read before
// the footprints are.
func (p *Pool) watchWired(host probe.Host, known bool) {
	w := memory.WiredReading{At: time.Now(), Wired: host.Wired, Known: known && host.WiredKnown, Measurable: host.WiredKnown || !known, Total: host.Total}
	held, gone, measured := p.ownFootprints()
	w.Held = held
	w.Known = w.Known && measured // else the bytes of an engine would seem to be left
	before, after := false, false
	p.change(func() {
		before = p.stranding.MayStart()
		w.Ends = p.ends + gone
		p.mac.wired, p.mac.wiredUnseen = p.stranding.Observe(w), !w.Known && w.Measurable
		after = p.stranding.MayStart()
	})
	if before != after {
		p.keepBooks()
	}
	if !before && after { // starts waited for it
		p.change(p.roomChanged)
		p.wake()
	}
}
