//go:build stories

package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/test/fleet"
)

const (
	// smallCeiling is less than any engine holds.
	smallCeiling = 8 << 20
	// warmCycles before the agent counts as empty: connections were made, and lists
	// of the last reclaims have some.
	warmCycles = 3
	// idleLimit is how long the runtime of an idle agent may take to release free pages:
	// it collects garbage every two minutes at the latest.
	idleLimit = 5 * time.Minute
)

// TestCycles has one Mac go through cycles of memory pressure. In each, requests
// load three OnDemand models, the ceiling is lowered until all are evicted, and
// raised again. Every reclaim agrees with /proc and is counted once, and at the
// end the agent's process holds what it held when it was empty, within 5 %.
func TestCycles(t *testing.T) {
	c := cycle{world: together(t, fleet.Mac{Name: "cycles", Chip: "M2Ultra", Memory: "64Gi"})}
	for _, name := range c.names() {
		c.model(t, fleet.Model{Name: name, File: "heavy.gguf", Mac: "cycles", OnDemand: true, DrainSeconds: 60})
	}
	t.Logf("the agent holds %d bytes before its first load", c.agentHolds(t))
	for range warmCycles {
		c.run(t)
	}
	empty := c.rests(t, func(int64) error { return nil })
	t.Logf("it holds %d bytes after %d cycles: this is empty", empty, warmCycles)
	for n := range *cycles {
		c.run(t)
		t.Logf("it holds %d bytes after cycle %d", c.agentHolds(t), n+1)
	}
	c.rests(t, func(now int64) error {
		if 20*(now-empty) > empty { // less is fine
			return fmt.Errorf("it holds %d bytes, more than 5 %% above the %d when it was empty", now, empty)
		}
		return nil
	})
	// A hold that were left on an engine would have it drain for a minute.
	for _, name := range c.names() {
		c.rouse(t, name)
	}
	began := time.Now()
	for _, name := range c.names() {
		must(t, c.Undeploy(t.Context(), name))
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the deletes took %s: a drain waited for a hold", took)
	}
	must(t, c.CheckEmpty(t.Context(), "cycles"))
}

type cycle struct{ *world }

func (c cycle) names() []string { return []string{"cycles-1", "cycles-2", "cycles-3"} }

// run loads every model, lowers the ceiling until all are evicted, and raises it.
func (c cycle) run(t *testing.T) {
	t.Helper()
	before, held := c.node(t, "cycles"), map[string]int64{} // by replica UID, from /proc
	for _, name := range c.names() {
		r := c.rouse(t, name)
		held[string(r.Replica.UID)] = footprint(t, r.Engine)
	}
	must(t, c.CheckLedger(t.Context(), "cycles"))
	must(t, c.SetCeiling(t.Context(), "cycles", smallCeiling))
	c.waitEmpty(t, "cycles")
	now := c.node(t, "cycles")
	must(t, fleet.CheckReclaims(before, now, held))
	fresh, err := fleet.Reclaimed(before, now)
	must(t, err)
	wantClean(t, fresh...)
	must(t, c.SetCeiling(t.Context(), "cycles", 0))
}

func (c cycle) agentHolds(t *testing.T) int64 {
	t.Helper()
	pid, err := c.Agent("cycles").PID()
	must(t, err)
	return footprint(t, fleet.Engine{PID: pid})
}

// rests waits until the agent's footprint has not moved by a percent for ten
// seconds and is as wanted.
func (c cycle) rests(t *testing.T, want func(int64) error) (mark int64) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), idleLimit, fmt.Errorf("not within %s", idleLimit))
	defer cancel()
	var since time.Time
	must(t, fleet.Poll(ctx, time.Second, "the agent releases what it does not need", func(context.Context) error {
		now := c.agentHolds(t)
		if off := now - mark; mark == 0 || max(off, -off) > mark/100 {
			mark, since = now, time.Now()
		}
		if time.Since(since) < 10*time.Second {
			return fmt.Errorf("it holds %d bytes and that still moves", now)
		}
		return want(now)
	}))
	return mark
}
