package pool

import (
	"maps"
	"time"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// startGate decides whether engines may be started on this Mac: not while the
// memory that an ended engine held may still be wired, and not while the
// journal cannot be written.
type startGate struct {
	*meter
	recorder *recorder
	// boot identifies this boot of the machine; empty if unknown.
	boot string

	// registry.mu guards what follows.
	stranding memory.Stranding
	stored    memory.Evidence // of stranding, as the journal has it
	// storedUnsettled is unsettled as the journal has it.
	storedUnsettled bool
	ends            int64 // processes whose end was observed
	wired           memory.Finding
	unseen          bool // wired memory could not be measured in the last poll
}

// mayStart reports whether engines may be started: the Mac's memory is in order,
// and what is started can be written down; the caller holds mu.
func (sg *startGate) mayStart() bool { return sg.stranding.MayStart() && sg.recorder.unsaved == "" }

// unsettled reports whether a restarted agent has to check the Mac's memory
// before it starts anything; the caller holds mu.
func (sg *startGate) unsettled() bool { return !sg.inOrder() || sg.stranding.Outdated(sg.ends) }

// noteUnsettled notes what the journal has of unsettled; the caller holds mu.
func (sg *startGate) noteUnsettled(stored bool) { sg.storedUnsettled = stored }

// inOrder reports whether the host's memory is in order; the caller holds mu.
func (sg *startGate) inOrder() bool { return sg.stranding.MayStart() }

// blocked returns why no engine can be started for longer than a check of the
// Mac's memory takes, as a reason and a sentence with the next step; empty if
// there is no such cause. The caller holds mu.
func (sg *startGate) blocked() (reason, why string) {
	switch {
	case !sg.hostKnown, !sg.stranding.MayStart() && sg.unseen:
		return v1alpha1.ReasonHostUnsettled, "the memory of this Mac could not be measured"
	case sg.stranding.Evidence().Stranded:
		return v1alpha1.ReasonHostUnsettled, v1alpha1.FormatBytes(sg.stranding.Evidence().Left) + " stayed wired when engines ended, and no living process owns them; reboot this Mac to free them"
	case sg.recorder.unsaved != "":
		return reasonStateNotSaved, "the agent's journal cannot be written (" + sg.recorder.unsaved + "); free disk space on this Mac"
	}
	return "", ""
}

// exited counts the end of a process; after an unclean one nothing is started
// until the host's memory was checked. The caller holds mu.
func (sg *startGate) exited(unclean bool) {
	sg.ends++
	if unclean {
		sg.unclean()
	}
}

// unclean has the host's memory checked before anything is started; the caller
// holds mu.
func (sg *startGate) unclean() { sg.stranding.Unclean() }

// watchWired looks for stranded memory once. host was measured after held, the
// footprints by process id; both are read again while engines change by much.
func (sg *startGate) watchWired(host probe.Host, known bool, held map[int]int64) {
	w := sg.readWired(host, known, held)
	for round := 1; round < wiredRounds && w.Known && !w.Assumed && !w.Consistent(); round++ {
		w = sg.readWiredAgain()
	}
	before, after := false, false
	sg.change(func() {
		before = sg.stranding.MayStart()
		sg.wired, sg.unseen = sg.stranding.Observe(w), !w.Known && w.Measurable
		after = sg.stranding.MayStart()
	})
	if before != after {
		sg.storeBooks()
	}
	if !before && after { // starts waited for this
		sg.change(sg.roomChanged)
		sg.replan()
	}
}

// wiredRounds is how often wired memory is read in one poll while engines change
// by much in between.
const wiredRounds = 3

// readWiredAgain reads wired memory between two readings of the footprints.
func (sg *startGate) readWiredAgain() memory.WiredReading {
	before, _, _ := sg.ownFootprints()
	host, err := sg.probe.Host(sg.life, 0)
	return sg.readWired(host, err == nil, before)
}

// readWired reads the footprints after the host was measured.
func (sg *startGate) readWired(host probe.Host, known bool, before map[int]int64) memory.WiredReading {
	starting := sg.starting() // first: a process that the host counted is either starting or in Held
	held, gone, unmeasured := sg.ownFootprints()
	assumed, enough := sg.assumed(unmeasured)
	maps.Copy(before, assumed)
	maps.Copy(held, assumed)
	w := memory.WiredReading{
		At: time.Now(), Wired: host.Wired, Measurable: host.WiredKnown || !known, Total: host.Total,
		Known:  known && host.WiredKnown && enough, // else the bytes of an engine would seem to be left
		Before: before, Held: held, Starting: starting, Assumed: len(unmeasured) > 0,
	}
	sg.read(func() { w.Ends = sg.ends + gone })
	return w
}

// starting reports whether an engine is being started, whose process is not
// measured yet.
func (sg *startGate) starting() (yes bool) {
	sg.read(func() {
		for _, e := range sg.entries {
			yes = yes || e.engine != nil && e.engine.state == Starting
		}
	})
	return yes
}

// settleRounds is how often the host is measured before the check gives up.
const settleRounds = 10

// settle checks that the host got back what the engine held. While there are
// other engines its figures cannot be attributed: it measures once and does not
// wait. The lock is not held.
func (sg *startGate) settle(g *engine, freed *int64) v1alpha1.HostCheck {
	if freed == nil || g.stop.before.Total == 0 {
		return v1alpha1.HostCheckIndeterminate
	}
	for range settleRounds {
		now, err := sg.hostNow()
		others := false
		sg.read(func() { others = !g.stop.alone || !sg.alone(g) })
		if err != nil || others {
			return v1alpha1.HostCheckIndeterminate
		}
		if memory.Settled(g.stop.before, now, *freed) {
			return v1alpha1.HostCheckVerified
		}
		select {
		case <-sg.life.Done():
			return v1alpha1.HostCheckIndeterminate
		case <-time.After(sg.timing.Settle):
		}
	}
	if sg.strandedNow() {
		return v1alpha1.HostCheckStranded
	}
	return v1alpha1.HostCheckIndeterminate
}

// strandedNow measures once and reports whether more memory is wired than living
// processes account for and the bound allows. The condition needs two such
// measurements, at least 10 s apart.
func (sg *startGate) strandedNow() (yes bool) {
	host, err := sg.hostNow()
	if err != nil || !host.WiredKnown {
		return false
	}
	own, _, unmeasured := sg.ownFootprints() // after the host: what was wired for an engine that ends meanwhile counts as left
	if len(unmeasured) > 0 {
		return false
	}
	var sum int64
	for _, n := range own {
		sum += n
	}
	sg.read(func() { yes = sg.stranding.Exceeds(host.Wired, sum, host.Total) })
	return yes
}

// restore takes over what earlier agents found since the machine started.
func (sg *startGate) restore(s journal.State) {
	if start, err := sg.probe.StartTime(firstProcess); err == nil {
		sg.boot = start
	}
	if w := s.Wired; w != nil && sg.boot != "" && w.Boot == sg.boot {
		sg.stored = memory.Evidence{Baseline: w.Baseline, BaselineKnown: true, Left: w.Left, Elsewhere: w.Elsewhere, Stranded: w.Stranded}
		sg.stranding.Restore(sg.stored)
	}
	if sg.storedUnsettled = s.Unsettled; s.Unsettled {
		sg.stranding.Unclean()
	}
}

// wiredRecord is evidence as the journal keeps it: for this boot of the machine,
// or not at all where boots cannot be distinguished.
func (sg *startGate) wiredRecord(e memory.Evidence) *journal.Wired {
	if sg.boot == "" || !e.BaselineKnown {
		return nil
	}
	return &journal.Wired{Boot: sg.boot, Baseline: e.Baseline, Left: e.Left, Elsewhere: e.Elsewhere, Stranded: e.Stranded}
}

// evidenceStep is by how much a figure moves before it is written down again:
// far less than what counts as stranded.
const evidenceStep = 256 * footprint.MiB

func evidenceMoved(kept, now memory.Evidence) bool {
	far := func(a, b int64) bool { return max(a-b, b-a) >= evidenceStep }
	return kept.BaselineKnown != now.BaselineKnown || kept.Stranded != now.Stranded ||
		far(kept.Baseline, now.Baseline) || far(kept.Left, now.Left) || far(kept.Elsewhere, now.Elsewhere)
}

// firstProcess starts with the machine: its start time identifies the boot.
const firstProcess = 1
