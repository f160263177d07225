package agent

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
)

// setting waits until the settings are reported to be in force.
func (m *mac) setting(t *testing.T, want v1alpha1.SettingsInForce) {
	t.Helper()
	poll(t, func() error {
		if d := cmp.Diff(want, m.reports.status().Settings); d != "" {
			return errors.New(d)
		}
		return nil
	})
}

// limited waits until the owner of the disk keeps to a limit.
func (m *mac) limited(t *testing.T, most int64) {
	t.Helper()
	poll(t, func() error {
		if s := m.books(t); s.LimitBytes > most || s.LimitBytes < most/2 {
			return fmt.Errorf("the disk's limit is %d, want %d", s.LimitBytes, most)
		}
		return nil
	})
}

// Removing a setting restores the agent's flag; absent is not zero.
func TestSettingsApplyAndSurviveARestart(t *testing.T) {
	m := newCachingMac(t, 64<<20)
	var debug atomic.Bool
	m.logDebug = debug.Store
	m.boot()
	flags := v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogInfo, CacheLimitBytes: ptr.To[int64](64 << 20), CacheFreeBytes: ptr.To[int64](0)}
	m.setting(t, flags)
	m.limited(t, 64<<20)

	o := ordersOf(1)
	o.Settings = v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, CacheLimit: ptr.To(resource.MustParse("16Mi")), CacheFree: ptr.To(resource.MustParse("0.5Mi"))}
	m.orders.next <- o
	ordered := v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogDebug, CacheLimitBytes: ptr.To[int64](16 << 20), CacheFreeBytes: ptr.To[int64](512 << 10)}
	m.setting(t, ordered)
	m.limited(t, 16<<20)
	if !debug.Load() {
		t.Error("the log is not at Debug")
	}

	m.halt()
	debug.Store(false)
	m.boot() // with no settings in the desired state
	m.setting(t, ordered)
	m.limited(t, 16<<20)
	if !debug.Load() {
		t.Error("the log is not at Debug after a restart")
	}

	o.Generation, o.Settings = 2, v1alpha1.AgentSettings{CacheFree: ptr.To(resource.MustParse("0"))}
	o.SettingsRefused = "logLevel \"Trace\" is unknown"
	m.orders.next <- o
	flags.Message = o.SettingsRefused
	m.setting(t, flags)
	m.limited(t, 64<<20)
	if debug.Load() {
		t.Error("the log stayed at Debug")
	}
}

func TestMacWithoutACacheHasNoCacheSettings(t *testing.T) {
	s := (&Agent{Config: Config{Verbose: true}}).defaults()
	if d := cmp.Diff(v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogDebug}, s.with(v1alpha1.AgentSettings{CacheLimit: ptr.To(resource.MustParse("1Gi"))}).inForce(false, "")); d != "" {
		t.Error(d)
	}
}

func TestCacheBudgetSetBeforeTheFolderIsOpenedApplies(t *testing.T) {
	c := &diskCache{options: cold.Options{FS: disk.OS{}, Dir: t.TempDir()}, log: logr.Discard(), metrics: prometheus.NewRegistry(), tried: make(chan struct{})}
	b := c.options.Budget
	b.LimitBytes = 1 << 20
	c.setBudget(b)
	owner := c.open(t.Context())
	c.opened(owner)
	if s := owner.Snapshot(); s.LimitBytes != 1<<20 {
		t.Errorf("the limit is %d", s.LimitBytes)
	}
}
