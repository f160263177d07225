package kv

import (
	"context"
	"errors"
	"fmt"
)

// fetch is one copy of a block from the lower tier. done is closed at its end, and err is good
// then.
type fetch struct {
	done chan struct{}
	err  error
}

// Fetch copies a block of n bytes from the lower tier if there is room for it; one of another size is
// damaged. Callers that want the same block share one copy: each of their own would take the room of blocks of
// others.
func (m *Memory) Fetch(ctx context.Context, key Key, n int64) error {
	for {
		running, first := m.beginFetch(key)
		switch {
		case running == nil:
			return nil
		case first:
			return m.fetch(ctx, key, n, running)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := running.err; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		} // else it is there now, or its caller left
	}
}

// beginFetch returns the copy of a block, and reports whether it is the caller's; nil if the block
// is in memory.
func (m *Memory) beginFetch(key Key) (running *fetch, first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.index.held[key] != nil {
		return nil, false
	}
	if running := m.fetches[key]; running != nil {
		return running, false
	}
	running = &fetch{done: make(chan struct{})}
	m.fetches[key] = running
	return running, true
}

// fetch copies a block for all that wait for it.
func (m *Memory) fetch(ctx context.Context, key Key, n int64, f *fetch) (err error) {
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		f.err = err
		delete(m.fetches, key)
		close(f.done)
	}()
	if m.lower == nil {
		return ErrAbsent
	}
	size, ok := m.lower.Size(key)
	if !ok {
		return ErrAbsent
	}
	saved, err := Dropped, fmt.Errorf("a block of %d bytes, want %d: %w", size, n, ErrCorrupt)
	if size == n {
		saved, err = m.make(key, n, func(dst []byte) error { return m.lower.Read(ctx, key, dst) }, false)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case errors.Is(err, ErrCorrupt):
		m.stats.Damaged++
	case err == nil && saved == Dropped:
		return fmt.Errorf("no room for %d bytes: %w", n, ErrAbsent)
	case err == nil:
		m.stats.Fetched++
	}
	return err
}
