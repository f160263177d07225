package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Scripted is a probe whose figures a test sets: the twin of the real ones.
type Scripted struct {
	mu        sync.Mutex // guards what follows
	host      Host
	err       error
	processes map[int]scriptedProcess
	hidden    map[int]bool
}

var errHidden = errors.New("the footprint cannot be read")

type scriptedProcess struct {
	footprint int64
	start     string
}

// Hide makes the footprint of a process unreadable.
func (s *Scripted) Hide(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[pid] = true
}

// Show makes it readable again.
func (s *Scripted) Show(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hidden, pid)
}

// NewScripted begins with that host and no process.
func NewScripted(h Host) *Scripted {
	return &Scripted{host: h, processes: map[int]scriptedProcess{}, hidden: map[int]bool{}}
}

// SetProcess makes a process live, or changes its footprint.
func (s *Scripted) SetProcess(pid int, start string, footprint int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[pid] = scriptedProcess{footprint, start}
}

// EndProcess makes it gone.
func (s *Scripted) EndProcess(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.processes, pid)
}

// SetHost changes the machine's figures.
func (s *Scripted) SetHost(h Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = h
}

// Fail makes every reading fail with err, until it is nil.
func (s *Scripted) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Host is the scripted host; Used follows from own and its foreign bytes, and
// Free from those and the total where the script says nothing of it.
func (s *Scripted) Host(_ context.Context, own int64) (Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.host
	h.Used = own + h.Foreign
	if h.Free == 0 {
		h.Free = max(0, h.Total-h.Used)
	}
	return h, s.err
}

// Footprint is the scripted footprint.
func (s *Scripted) Footprint(pid int) (int64, error) {
	p, err := s.process(pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.hidden[pid] {
		return 0, errHidden
	}
	return p.footprint, err
}

// StartTime is the scripted start.
func (s *Scripted) StartTime(pid int) (string, error) {
	p, err := s.process(pid)
	return p.start, err
}

func (s *Scripted) process(pid int) (scriptedProcess, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return scriptedProcess{}, s.err
	}
	p, ok := s.processes[pid]
	if !ok {
		return p, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return p, nil
}
