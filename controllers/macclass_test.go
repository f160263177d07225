package controllers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// classed is the world with MacClasses.
type classed struct{ *world }

func (w classed) class(name string, spec v1alpha1.MacClassSpec) *v1alpha1.MacClass {
	w.t.Helper()
	c := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	w.createForTest(c)
	return c
}

// status waits until the status of a class is of its generation and has no complaint.
func (w classed) status(c *v1alpha1.MacClass, complaint func(*v1alpha1.MacClassStatus) error) {
	w.t.Helper()
	w.eventually("the status of class "+c.Name, func() error {
		if err := w.c.Get(w.ctx, client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		if c.Status.ObservedGeneration != c.Generation {
			return errors.New("the status is of another generation")
		}
		return complaint(&c.Status)
	})
}

// counts wants a number of Macs, how many of them are current, and the reason of Applied.
func counts(macs, current int32, reason string) func(*v1alpha1.MacClassStatus) error {
	return func(s *v1alpha1.MacClassStatus) error {
		if s.Macs != macs || s.CurrentMacs != current {
			return fmt.Errorf("%d of %d Macs are current, want %d of %d", s.CurrentMacs, s.Macs, current, macs)
		}
		return wantReason(s.Conditions, v1alpha1.ConditionApplied, reason)
	}
}

// macReason waits until the condition ClassApplied of a Mac has a reason; "" is none.
func (w classed) macReason(mac, reason string) {
	w.t.Helper()
	w.eventually(mac+" has the reason "+reason, func() error {
		var m v1alpha1.MacNode
		if err := w.c.Get(w.ctx, client.ObjectKey{Name: mac}, &m); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionClassApplied); c != nil && reason == "" {
			return fmt.Errorf("it has %s", c.Reason)
		} else if reason == "" {
			return nil
		}
		return wantReason(m.Status.Conditions, v1alpha1.ConditionClassApplied, reason)
	})
}

// wantClass waits until the MacAssignment of a Mac has a class with a rate; "" is none.
func (w classed) wantClass(mac, class, rate string) {
	w.t.Helper()
	w.eventually(mac+" is of class "+class, func() error {
		got := ""
		if c := w.assigned(mac).Class; c != nil {
			got = c.Name
			if c.Settings.DownloadRate != nil {
				got += " " + c.Settings.DownloadRate.String()
			}
		}
		if want := strings.TrimSpace(class + " " + rate); got != want {
			return fmt.Errorf("it is of %q, want %q", got, want)
		}
		return nil
	})
}

func rates(rate string) v1alpha1.MacClassSpec {
	return v1alpha1.MacClassSpec{Settings: v1alpha1.AgentSettings{DownloadRate: quantity(rate)}}
}

// A Mac that names no class follows default; one whose class is missing keeps its settings.
func TestAMacFollowsItsClass(t *testing.T) {
	w := classed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(100*gib))
	w.wantClass("mac-1", "", "")
	usual := w.class(v1alpha1.DefaultMacClass, rates("50M"))
	w.wantClass("mac-1", "default", "50M")
	w.status(usual, counts(2, 2, v1alpha1.ReasonClassApplied))
	w.macReason("mac-1", v1alpha1.ReasonClassApplied)

	studio := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-2"}}
	w.change(studio, func() { studio.Spec.Class = "studio" })
	w.macReason("mac-2", v1alpha1.ReasonClassNotFound)
	w.wantClass("mac-2", "default", "50M")
	w.status(usual, counts(1, 1, v1alpha1.ReasonClassApplied))
	other := w.class("studio", rates("80M"))
	w.wantClass("mac-2", "studio", "80M")
	w.status(other, counts(1, 1, v1alpha1.ReasonClassApplied))

	w.change(usual, func() { usual.Spec = rates("60M") })
	w.wantClass("mac-1", "default", "60M")
	w.status(usual, counts(1, 1, v1alpha1.ReasonClassApplied))
	w.must(w.c.Delete(w.ctx, usual))
	w.wantClass("mac-1", "", "")
	w.macReason("mac-1", "")
	w.wantClass("mac-2", "studio", "80M")
}

// The class counts the Macs that cannot follow it, and names them.
func TestAClassNamesTheMacsThatDoNotFollowIt(t *testing.T) {
	w := classed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	agent := w.mac("mac-2", holding(100*gib))
	says := func(change func(*v1alpha1.SettingsInForce)) {
		w.play(agent, func(s *fleettest.Script) {
			s.Settings = func(c v1alpha1.AssignedClass) v1alpha1.SettingsInForce {
				f := v1alpha1.SettingsInForce{Class: c.Name, ClassGeneration: c.Generation}
				change(&f)
				return f
			}
		})
	}
	says(func(f *v1alpha1.SettingsInForce) { f.ClassGeneration-- })
	class := w.class(v1alpha1.DefaultMacClass, rates("50M"))
	w.status(class, counts(2, 1, v1alpha1.ReasonClassPending))
	wantContains(t, "Applied", message(class.Status.Conditions, v1alpha1.ConditionApplied), "1 of 2 Macs do not: mac-2;")
	says(func(f *v1alpha1.SettingsInForce) { f.RestartRequired = []string{"modelRoot"} })
	w.status(class, counts(2, 1, v1alpha1.ReasonRestartRequired))
	says(func(f *v1alpha1.SettingsInForce) { f.Message = "modelRoot: no such folder" })
	w.macReason("mac-2", v1alpha1.ReasonSettingsRefused)
	says(func(*v1alpha1.SettingsInForce) {})
	w.status(class, counts(2, 2, v1alpha1.ReasonClassApplied))
}

// A release is ordered for the Macs of its class alone, and its progress reported.
func TestAClassUpgradesItsMacs(t *testing.T) {
	w := classed{newWorld(t)}
	w.mac("mac-1", holding(100*gib))
	w.mac("mac-2", holding(100*gib))
	// The first Mac by name is of no class, and the wave would select it.
	other := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1"}}
	w.change(other, func() { other.Labels["canary"] = "yes" })
	m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-2"}}
	w.change(m, func() { m.Spec.Class = "studio" })
	wave := v1alpha1.ReleaseWave{MacSelector: v1alpha1.MacSelector{MatchLabels: map[string]string{"canary": "yes"}}}
	release := &v1alpha1.AgentRelease{Version: "next", Source: "https://releases.example.com/agent.tar.gz", SHA256: strings.Repeat("a", 64), State: v1alpha1.ReleasePaused,
		Waves: []v1alpha1.ReleaseWave{wave}}
	c := w.class("studio", v1alpha1.MacClassSpec{Release: release, MaintenanceWindow: &v1alpha1.Hours{Start: "01:00", End: "02:00", TimeZone: "Mars/Phobos"}})
	w.status(c, func(s *v1alpha1.MacClassStatus) error {
		if s.Upgrade == nil || s.Upgrade.State != "Paused" || s.Upgrade.UpgradedMacs != 0 {
			return fmt.Errorf("upgrade %+v, want it paused", s.Upgrade)
		}
		return wantReason(s.Conditions, v1alpha1.ConditionAccepted, v1alpha1.ReasonUnknownTimeZone)
	})
	w.change(c, func() { c.Spec.MaintenanceWindow = nil })
	w.status(c, func(s *v1alpha1.MacClassStatus) error {
		return wantReason(s.Conditions, v1alpha1.ConditionAccepted, v1alpha1.ReasonEmptyWave)
	})
	w.change(m, func() { m.Labels["canary"] = "yes" })
	w.status(c, func(s *v1alpha1.MacClassStatus) error {
		return wantReason(s.Conditions, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	})
	if o := w.assigned("mac-2").Agent; o != nil {
		t.Errorf("a paused release was ordered: %+v", o)
	}
	w.change(c, func() { c.Spec.Release.State = "" })
	w.status(c, func(s *v1alpha1.MacClassStatus) error {
		if o := w.assigned("mac-2").Agent; o == nil || o.Version != "next" || o.Attempt != 1 {
			return fmt.Errorf("ordered %+v", o)
		}
		if s.Upgrade == nil || s.Upgrade.State != "Upgrading" || s.Upgrade.Mac != "mac-2" {
			return fmt.Errorf("upgrade %+v", s.Upgrade)
		}
		return nil
	})
	if o := w.assigned("mac-1").Agent; o != nil {
		t.Errorf("a Mac of another class was ordered %+v", o)
	}
}

func TestMacClassSchema(t *testing.T) {
	s := newSchema(t)
	release := "version: v1, source: 'https://r.example.com/a.tar.gz', sha256: " + strings.Repeat("a", 64)
	for name, tc := range map[string]struct{ spec, sentence string }{
		"nothing":                    {"{}", ""},
		"every setting":              {"{settings: {logLevel: Debug, cacheLimit: 1Gi, cacheFree: 0, hubEndpoint: 'https://hub.example.com/mirror', allowedSourceCIDRs: [10.0.0.0/8, 'fd00::/8'], downloadRate: 50M, giveRate: 64Ki, diskMarks: {highPercent: 90, lowPercent: 80}, modelRoot: /Users/Shared/models, quietHours: {days: [Mon], start: '09:00', end: '18:00', timeZone: Europe/Berlin, downloadRate: 1M}}}", ""},
		"every part of a release":    {"{maintenanceWindow: {start: '22:00', end: '05:00'}, release: {" + release + ", retryGeneration: 2, state: Paused, mac: a, downgrade: Allow, drainSeconds: 0, waves: [{macSelector: {matchLabels: {a: b}}, soakSeconds: 60}]}}", ""},
		"disk marks that are 0":      {"{settings: {diskMarks: {highPercent: 0}}}", ""},
		"marks the wrong way round":  {"{settings: {diskMarks: {highPercent: 80, lowPercent: 90}}}", "lowPercent must be less than highPercent"},
		"a hub without https":        {"{settings: {hubEndpoint: 'http://hub.example.com'}}", "settings.hubEndpoint must be https://HOST"},
		"a hub with a password":      {"{settings: {hubEndpoint: 'https://me:secret@hub.example.com'}}", "settings.hubEndpoint must be https://HOST"},
		"a network that is none":     {"{settings: {allowedSourceCIDRs: [10.0.0.1]}}", "must be CIDRs"},
		"a rate in the wrong unit":   {"{settings: {downloadRate: 50}}", "settings.downloadRate must be at least 64Ki"},
		"a relative model root":      {"{settings: {modelRoot: models}}", "settings.modelRoot must be an absolute path"},
		"a model root that climbs":   {"{settings: {modelRoot: /models/../etc}}", "settings.modelRoot must be an absolute path"},
		"hours that are none":        {"{maintenanceWindow: {start: '22:00', end: '22:00'}}", "start and end must differ"},
		"hours without a colon":      {"{maintenanceWindow: {start: '2200', end: '23:00'}}", "should match"},
		"a day in full":              {"{maintenanceWindow: {days: [Monday], start: '22:00', end: '23:00'}}", "Unsupported value"},
		"quiet hours without a rate": {"{settings: {quietHours: {start: '22:00', end: '23:00'}}}", "Required value"},
		"an archive without https":   {"{release: {version: v1, source: 'http://r.example.com/a', sha256: " + strings.Repeat("a", 64) + "}}", "release.source must be the https:// URL"},
		"an archive and a password":  {"{release: {version: v1, source: 'https://me:secret@r.example.com/a', sha256: " + strings.Repeat("a", 64) + "}}", "release.source must be the https:// URL"},
		"a digest in capitals":       {"{release: {version: v1, source: 'https://r.example.com/a', sha256: " + strings.Repeat("A", 64) + "}}", "64 lower-case hex digits"},
		"a wave of all Macs":         {"{release: {" + release + ", waves: [{macSelector: {}}]}}", "Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: MacClass\nmetadata: {name: studio}\nspec: " + tc.spec)
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}
