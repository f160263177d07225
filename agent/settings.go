package agent

import (
	"context"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// defaults are the settings that the agent was started with.
func (a *Agent) defaults() settings {
	s := settings{level: v1alpha1.LogInfo}
	if a.Verbose {
		s.level = v1alpha1.LogDebug
	}
	if a.Cache != nil {
		s.budget = a.Cache.Budget
	}
	return s
}

// settings that an agent follows.
type settings struct {
	level  v1alpha1.LogLevel
	budget blocks.Budget
}

// with is what holds where so much was ordered: what is absent stays.
func (s settings) with(o v1alpha1.AgentSettings) settings {
	if o.LogLevel != "" {
		s.level = o.LogLevel
	}
	if o.CacheLimit != nil {
		s.budget.LimitBytes = o.CacheLimit.Value()
	}
	if o.CacheFree != nil {
		s.budget.FloorBytes = o.CacheFree.Value()
	}
	return s
}

// inForce is what is reported of them.
func (s settings) inForce(cache bool, refused string) v1alpha1.SettingsInForce {
	f := v1alpha1.SettingsInForce{LogLevel: s.level, Message: clip(refused, 1024)}
	if !cache {
		return f
	}
	f.CacheFreeBytes = &s.budget.FloorBytes
	if s.budget.LimitBytes > 0 {
		f.CacheLimitBytes = &s.budget.LimitBytes
	}
	return f
}

// set follows the settings of each order until ctx ends; those of the journal are
// followed since New. It may wait for the disk, so orders do not.
func (a *Agent) set(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.settled:
		}
		a.setNow()
		a.changed()
	}
}

// setNow follows the settings that were ordered last.
func (a *Agent) setNow() {
	o := a.journal.Snapshot().Orders
	if o == nil {
		o = &journal.Orders{}
	}
	now := a.defaults().with(o.Settings)
	if a.LogDebug != nil {
		a.LogDebug(now.level == v1alpha1.LogDebug)
	}
	if a.cache != nil {
		a.cache.setBudget(now.budget)
	}
	f := now.inForce(a.cache != nil, o.SettingsRefused)
	a.inForce.Store(&f)
}
