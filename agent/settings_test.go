package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/agent/cold"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold/disk"
	"metalfleet.dev/metalfleet/metal/tinymodel"
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

// inForce adds what an agent without flags reports.
func inForce(s v1alpha1.SettingsInForce) v1alpha1.SettingsInForce {
	s.HubEndpoint, s.DiskMarks = hub.DefaultEndpoint, &v1alpha1.DiskMarks{}
	return s
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
	flags := inForce(v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogInfo, CacheLimitBytes: ptr.To[int64](64 << 20), CacheFreeBytes: ptr.To[int64](0)})
	flags.ModelRoot = m.root
	m.setting(t, flags)
	m.limited(t, 64<<20)

	o := ordersOf(1)
	o.Settings = v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, CacheLimit: ptr.To(resource.MustParse("16Mi")), CacheFree: ptr.To(resource.MustParse("0.5Mi"))}
	m.orders.next <- o
	ordered := inForce(v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogDebug, CacheLimitBytes: ptr.To[int64](16 << 20), CacheFreeBytes: ptr.To[int64](512 << 10)})
	ordered.ModelRoot = m.root
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
	s := (&Config{Verbose: true}).atStart()
	want := inForce(v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogDebug})
	if d := cmp.Diff(want, s.with(v1alpha1.AgentSettings{CacheLimit: ptr.To(resource.MustParse("1Gi"))}).inForce(time.Now(), false)); d != "" {
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

// A class replaces built-in values, a flag the class, and the MacNode both.
func TestSettingsOfAClassYieldToFlagsAndToTheMacNode(t *testing.T) {
	size := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	m := newMac(t, tinymodel.Default())
	m.giveIdentity()
	m.byFlag = v1alpha1.AgentSettings{GiveRate: size("2M")}
	m.boot()
	class := &v1alpha1.AssignedClass{Name: "studio", Generation: 3, Settings: v1alpha1.AgentSettings{
		HubEndpoint: "https://hub.example.com", AllowedSourceCIDRs: []string{"10.0.0.0/8"}, DownloadRate: size("1M"), GiveRate: size("1M"),
		DiskMarks: &v1alpha1.DiskMarks{HighPercent: 80, LowPercent: 70}, LogLevel: v1alpha1.LogDebug, ModelRoot: filepath.Join(m.state, "missing")}}
	o := ordersOf(1)
	o.Class, o.Settings = class, v1alpha1.AgentSettings{LogLevel: v1alpha1.LogInfo}
	m.orders.next <- o
	want := v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogInfo, Class: "studio", ClassGeneration: 3, HubEndpoint: "https://hub.example.com", AllowedSourceCIDRs: []string{"10.0.0.0/8"},
		DownloadRateBytes: 1_000_000, GiveRateBytes: 2_000_000, DiskMarks: &v1alpha1.DiskMarks{HighPercent: 80, LowPercent: 70}, ModelRoot: m.root, RestartRequired: []string{"modelRoot"}}
	m.setting(t, want)
	if a := m.agent; a.hub.URL("a/b", "main", "c") != "https://hub.example.com/a/b/resolve/main/c" || len(a.Sources.AllowNow()) != 1 {
		t.Errorf("the hub is asked at %s, networks %v", a.hub.URL("a/b", "main", "c"), a.Sources.AllowNow())
	}

	// A folder that is missing does not stop the agent; the one of the flag is used.
	m.halt()
	m.boot()
	poll(t, func() error {
		if s := m.reports.status().Settings; s.ModelRoot != m.root || !strings.Contains(s.Message, "modelRoot: ") || len(s.RestartRequired) != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	m.halt()
	if err := os.Mkdir(filepath.Join(m.state, "missing"), 0o700); err != nil {
		t.Fatal(err)
	}
	m.boot()
	want.ModelRoot, want.RestartRequired = filepath.Join(m.state, "missing"), nil
	m.setting(t, want)
}

func TestQuietHoursLowerTheRateOfDownloads(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	quiet := func(rate string) *v1alpha1.QuietHours {
		return &v1alpha1.QuietHours{Hours: v1alpha1.Hours{Start: "09:00", End: "18:00"}, DownloadRate: resource.MustParse(rate)}
	}
	for name, tc := range map[string]struct {
		settings settings
		now      time.Time
		rate     int64
		state    v1alpha1.QuietState
	}{
		"none":                          {settings: settings{downloadRate: 5000}, now: noon, rate: 5000},
		"in them":                       {settings: settings{downloadRate: 5_000_000, quiet: quiet("1M")}, now: noon, rate: 1_000_000, state: v1alpha1.QuietOn},
		"in them, without another rate": {settings: settings{quiet: quiet("1M")}, now: noon, rate: 1_000_000, state: v1alpha1.QuietOn},
		"in them, with a lower rate":    {settings: settings{downloadRate: 500_000, quiet: quiet("1M")}, now: noon, rate: 500_000, state: v1alpha1.QuietOn},
		"after them":                    {settings: settings{quiet: quiet("1M")}, now: noon.Add(6 * time.Hour), rate: 0, state: v1alpha1.QuietOff},
	} {
		if rate, state := tc.settings.quietNow(tc.now); rate != tc.rate || state != tc.state {
			t.Errorf("%s: %d %q, want %d %q", name, rate, state, tc.rate, tc.state)
		}
	}
}
