package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
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

// defaults are the settings that the agent was started with: its flags, and built-in
// values for those that have none.
func (a *Agent) defaults() settings {
	s := settings{level: v1alpha1.LogInfo, hub: a.HubEndpoint, networks: a.Sources.Allow, downloadRate: a.DownloadRate, giveRate: a.GiveRate, marks: a.DiskMarks,
		modelRoot: a.ModelRoot}
	if s.hub == "" {
		s.hub = hub.DefaultEndpoint
	}
	if a.Verbose {
		s.level = v1alpha1.LogDebug
	}
	if a.Cache != nil {
		s.budget = a.Cache.Budget
	}
	return s
}

// wanted returns the settings of a desired state. A flag replaces the setting of the
// class, and the MacNode replaces both.
func (a *Agent) wanted(o *journal.Desired) settings {
	s := a.defaults()
	if o == nil {
		return s
	}
	if o.Class != nil {
		s = s.with(o.Class.Settings).with(a.ByFlag)
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

// quietEvery is how often the beginning and the end of quiet hours are looked for. The
// clock may jump, because Macs sleep.
const quietEvery = 30 * time.Second

// followSettings applies the settings of each desired state until ctx ends; New
// has applied those of the journal. It may wait for the disk, so it has its own
// loop.
func (a *Agent) followSettings(ctx context.Context) error {
	tick := time.NewTicker(quietEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.settingsSignal:
		case <-tick.C:
			if a.inForce.Load().QuietHours == "" {
				continue
			}
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
	now := a.wanted(o)
	if a.LogDebug != nil {
		a.LogDebug(now.level == v1alpha1.LogDebug)
	}
	if a.cache != nil {
		a.cache.setBudget(now.budget)
	}
	f := now.inForce(time.Now(), a.cache != nil)
	a.limit.Set(f.DownloadRateBytes)
	a.weightServer.SetRate(now.giveRate)
	a.hub.SetEndpoint(now.hub)
	if !slices.Equal(now.networks, *a.networks.Swap(&now.networks)) {
		a.client.Close() // idle connections to networks that are no longer allowed
	}
	trouble := []string{o.SettingsRefused, a.rootTrouble}
	if err := a.store.SetMarks(now.marks); err != nil {
		trouble = append(trouble, fmt.Sprintf("diskMarks: %v", err))
	}
	f.ModelRoot = clip(a.root.Dir(), 1024)
	if now.modelRoot != a.openedRoot {
		f.RestartRequired = []string{"modelRoot"}
	}
	if o.Class != nil {
		f.Class, f.ClassGeneration = o.Class.Name, o.Class.Generation
	}
	f.Message = clip(strings.Join(slices.DeleteFunc(trouble, func(s string) bool { return s == "" }), "; "), 1024)
	a.inForce.Store(&f)
}

// openRoot opens the model root. One of the cluster that cannot be opened does not keep
// the agent from starting: then the one of the flag is used.
func (a *Agent) openRoot(notes string) (err error) {
	a.openedRoot = a.wanted(a.journal.Snapshot().Desired).modelRoot
	log := a.Log.WithName("store")
	if a.root, err = store.OpenRoot(a.openedRoot, notes, log); err != nil && a.openedRoot != a.ModelRoot {
		a.rootTrouble = fmt.Sprintf("modelRoot: %v; create the folder on this Mac, readable for the agent, and restart the agent", err)
		a.root, err = store.OpenRoot(a.ModelRoot, notes, log)
	}
	return err
}
