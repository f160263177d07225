package pool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var at = time.Unix(1_000_000, 0)

func one(v view) []view {
	v.key = memory.Key{UID: "u", Epoch: 1}
	return []view{v}
}

func TestPlanDerivesTheNextStep(t *testing.T) {
	later := at.Add(3 * time.Second)
	for name, tc := range map[string]struct {
		view   view
		step   step
		reason v1alpha1.ReclaimReason
		again  time.Time
	}{
		"a new order begins with the download":            {view: view{want: wantRunning}, step: stepDownload, reason: "", again: time.Time{}},
		"a running download is waited for":                {view: view{want: wantRunning, downloading: true}, step: 0, reason: "", again: time.Time{}},
		"a failed download is tried again in time":        {view: view{want: wantRunning, downloadNotBefore: later}, step: 0, reason: "", again: later},
		"what is on disk is admitted":                     {view: view{want: wantRunning, downloaded: true}, step: stepReserve, reason: "", again: time.Time{}},
		"what is admitted is loaded":                      {view: view{want: wantRunning, downloaded: true, reserved: true}, step: stepLoad, reason: "", again: time.Time{}},
		"what crashed waits":                              {view: view{want: wantRunning, downloaded: true, reserved: true, loadNotBefore: later}, step: 0, reason: "", again: later},
		"what was refused stays refused":                  {view: view{want: wantRunning, downloaded: true, refused: true}, step: 0, reason: "", again: time.Time{}},
		"an engine that runs is left alone":               {view: view{want: wantRunning, downloaded: true, reserved: true, engine: true}, step: 0, reason: "", again: time.Time{}},
		"an adopted engine's files are looked at":         {view: view{want: wantRunning, reserved: true, engine: true}, step: stepDownload, reason: "", again: time.Time{}},
		"an engine of another configuration is unloaded":  {view: view{want: wantRunning, downloaded: true, reserved: true, engine: true, outdated: true}, step: stepUnload, reason: v1alpha1.ReclaimReplaced, again: time.Time{}},
		"an engine that starts is not stopped yet":        {view: view{want: wantDrained, reserved: true, engine: true, starting: true}, step: 0, reason: "", again: time.Time{}},
		"a drain unloads":                                 {view: view{want: wantDrained, reserved: true, engine: true}, step: stepUnload, reason: v1alpha1.ReclaimDrained, again: time.Time{}},
		"a drain unloads once":                            {view: view{want: wantDrained, reserved: true, engine: true, unloading: true}, step: 0, reason: "", again: time.Time{}},
		"what a request loads says when it may again":     {view: view{want: wantRunning, downloaded: true, onDemand: true, loadNotBefore: later}, step: 0, reason: "", again: later},
		"what a request loads later keeps no memory":      {view: view{want: wantRunning, downloaded: true, onDemand: true, demanded: true, reserved: true, loadNotBefore: later}, step: stepUnreserve, reason: "", again: time.Time{}},
		"nor does it ask for any":                         {view: view{want: wantRunning, downloaded: true, onDemand: true, demanded: true, loadNotBefore: later}, step: 0, reason: "", again: later},
		"a drain cancels a download":                      {view: view{want: wantDrained, downloading: true}, step: stepCancelDownload, reason: "", again: time.Time{}},
		"and once":                                        {view: view{want: wantDrained, downloading: true, downloadEnding: true}, step: 0, reason: "", again: time.Time{}},
		"a drain without an engine releases":              {view: view{want: wantDrained, reserved: true}, step: stepRelease, reason: "", again: time.Time{}},
		"a drain releases once":                           {view: view{want: wantDrained, released: true}, step: 0, reason: "", again: time.Time{}},
		"what no order names is unloaded":                 {view: view{want: wantGone, reserved: true, engine: true}, step: stepUnload, reason: v1alpha1.ReclaimUnassigned, again: time.Time{}},
		"what no order names and holds nothing is forgot": {view: view{want: wantGone, released: true}, step: stepForget, reason: "", again: time.Time{}},
		"without orders nothing is stopped":               {view: view{want: wantUnknown, reserved: true, engine: true}, step: 0, reason: "", again: time.Time{}},
		"an invalid order stops nothing":                  {view: view{want: wantInvalid, reserved: true, engine: true}, step: 0, reason: "", again: time.Time{}},
		"an invalid order starts nothing":                 {view: view{want: wantInvalid}, step: 0, reason: "", again: time.Time{}},
		"only the weights are wanted: unload the engine":  {view: view{want: wantDownloaded, downloaded: true, reserved: true, engine: true}, step: stepUnload, reason: v1alpha1.ReclaimDrained, again: time.Time{}},
		"only the weights are wanted: it ends first":      {view: view{want: wantDownloaded, downloaded: true, reserved: true, engine: true, unloading: true}, step: 0, reason: "", again: time.Time{}},
		"only the weights are wanted: no reservation":     {view: view{want: wantDownloaded, downloaded: true, reserved: true}, step: stepUnreserve, reason: "", again: time.Time{}},
		"only the weights are wanted: download":           {view: view{want: wantDownloaded}, step: stepDownload, reason: "", again: time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			actions, again := plan(one(tc.view), at)
			var want []action
			if tc.step != 0 {
				want = []action{{key: memory.Key{UID: "u", Epoch: 1}, step: tc.step, reason: tc.reason}}
			}
			if d := cmp.Diff(want, actions, cmp.AllowUnexported(action{})); d != "" || !again.Equal(tc.again) {
				t.Errorf("again %v, want %v; actions (-want +got):\n%s", again, tc.again, d)
			}
		})
	}
}

func TestMemoryIsGivenBackBeforeItIsTakenInTheOrderOfTheDemands(t *testing.T) {
	entry := func(uid string, v view) view {
		v.key.UID, v.downloaded, v.reserved = uid, true, true
		return v
	}
	demanded := func(uid string, since time.Time) view {
		return entry(uid, view{want: wantRunning, onDemand: true, demanded: true, since: since})
	}
	actions, _ := plan([]view{
		demanded("late", at), demanded("early", at.Add(-time.Second)), entry("always", view{want: wantRunning}), entry("drained", view{want: wantDrained, engine: true}),
	}, at)
	var order []string
	for _, a := range actions {
		order = append(order, a.key.UID)
	}
	if d := cmp.Diff([]string{"drained", "always", "early", "late"}, order); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestThePlanIsMadeAgainWhenTheFirstEntryWaitsNoLonger(t *testing.T) {
	waits := func(uid string, until time.Duration) view {
		return view{key: memory.Key{UID: uid}, want: wantRunning, downloadNotBefore: at.Add(until)}
	}
	never := view{key: memory.Key{UID: "never"}, want: wantRunning, downloading: true}
	for _, views := range [][]view{{never, waits("a", 2), waits("b", 1)}, {waits("b", 1), waits("a", 2), never}} {
		if _, again := plan(views, at); !again.Equal(at.Add(1)) {
			t.Errorf("again at %v, want %v", again, at.Add(1))
		}
	}
}

// A successor waits for its predecessor's exit.
func TestTwoEpochsNeverRunAtOnce(t *testing.T) {
	old := view{key: memory.Key{UID: "u", Epoch: 1}, want: wantGone, engine: true, unloading: true}
	next := view{key: memory.Key{UID: "u", Epoch: 2}, want: wantRunning, downloaded: true, reserved: true}
	if actions, _ := plan([]view{old, next}, at); len(actions) != 0 {
		t.Errorf("next to its predecessor: %+v", actions)
	}
	next.reserved = false // engines in use are ended for what may start
	if actions, _ := plan([]view{old, next}, at); len(actions) != 1 || actions[0].step != stepReserveOnly {
		t.Errorf("next to its predecessor, without memory: %+v", actions)
	}
	next.reserved = true
	if actions, _ := plan([]view{next}, at); len(actions) != 1 || actions[0].step != stepLoad {
		t.Errorf("alone: %+v", actions)
	}
}

func TestRestartsAreBounded(t *testing.T) {
	var crashes []time.Time
	now := at
	for i, want := range []time.Duration{1, 2, 4, 8, 16} {
		recent, wait, again := afterCrash(crashes, now)
		if !again || wait != want*time.Second {
			t.Fatalf("crash %d: wait %v, again %v", i+1, wait, again)
		}
		crashes, now = recent, now.Add(wait)
	}
	if recent, _, again := afterCrash(crashes, now); again || len(recent) != 6 {
		t.Errorf("the sixth crash within ten minutes starts it again (%d)", len(recent))
	}
	if recent, wait, again := afterCrash(crashes, now.Add(crashWindow)); !again || wait != firstBackoff || len(recent) != 1 {
		t.Errorf("a crash long after: %d recent, wait %v, again %v", len(recent), wait, again)
	}
}

func TestDownloadPausesGrowToABound(t *testing.T) {
	for attempts, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 6: 32 * time.Second, 7: time.Minute, 1000: time.Minute} {
		if got := downloadPause(attempts); got != want {
			t.Errorf("after %d attempts %v, want %v", attempts, got, want)
		}
	}
	for refusals, want := range map[int]time.Duration{1: 10 * time.Minute, 2: 20 * time.Minute, 8: 1280 * time.Minute, 9: 24 * time.Hour, 1000: 24 * time.Hour} {
		if got := refusedPause(refusals); got != want {
			t.Errorf("after %d refusals %v, want %v", refusals, got, want)
		}
	}
}
