package agent

import (
	"net/netip"
	"time"

	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	blocks "metalfleet.dev/metalfleet/metal/kv/cold"
)

// settings are the settings that a cluster can change. All but modelRoot change
// while the agent runs.
type settings struct {
	level                  v1alpha1.LogLevel
	budget                 blocks.Budget
	hub                    string
	networks               []netip.Prefix
	downloadRate, giveRate int64
	marks                  store.Marks
	modelRoot              string
	quiet                  *v1alpha1.QuietHours
}

// atStart are the settings that the agent was started with: its flags, and built-in
// values for those that have none.
func (c *Config) atStart() settings {
	s := settings{level: v1alpha1.LogInfo, hub: c.HubEndpoint, networks: c.Sources.Allow, downloadRate: c.DownloadRate, giveRate: c.GiveRate, marks: c.DiskMarks,
		modelRoot: c.ModelRoot}
	if s.hub == "" {
		s.hub = hub.DefaultEndpoint
	}
	if c.Verbose {
		s.level = v1alpha1.LogDebug
	}
	if c.Cache != nil {
		s.budget = c.Cache.Budget
	}
	return s
}

// wanted returns the settings of a desired state. A flag replaces the setting of the
// class, and the MacNode replaces both.
func (c *Config) wanted(o *journal.Desired) settings {
	s := c.atStart()
	if o == nil {
		return s
	}
	if o.Class != nil {
		s = s.with(o.Class.Settings).with(c.ByFlag)
	}
	return s.with(o.Settings)
}

// with overrides the settings that o sets. They passed the checks of package desired.
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
	if o.HubEndpoint != "" {
		s.hub = o.HubEndpoint
	}
	if o.AllowedSourceCIDRs != nil {
		s.networks = nil
		for _, text := range o.AllowedSourceCIDRs {
			if network, err := netip.ParsePrefix(text); err == nil {
				s.networks = append(s.networks, network)
			}
		}
	}
	if o.DownloadRate != nil {
		s.downloadRate = o.DownloadRate.Value()
	}
	if o.GiveRate != nil {
		s.giveRate = o.GiveRate.Value()
	}
	if o.DiskMarks != nil {
		s.marks = store.Marks{High: int(o.DiskMarks.HighPercent), Low: int(o.DiskMarks.LowPercent)}
	}
	if o.ModelRoot != "" {
		s.modelRoot = o.ModelRoot
	}
	if o.QuietHours != nil {
		s.quiet = o.QuietHours
	}
	return s
}

// quietNow returns the rate of downloads at a time, and whether quiet hours are on; "" if
// there are none.
func (s settings) quietNow(now time.Time) (bytesPerSecond int64, state v1alpha1.QuietState) {
	if s.quiet == nil {
		return s.downloadRate, ""
	}
	open, _, err := s.quiet.Open(now)
	if err != nil || !open {
		return s.downloadRate, v1alpha1.QuietOff
	}
	if most := s.quiet.DownloadRate.Value(); s.downloadRate == 0 || most < s.downloadRate {
		return most, v1alpha1.QuietOn
	}
	return s.downloadRate, v1alpha1.QuietOn
}

// inForce is the report of the settings.
func (s settings) inForce(now time.Time, cache bool) v1alpha1.SettingsInForce {
	f := v1alpha1.SettingsInForce{LogLevel: s.level, HubEndpoint: clip(s.hub, 512), GiveRateBytes: s.giveRate,
		DiskMarks: &v1alpha1.DiskMarks{HighPercent: int32(s.marks.High), LowPercent: int32(s.marks.Low)}}
	f.DownloadRateBytes, f.QuietHours = s.quietNow(now)
	for _, network := range s.networks[:min(len(s.networks), 64)] {
		f.AllowedSourceCIDRs = append(f.AllowedSourceCIDRs, network.String())
	}
	if !cache {
		return f
	}
	f.CacheFreeBytes = &s.budget.FloorBytes
	if s.budget.LimitBytes > 0 {
		f.CacheLimitBytes = &s.budget.LimitBytes
	}
	return f
}
