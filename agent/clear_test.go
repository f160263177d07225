package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// clearing is a desired state with a request to clear caches.
func clearing(generation int64, request string, tier v1alpha1.CacheTier, a ...v1alpha1.Assignment) journal.Desired {
	o := ordersOf(generation, a...)
	o.ClearCache = &v1alpha1.CacheClear{Request: request, Tier: tier}
	return o
}

// cleared waits for the answer to an order.
func (m *mac) cleared(t *testing.T, request string) v1alpha1.CacheCleared {
	t.Helper()
	var c v1alpha1.CacheCleared
	poll(t, func() error {
		s := m.reports.status()
		if s.CacheCleared == nil || s.CacheCleared.Request != request {
			return fmt.Errorf("reported is %+v, want the order %s", s.CacheCleared, request)
		}
		c = *s.CacheCleared
		return nil
	})
	return c
}

// onDisk is what the files of the cache take, read by the test itself.
func (m *mac) onDisk(t *testing.T) (n int) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.state, "kv", "*", "*", "?", "*.kv"))
	if err != nil {
		t.Fatal(err)
	}
	return len(paths)
}

// The result states the freed bytes, and each request is executed once, even if
// the agent restarts.
func TestClearingCachesFreesMemoryThenDisk(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	m.boot()
	a := m.caching()
	m.orders.next <- ordersOf(1, a)
	m.another(t, 0)
	first := m.computed(t, "The first")

	m.orders.next <- clearing(2, "memory-1", v1alpha1.CacheTierMemory, a)
	c := m.cleared(t, "memory-1")
	if c.MemoryBytes == nil || *c.MemoryBytes <= 0 || c.DiskBytes != nil || c.Message != "" || len(c.Engines) != 1 || *c.Engines[0].Bytes != *c.MemoryBytes {
		t.Errorf("of memory alone: %+v", c)
	}
	if m.onDisk(t) == 0 {
		t.Error("the disk was cleared, too")
	}
	m.restored(t, "memory was cleared", "The first", first)

	before := m.books(t).UsedBytes
	m.orders.next <- clearing(3, "all-1", "", a)
	c = m.cleared(t, "all-1")
	if c.MemoryBytes == nil || *c.MemoryBytes <= 0 || c.DiskBytes == nil || *c.DiskBytes < before || before <= 0 || c.Message != "" {
		t.Errorf("of all: %+v, %d bytes were on the disk", c, before)
	}
	if n := m.onDisk(t); n != 0 {
		t.Errorf("%d files are left", n)
	}
	if text, cached := m.generate(t, "The first"); cached != 0 || text != first {
		t.Errorf("%d tokens were restored of what was cleared; %q, want %q", cached, text, first)
	}
	m.computed(t, "The second")

	files := m.onDisk(t)
	m.halt()
	m.boot()
	m.orders.next <- clearing(3, "all-1", "", a)
	m.another(t, 0)
	m.orders.next <- clearing(4, "memory-2", v1alpha1.CacheTierMemory, a) // what came before it is done
	m.cleared(t, "memory-2")
	if m.onDisk(t) < files {
		t.Error("an order was carried out twice")
	}
	m.orders.next <- clearing(5, "disk-1", v1alpha1.CacheTierDisk, a)
	if c := m.cleared(t, "disk-1"); c.MemoryBytes != nil || len(c.Engines) != 0 || c.DiskBytes == nil || *c.DiskBytes <= 0 {
		t.Errorf("of the disk alone: %+v", c)
	}
}

// A cache that was not cleared must not be reported as cleared.
func TestClearingReportsAFolderThatCannotBeOpened(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	if err := os.WriteFile(m.cache.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.boot()
	m.orders.next <- clearing(1, "r", v1alpha1.CacheTierDisk)
	if c := m.cleared(t, "r"); c.Message != "disk: "+errNoCache.Error() || *c.DiskBytes != 0 {
		t.Errorf("%+v", c)
	}
}

func TestStatusShowsModelsMemoryPressureAndHardware(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	m.boot()
	m.orders.next <- ordersOf(1, m.caching())
	m.another(t, 0)
	m.generate(t, "The first")
	poll(t, func() error {
		m.agent.changed()
		s := m.reports.status()
		if len(s.Assignments) != 1 || s.Assignments[0].Activity == nil {
			return fmt.Errorf("no activity: %+v", s.Assignments)
		}
		a, mem := s.Assignments[0].Activity, s.Assignments[0].Memory
		switch {
		case a.Running != 0 || a.Queued != 0 || a.PromptTokensTotal < 140 || a.GeneratedTokensTotal == 0 || a.CacheBytes == 0:
			return fmt.Errorf("activity: %+v", a)
		case mem.WeightsBytes == 0 || mem.FootprintBytes == 0 || mem.ActiveBytes < mem.WeightsBytes:
			return fmt.Errorf("memory: %+v", mem)
		case s.Chip != "M2Ultra" || s.Memory.TotalBytes != 192<<30 || s.Memory.CeilingBytes == 0 || s.Memory.ActiveBytes == 0 || s.Memory.PressureLevel != v1alpha1.PressureNormal || s.Backend == "":
			return fmt.Errorf("the Mac: %s, %s, %+v", s.Chip, s.Backend, s.Memory)
		}
		return nil
	})
}

// A request can be older than the agent that reads it.
func TestClearRequestWaitsUntilTheCacheFolderIsOpened(t *testing.T) {
	c := &diskCache{tried: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := c.clear(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
