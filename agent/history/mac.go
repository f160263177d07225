package history

import (
	"context"
	"errors"
	"sync"
	"time"

	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/agent/probe"
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
	seen     map[int]int64 // processes, and what they held when last looked at
	peaks    map[int]int64 // the most each process was seen to hold
	strands  map[int]int64 // what stays wired when a process ends
	late     []late
}

// settings are what a history says of the Mac, in bytes.
type settings struct {
	total, metal, foreign, active, inactive, wired, stranded, swap int64
	unwired                                                        bool
	returns                                                        time.Duration
	pressure, thermal                                              string
}

// pages that are left to files: others take the inactive ones first, and then
// the active ones down to the last.
func (s *settings) pages(used int64) (active, inactive, free int64) {
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
	return &mac{Scripted: s, twin: t, seen: map[int]int64{}, peaks: map[int]int64{}, strands: map[int]int64{}, set: settings{wired: 1 << 30}}
}

func (m *mac) change(f func(*settings)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.set)
}

// fail makes readings fail; nil makes them work.
func (m *mac) fail(host, engines error) {
	m.mu.Lock()
	m.hostErr, m.engineEr = host, engines
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
	wired := s.wired + s.stranded
	for _, held := range m.seen {
		used, wired = used+held, wired+held
	}
	for _, l := range m.late {
		if now.Before(l.until) {
			used += l.bytes
		}
	}
	active, inactive, free := s.pages(used)
	return probe.Host{
		Chip: "M2Ultra", Total: s.total, MetalCap: s.metal, Free: free,
		Foreign: max(0, used-own), Used: used, Inactive: inactive, Active: active,
		Wired: wired, WiredKnown: !s.unwired, SwapUsed: s.swap, Pressure: s.pressure, Thermal: s.thermal,
	}, nil
}

// Footprint of one engine.
func (m *mac) Footprint(pid int) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.engineEr != nil {
		return 0, m.engineEr
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
		}
	}
	for pid, held := range m.seen {
		if _, lives := living[pid]; lives {
			continue
		}
		m.set.stranded += min(held, m.strands[pid])
		if rest := held - m.strands[pid]; rest > 0 && m.set.returns > 0 {
			m.late = append(m.late, late{rest, time.Now().Add(m.set.returns)})
		}
	}
	m.seen = living
}

// began notes what stays of a process when it ends.
func (m *mac) began(pid int, strands int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.strands[pid] = strands
}

// peak is the most that a process was seen to hold.
func (m *mac) peak(pid int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peaks[pid]
}

// tells reports whether this Mac says what is wired.
func (m *mac) tells() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.set.unwired
}
