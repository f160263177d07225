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

// settings are the settings that can change while the agent runs.
type settings struct {
	level  v1alpha1.LogLevel
	budget blocks.Budget
}

// with overrides the settings that o sets.
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

// inForce is the report of the settings.
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

// followSettings applies the settings of each desired state until ctx ends; New
// has applied those of the journal. It may wait for the disk, so it has its own
// loop.
func (a *Agent) followSettings(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.settingsSignal:
		}
		a.applySettings()
		a.changed()
	}
}

// applySettings applies the last settings.
func (a *Agent) applySettings() {
	o := a.journal.Snapshot().Desired
	if o == nil {
		o = &journal.Desired{}
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
