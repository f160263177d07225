package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// mac is the probe of the scripted Mac: what its engines hold comes from their
// twins, the rest from the history. Safe for concurrent use.
type mac struct {
	*probe.Scripted
	twin *enginetest.Twin

	mu       sync.Mutex // guards what follows
	set      settings
	hostErr  error
	engineEr error
	blind    map[string]bool   // replicas whose engines cannot be measured
	seen     map[int]int64     // processes, and what they held when last looked at
	peaks    map[int]int64     // the most each process was seen to hold
	pages    map[int]pages     // of each process
	limits   map[int]int64     // of each process
	over     map[int]time.Time // since when each process holds more than its limit
	left     int64             // what ended processes left wired
	leftAt   time.Time         // since when that is too much; zero: it is not
	boots    int
	late     []late
}

// pages are the parts of what a process holds that are not as the rest: those
// that stay wired when it ends, the only ones that are wired (-1: all are), and
// those that the compressor stores.
type pages struct{ strands, wired, compressed int64 }

// settings are what a history says of the Mac, in bytes.
type settings struct {
	total, metal, foreign, active, inactive, wired, stranded, swap int64
	unwired                                                        bool
	returns                                                        time.Duration
	pressure, thermal                                              string
}

// files are the pages that are left to them: others take the inactive ones
// first, and then the active ones down to the last.
func (s *settings) files(used int64) (active, inactive, free int64) {
	left := max(0, s.total-used)
	if active = min(s.active, left); s.active > 0 {
		active = max(active, 16<<10)
	}
	inactive = min(s.inactive, max(0, left-active))
	return active, inactive, max(0, left-active-inactive)
}

// late bytes are used until the Mac has them back.
type late struct {
	bytes int64
	until time.Time
}

func newMac(s *probe.Scripted, t *enginetest.Twin) *mac {
	m := &mac{Scripted: s, twin: t, blind: map[string]bool{}, seen: map[int]int64{}, peaks: map[int]int64{}, pages: map[int]pages{},
		limits: map[int]int64{}, over: map[int]time.Time{}, set: settings{wired: 1 << 30}}
	m.reboot()
	return m
}

// reboot frees what no process owns. The first process names the boot.
func (m *mac) reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look()
	m.boots++
	m.set.stranded, m.left, m.leftAt, m.late = 0, 0, time.Time{}, nil
	m.Scripted.SetProcess(1, fmt.Sprintf("boot/%d", m.boots), 0)
}

func (m *mac) change(f func(*settings)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.set)
	if m.set.stranded == 0 {
		m.left, m.leftAt = 0, time.Time{}
	}
}

// fail makes readings fail; nil makes them work, those of single engines too.
func (m *mac) fail(host, engines error) {
	m.mu.Lock()
	m.hostErr, m.engineEr = host, engines
	clear(m.blind)
	clear(m.over)
	m.mu.Unlock()
}

// failFor makes the readings of one replica's engines fail.
func (m *mac) failFor(replica string) {
	m.mu.Lock()
	m.blind[replica] = true
	m.mu.Unlock()
}

var errProbe = errors.New("the history says so")

// Host is what a Mac's own probe would say.
func (m *mac) Host(_ context.Context, own int64) (probe.Host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hostErr != nil {
		return probe.Host{}, m.hostErr
	}
	m.look()
	s, now := m.set, time.Now()
	used := s.foreign + s.stranded
	wired, compressed := s.wired+s.stranded, int64(0)
	for pid, held := range m.seen {
		p := m.pages[pid]
		if used += held; p.wired < 0 {
			wired += held
		} else {
			wired += min(held, p.wired)
		}
		compressed += min(held, p.compressed)
	}
	for _, l := range m.late {
		if now.Before(l.until) {
			used += l.bytes
		}
	}
	active, inactive, free := s.files(used - compressed/2) // two pages fit into one
	return probe.Host{
		Chip: "M2Ultra", Total: s.total, MetalCap: s.metal, Free: free,
		Foreign: max(0, used-own), Used: used, Inactive: inactive, Active: active,
		Wired: wired, WiredKnown: !s.unwired, Compressed: compressed, SwapUsed: s.swap, Pressure: s.pressure, Thermal: s.thermal,
	}, nil
}

// footprint of one engine of a replica.
func (m *mac) footprint(replica string, pid int) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.engineEr != nil {
		return 0, m.engineEr
	}
	if m.blind[replica] {
		return 0, errProbe
	}
	n, err := m.Scripted.Footprint(pid)
	m.peaks[pid] = max(m.peaks[pid], n)
	return n, err
}

// look brings seen up to date; the caller holds mu.
func (m *mac) look() {
	living := map[int]int64{}
	for _, e := range m.twin.Engines() {
		if n, err := m.Scripted.Footprint(e.PID()); err == nil {
			living[e.PID()] = n
			m.peaks[e.PID()] = max(m.peaks[e.PID()], n)
			m.compare(e.PID(), n)
		}
	}
	for pid, held := range m.seen {
		if _, lives := living[pid]; lives {
			continue
		}
		strands := m.pages[pid].strands
		m.set.stranded += min(held, strands)
		m.left += min(held, strands)
		if m.leftAt.IsZero() && m.left > memory.StrandingBound(m.set.total) {
			m.leftAt = time.Now()
		}
		if rest := held - strands; rest > 0 && m.set.returns > 0 {
			m.late = append(m.late, late{rest, time.Now().Add(m.set.returns)})
		}
	}
	m.seen = living
}

// compare notes since when a process holds more than its limit; the caller holds mu.
func (m *mac) compare(pid int, held int64) {
	if held <= m.limits[pid] {
		delete(m.over, pid)
	} else if m.over[pid].IsZero() {
		m.over[pid] = time.Now()
	}
}

// overSince is since when a process holds more than its limit, as far as the agent
// can have seen it; zero: it does not.
func (m *mac) overSince(pid int) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hostErr != nil || m.engineEr != nil || len(m.blind) > 0 {
		return time.Time{}
	}
	return m.over[pid]
}

// began notes the pages and the limit of a process.
func (m *mac) began(pid int, p pages, limit int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pages[pid], m.limits[pid] = p, limit
}

// strandedSince is since when ended engines have left too much wired, as far as
// the agent can have seen it; zero: they have not.
func (m *mac) strandedSince() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leftAt
}

// peak is the most that a process was seen to hold.
func (m *mac) peak(pid int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peaks[pid]
}

// perGiB is a second for each GiB that a process was seen to hold, up to those of the Mac.
func (m *mac) perGiB(pid int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(min(m.peaks[pid], m.set.total)/footprint.GiB) * time.Second
}

// loadsNothing reports whether no model is loaded on this Mac now, also one that has its room.
func (m *mac) loadsNothing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hostErr != nil || m.set.pressure == probe.Critical || m.set.thermal == probe.Critical
}

// reportsWired reports whether this Mac reports wired memory.
func (m *mac) reportsWired() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.set.unwired
}
