package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/peer"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// quietEvery is how often the beginning and the end of quiet hours are looked for. The
// clock may jump, because Macs sleep.
const quietEvery = 30 * time.Second

// liveSettings applies the settings of each desired state, and knows those in force.
type liveSettings struct {
	config  *Config
	journal *journal.Journal
	changed func()        // called after settings were applied
	signal  chan struct{} // receives after a new desired state was accepted

	// openedRoot is the model root that was wanted at the start, and rootTrouble why
	// it could not be opened.
	openedRoot, rootTrouble string

	networks atomic.Pointer[[]netip.Prefix] // from which sources may be downloaded
	inForce  atomic.Pointer[v1alpha1.SettingsInForce]
	targets  settingTargets
}

// settingTargets are what settings are applied to.
type settingTargets struct {
	root         *store.Root
	store        *store.Store
	client       *download.Client
	hub          *hub.Hub
	limit        *download.Limit
	weightServer *peer.Server
	cache        *diskCache // nil where there is none
}

func newLiveSettings(c *Config, j *journal.Journal, changed func()) *liveSettings {
	s := &liveSettings{config: c, journal: j, changed: changed, signal: make(chan struct{}, 1)}
	s.networks.Store(&c.Sources.Allow)
	return s
}

// allowed returns the networks from which sources may be downloaded now.
func (s *liveSettings) allowed() []netip.Prefix { return *s.networks.Load() }

// run applies the settings of each desired state until ctx ends; New has applied those of
// the journal. It may wait for the disk, so it has its own loop.
func (s *liveSettings) run(ctx context.Context) error {
	tick := time.NewTicker(quietEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.signal:
		case <-tick.C:
			if s.inForce.Load().QuietHours == "" {
				continue
			}
		}
		s.apply()
		s.changed()
	}
}

// apply applies the settings of the last desired state.
func (s *liveSettings) apply() {
	o := s.journal.Snapshot().Desired
	if o == nil {
		o = &journal.Desired{}
	}
	now, to := s.config.wanted(o), &s.targets
	if s.config.LogDebug != nil {
		s.config.LogDebug(now.level == v1alpha1.LogDebug)
	}
	if to.cache != nil {
		to.cache.setBudget(now.budget)
	}
	f := now.inForce(time.Now(), to.cache != nil)
	to.limit.Set(f.DownloadRateBytes)
	to.weightServer.SetRate(now.giveRate)
	to.hub.SetEndpoint(now.hub)
	if !slices.Equal(now.networks, *s.networks.Swap(&now.networks)) {
		to.client.Close() // idle connections to networks that are no longer allowed
	}
	trouble := []string{o.SettingsRefused, s.rootTrouble}
	if err := to.store.SetMarks(now.marks); err != nil {
		trouble = append(trouble, fmt.Sprintf("diskMarks: %v", err))
	}
	f.ModelRoot = clip(to.root.Dir(), 1024)
	if now.modelRoot != s.openedRoot {
		f.RestartRequired = []string{"modelRoot"}
	}
	if o.Class != nil {
		f.Class, f.ClassGeneration = o.Class.Name, o.Class.Generation
	}
	f.Message = clip(strings.Join(slices.DeleteFunc(trouble, func(s string) bool { return s == "" }), "; "), 1024)
	s.inForce.Store(&f)
}

// openRoot opens the model root. One of the cluster that cannot be opened does not keep
// the agent from starting: then the one of the flag is used.
func (s *liveSettings) openRoot(notes string) (*store.Root, error) {
	s.openedRoot = s.config.wanted(s.journal.Snapshot().Desired).modelRoot
	log := s.config.Log.WithName("store")
	root, err := store.OpenRoot(s.openedRoot, notes, log)
	if err != nil && s.openedRoot != s.config.ModelRoot {
		s.rootTrouble = fmt.Sprintf("modelRoot: %v; create the folder on this Mac, readable for the agent, and restart the agent", err)
		root, err = store.OpenRoot(s.config.ModelRoot, notes, log)
	}
	return root, err
}
