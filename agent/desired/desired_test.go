//go:build !race

package desired

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func good() v1alpha1.Assignment {
	files := []model.File{{Path: "m.gguf", Bytes: 10, SHA256: strings.Repeat("ab", 32)}}
	return v1alpha1.Assignment{
		ReplicaUID: "0f3c", Epoch: 1, Namespace: "ns", Name: "r", ReservedBytes: 1,
		Context: v1alpha1.ContextLimits{MaxTokens: 8, MaxConcurrentRequests: 1, KVCacheTokens: 8}, Desired: v1alpha1.DesiredRunning,
		Model: model.Record{Source: "file://m", Digest: model.DigestOf(files), Format: model.FormatGGUF, Files: files, Facts: model.Facts{
			Architecture: "llama", Layers: 1, GrowingLayers: 1, HiddenSize: 1, FeedForwardSize: 1, QueryHeads: 1, KeyValueHeads: 1,
			HeadSize: 1, VocabularySize: 1, ContextTokens: 1, KeyValueElementBytes: 2, WeightBytes: 1,
		}},
	}
}

func mac() *v1alpha1.MacNode {
	return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m1", UID: "uid", Generation: 4}}
}

func assigned(a ...v1alpha1.Assignment) *v1alpha1.MacAssignmentSpec {
	return &v1alpha1.MacAssignmentSpec{Assignments: a}
}

func TestOrdersAreCheckedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Assignment)
		want   string
	}{
		"a good one passes":               {change: func(*v1alpha1.Assignment) {}, want: ""},
		"a UID that leaves its folder":    {change: func(a *v1alpha1.Assignment) { a.ReplicaUID = "../../x" }, want: "not a valid UID"},
		"no epoch":                        {change: func(a *v1alpha1.Assignment) { a.Epoch = 0 }, want: "epoch is 0"},
		"nothing reserved":                {change: func(a *v1alpha1.Assignment) { a.ReservedBytes = 0 }, want: "want more than zero"},
		"a context that cannot be served": {change: func(a *v1alpha1.Assignment) { a.Context.KVCacheTokens = 1 }, want: "cannot serve"},
		"a cache without a queue":         {change: func(a *v1alpha1.Assignment) { a.PrefixCache.DiskBytes = 1 << 30 }, want: "queue"},
		"a queue below nothing":           {change: func(a *v1alpha1.Assignment) { a.PrefixCache.QueueBytes = -1 }, want: "queue"},
		"a drain of years":                {change: func(a *v1alpha1.Assignment) { a.DrainSeconds = 1 << 30 }, want: "drainSeconds"},
		"on demand": {change: func(a *v1alpha1.Assignment) {
			a.Residency = v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 60, EvictionPriority: -1}
		}, want: ""},
		"an unknown residency":              {change: func(a *v1alpha1.Assignment) { a.Residency.Policy = "Sometimes" }, want: `unknown residency policy "Sometimes": this agent supports Always and OnDemand`},
		"an idle time below zero":           {change: func(a *v1alpha1.Assignment) { a.Residency.IdleSeconds = -1 }, want: "idleSeconds is -1"},
		"an idle time of years":             {change: func(a *v1alpha1.Assignment) { a.Residency.IdleSeconds = 1 << 30 }, want: "idleSeconds"},
		"an unknown residency, but drained": {change: func(a *v1alpha1.Assignment) { a.Residency.Policy, a.Desired = "Sometimes", v1alpha1.DesiredDrained }, want: ""},
		"the name of a token":               {change: func(a *v1alpha1.Assignment) { a.TokenRef = strings.Repeat("0a", 32) }, want: ""},
		"a tokenRef that is another key":    {change: func(a *v1alpha1.Assignment) { a.TokenRef = "../tls.key" }, want: "not a valid reference"},
		"an unknown state":                  {change: func(a *v1alpha1.Assignment) { a.Desired = "Frozen" }, want: "does not support"},
		"a file that leaves its folder":     {change: func(a *v1alpha1.Assignment) { a.Model.Files[0].Path = "../m.gguf" }, want: "outside the model's folder"},
		"a digest that is not its files'":   {change: func(a *v1alpha1.Assignment) { a.Model.Digest = "sha256:00" }, want: "does not match"},
		"unknown dimensions":                {change: func(a *v1alpha1.Assignment) { a.Model.Facts.HeadSize = 0 }, want: "headSize"},
		"unknown dimensions, but drained":   {change: func(a *v1alpha1.Assignment) { a.Model.Facts.HeadSize, a.Desired = 0, v1alpha1.DesiredDrained }, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := good()
			tc.change(&a)
			o := read(mac(), assigned(a))
			if tc.want == "" {
				if len(o.Assignments) != 1 || len(o.Invalid) != 0 || o.Generation != 4 || o.UID != "uid" {
					t.Errorf("%+v", o)
				}
				return
			}
			if len(o.Assignments) != 0 || len(o.Invalid) != 1 || o.Invalid[0].ReplicaUID != a.ReplicaUID || !strings.Contains(o.Invalid[0].Message, tc.want) {
				t.Errorf("%+v", o)
			}
		})
	}
}

func TestOneReplicaIsOrderedOnce(t *testing.T) {
	o := read(mac(), assigned(good(), good()))
	if len(o.Assignments) != 1 || len(o.Invalid) != 1 {
		t.Errorf("%+v", o)
	}
}

func TestInspectionsWithoutNameOrSourceAreDropped(t *testing.T) {
	a := assigned()
	a.Inspections = []v1alpha1.Inspection{{ID: "a", Source: "file://a"}, {ID: "../b", Source: "file://b"}, {ID: "c"}, {ID: "d", Source: "hf://o/m", TokenRef: "d"}}
	if o := read(mac(), a); len(o.Inspections) != 1 || o.Inspections[0].ID != "a" {
		t.Errorf("%+v", o.Inspections)
	}
}

func TestAnOrderOfAnAgentIsCheckedAgain(t *testing.T) {
	seconds := int32(-1)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.AgentOrder)
		want   bool
	}{
		"a good one":              {change: func(*v1alpha1.AgentOrder) {}, want: true},
		"a version that is a way": {change: func(a *v1alpha1.AgentOrder) { a.Version = "../v1" }, want: false},
		"another scheme":          {change: func(a *v1alpha1.AgentOrder) { a.Source = "http://releases.example.com/a" }, want: false},
		"no digest":               {change: func(a *v1alpha1.AgentOrder) { a.SHA256 = "" }, want: false},
		"no attempt":              {change: func(a *v1alpha1.AgentOrder) { a.Attempt = 0 }, want: false},
		"a drain below zero":      {change: func(a *v1alpha1.AgentOrder) { a.DrainSeconds = &seconds }, want: false},
	} {
		a := assigned()
		a.Agent = &v1alpha1.AgentOrder{Version: "v0.4.0", Source: "https://releases.example.com/a", SHA256: strings.Repeat("0a", 32), Attempt: 1}
		tc.change(a.Agent)
		if o := read(mac(), a); (o.Agent != nil) != tc.want {
			t.Errorf("%s: %+v", name, o.Agent)
		}
	}
}

func TestOldOrdersDoNotComeBack(t *testing.T) {
	var g gate
	at := func(uid types.UID, generation int64) bool {
		return g.passes(&v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{UID: uid, Generation: generation}})
	}
	for i, step := range []struct {
		uid        types.UID
		generation int64
		want       bool
	}{{uid: "one", generation: 3, want: true}, {uid: "one", generation: 3, want: false}, {uid: "one", generation: 2, want: false}, {uid: "one", generation: 5, want: true}, {uid: "other", generation: 1, want: true}, {uid: "other", generation: 1, want: false}} {
		if got := at(step.uid, step.generation); got != step.want {
			t.Errorf("step %d: passes %v, want %v", i, got, step.want)
		}
	}
}

// confirmed returns an assignment as the operator leaves it: it confirms its own
// generation of its own object.
func confirmed(uid types.UID, generation int64, a ...v1alpha1.Assignment) *v1alpha1.MacAssignment {
	o := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m1", UID: uid, Generation: generation}, Spec: *assigned(a...)}
	o.Status.UID, o.Status.ObservedGeneration = string(uid), generation
	return o
}

func TestOnlyConfirmedAssignmentsAreDelivered(t *testing.T) {
	var got []journal.Desired
	p := pair{log: logr.Discard(), deliver: func(d journal.Desired) { got = append(got, d) }}
	restored := confirmed("one", 7, good()) // a copy, with the status of the object that it was made of
	restored.UID, restored.Generation = "two", 1
	empty := confirmed("three", 1)
	empty.Status = v1alpha1.MacAssignmentStatus{ObservedGeneration: -1}
	edited := confirmed("one", 7)
	edited.Generation = 8
	for _, step := range []struct {
		name      string
		mac       *v1alpha1.MacNode
		assigned  *v1alpha1.MacAssignment
		delivered int // in total
		holds     int // assignments that were delivered last
	}{
		{name: "a MacNode alone", mac: mac(), delivered: 0},
		{name: "and its assignment", assigned: confirmed("one", 7, good()), delivered: 1, holds: 1},
		{name: "a spec that the operator did not write", assigned: edited, delivered: 1, holds: 1},
		{name: "a restored copy", assigned: restored, delivered: 1, holds: 1},
		{name: "an empty one that is new", assigned: empty, delivered: 1, holds: 1},
		{name: "a new MacNode", mac: &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m1", UID: "other", Generation: 1}}, delivered: 2, holds: 1},
		{name: "the empty one, confirmed", assigned: confirmed("three", 1), delivered: 3, holds: 0},
		{name: "the same again", assigned: confirmed("three", 1), delivered: 3, holds: 0},
	} {
		if step.mac != nil {
			p.setMac(step.mac)
		}
		if step.assigned != nil {
			p.setAssignment(step.assigned)
		}
		if len(got) != step.delivered || len(got) > 0 && len(got[len(got)-1].Assignments) != step.holds {
			t.Fatalf("%s: delivered %d times, last %+v", step.name, len(got), got)
		}
	}
}

// TestARestoredStateIsFollowed: an older generation that stays, or another state of the same
// generation; that of a server that lags is not.
func TestARestoredStateIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []journal.Desired
		p := pair{log: logr.Discard(), deliver: func(d journal.Desired) { got = append(got, d) }}
		defer p.end()
		p.setMac(mac())
		p.setAssignment(confirmed("one", 7))
		want := func(what string, n, holds int) {
			t.Helper()
			synctest.Wait()
			if len(got) != n || len(got[n-1].Assignments) != holds {
				t.Fatalf("%s: delivered %d times, last %+v; want %d with %d", what, len(got), got[len(got)-1], n, holds)
			}
		}
		want("the first", 1, 0)
		p.setAssignment(confirmed("one", 5, good()))
		time.Sleep(restoredAfter - time.Second)
		p.setAssignment(confirmed("one", 6, good()))
		p.setAssignment(confirmed("one", 7))
		time.Sleep(time.Minute)
		want("a server that lagged", 1, 0)

		p.setAssignment(confirmed("one", 5, good()))
		for range 4 { // its status changes meanwhile
			time.Sleep(restoredAfter / 4)
			p.setAssignment(confirmed("one", 5, good()))
		}
		want("a restored one", 2, 1)
		p.setAssignment(confirmed("one", 6))
		want("the next one", 3, 0)

		p.setAssignment(confirmed("one", 5, good()))
		p.setAssignment(confirmed("one", 6, good()))
		want("one that another restore brings to the same generation", 3, 0)
		time.Sleep(restoredAfter)
		want("that, when it stays", 4, 1)

		older := mac()
		older.Generation = p.macs.generation - 1
		p.setMac(older)
		time.Sleep(restoredAfter)
		want("a restored MacNode", 5, 1)

		p.setAssignment(confirmed("one", 1000))
		want("much later", 6, 0)
		for n := range int64(5) {
			p.setAssignment(confirmed("one", 500+n, good()))
			time.Sleep(restoredAfter * 2 / 5)
		}
		want("a restored one that changes often", 9, 1)
	})
}

func TestPinnedWeightsAreTaken(t *testing.T) {
	m := mac()
	m.Spec.PinnedWeights = []string{"sha256:" + strings.Repeat("a", 64)}
	if o := read(m, assigned()); len(o.PinnedWeights) != 1 || o.PinnedWeights[0] != m.Spec.PinnedWeights[0] {
		t.Errorf("pinned are %q", o.PinnedWeights)
	}
}

// Valid settings of the same object still apply.
func TestInvalidSettingsAreRefusedByName(t *testing.T) {
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	m := mac()
	m.Spec.Settings = v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, CacheLimit: quantity("1Gi"), CacheFree: quantity("0")}
	if o := read(m, assigned()); !equality.Semantic.DeepEqual(o.Settings, m.Spec.Settings) || o.SettingsRefused != "" {
		t.Errorf("%+v, %q", o.Settings, o.SettingsRefused)
	}
	for said, change := range map[string]func(*v1alpha1.AgentSettings){
		`unknown logLevel "Trace"`:         func(s *v1alpha1.AgentSettings) { s.LogLevel = "Trace" },
		"cacheLimit is 0, want at least 1": func(s *v1alpha1.AgentSettings) { s.CacheLimit = quantity("0") },
		"cacheFree is -1, want at least 0": func(s *v1alpha1.AgentSettings) { s.CacheFree = quantity("-1") },
	} {
		bad := m.DeepCopy()
		change(&bad.Spec.Settings)
		o := read(bad, assigned())
		if !strings.Contains(o.SettingsRefused, said) {
			t.Errorf("%q, want %q", o.SettingsRefused, said)
		}
		kept := 0
		for _, is := range []bool{o.Settings.LogLevel != "", o.Settings.CacheLimit != nil, o.Settings.CacheFree != nil} {
			if is {
				kept++
			}
		}
		if kept != 2 {
			t.Errorf("%s: %+v is followed, want the two others", said, o.Settings)
		}
	}
}

// An unknown tier must not be taken for all tiers.
func TestClearRequestIsValidatedByTheAgent(t *testing.T) {
	for _, tc := range []struct {
		order v1alpha1.CacheClear
		good  bool
	}{
		{v1alpha1.CacheClear{Request: "2026-11-23.1"}, true},
		{v1alpha1.CacheClear{Request: "r", Tier: v1alpha1.CacheTierDisk}, true},
		{v1alpha1.CacheClear{Request: "r", Tier: "Weights"}, false},
		{v1alpha1.CacheClear{Request: ""}, false},
		{v1alpha1.CacheClear{Request: "../r"}, false},
		{v1alpha1.CacheClear{Request: strings.Repeat("r", 64)}, false},
	} {
		m := mac()
		m.Spec.ClearCache = &tc.order
		if got := read(m, assigned()).ClearCache; (got != nil) != tc.good || tc.good && *got != tc.order {
			t.Errorf("%+v is read as %+v", tc.order, got)
		}
	}
}

// The settings of a class are checked like those of the MacNode.
func TestSettingsOfAClassThatCannotBeMeantAreLeftOut(t *testing.T) {
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	good := v1alpha1.AgentSettings{HubEndpoint: "https://hub.example.com", AllowedSourceCIDRs: []string{"10.0.0.0/8"}, DownloadRate: quantity("1M"), GiveRate: quantity("1M"),
		DiskMarks: &v1alpha1.DiskMarks{HighPercent: 80, LowPercent: 70}, ModelRoot: "/Users/Shared/models",
		QuietHours: &v1alpha1.QuietHours{Hours: v1alpha1.Hours{Start: "09:00", End: "17:00"}, DownloadRate: *quantity("1M")}}
	with := func(s v1alpha1.AgentSettings) *v1alpha1.MacAssignmentSpec {
		a := assigned()
		a.Class = &v1alpha1.AssignedClass{Name: "studio", Generation: 3, Settings: s}
		return a
	}
	if o := read(mac(), with(good)); o.Class == nil || o.Class.Generation != 3 || !equality.Semantic.DeepEqual(o.Class.Settings, good) || o.SettingsRefused != "" {
		t.Errorf("%+v, %q", o.Class, o.SettingsRefused)
	}
	for said, change := range map[string]func(*v1alpha1.AgentSettings){
		"hubEndpoint":        func(s *v1alpha1.AgentSettings) { s.HubEndpoint = "http://hub.example.com" },
		"allowedSourceCIDRs": func(s *v1alpha1.AgentSettings) { s.AllowedSourceCIDRs = []string{"10.0.0.0/8", "everything"} },
		"downloadRate":       func(s *v1alpha1.AgentSettings) { s.DownloadRate = quantity("5") },
		"giveRate":           func(s *v1alpha1.AgentSettings) { s.GiveRate = quantity("5") },
		"diskMarks":          func(s *v1alpha1.AgentSettings) { s.DiskMarks.LowPercent = 90 },
		"modelRoot":          func(s *v1alpha1.AgentSettings) { s.ModelRoot = "/models/../etc" },
		"quietHours":         func(s *v1alpha1.AgentSettings) { s.QuietHours.TimeZone = "Mars/Phobos" },
	} {
		bad := *good.DeepCopy()
		change(&bad)
		o := read(mac(), with(bad))
		if !strings.Contains(o.SettingsRefused, said) || equality.Semantic.DeepEqual(o.Class.Settings, good) || equality.Semantic.DeepEqual(o.Class.Settings, bad) {
			t.Errorf("%s: %q, %+v", said, o.SettingsRefused, o.Class.Settings)
		}
	}
}
