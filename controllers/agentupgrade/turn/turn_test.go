//go:build !race

package turn

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func target() *v1alpha1.AgentRelease {
	return &v1alpha1.AgentRelease{Version: "v0.4.0", Source: "https://releases.example.com/agent.tar.gz", SHA256: strings.Repeat("a", 64), RetryGeneration: 3}
}

// class returns a class with a release; nil: it has none.
func class(w *v1alpha1.AgentRelease) *v1alpha1.MacClass {
	return &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: v1alpha1.MacClassSpec{Release: w}}
}

type change func(*Mac)

// mac returns a healthy Mac that runs v0.3.0, with changes.
func mac(name string, changes ...change) Mac {
	m := Mac{MacNode: &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	m.Status.AgentVersion = "v0.3.0"
	is(v1alpha1.ConditionReady, "True", v1alpha1.ReasonReporting)(&m)
	is(v1alpha1.ConditionAccepting, "True", v1alpha1.ReasonAccepted)(&m)
	for _, c := range changes {
		c(&m)
	}
	return m
}

func is(kind string, s metav1.ConditionStatus, reason string) change {
	return since(kind, s, reason, time.Hour)
}

func since(kind string, s metav1.ConditionStatus, reason string, ago time.Duration) change {
	return func(m *Mac) {
		var kept []metav1.Condition
		for _, c := range m.Status.Conditions {
			if c.Type != kind {
				kept = append(kept, c)
			}
		}
		m.Status.Conditions = append(kept, metav1.Condition{Type: kind, Status: s, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-ago))})
	}
}

func ordered(m *Mac) { m.Order = target().Order() }
func runsIt(m *Mac)  { m.Status.AgentVersion = "v0.4.0" }
func leaves(m *Mac)  { m.DeletionTimestamp = &metav1.Time{Time: now} }
func cordoned(m *Mac) {
	m.Spec.Unschedulable = true
}

func phase(p v1alpha1.AgentUpgradePhase) change {
	return func(m *Mac) {
		o := m.Order
		m.Status.AgentUpgrade = &v1alpha1.AgentUpgrade{To: o.Version, SHA256: o.SHA256, Attempt: o.Attempt, Phase: p, Message: "because"}
	}
}

// another is an order of an earlier attempt.
func another(m *Mac) {
	m.Order = target().Order()
	m.Order.Version, m.Order.Attempt = "v0.3.9", 2
}

func runsFor(d time.Duration) change {
	return since(v1alpha1.ConditionAgentCurrent, "True", v1alpha1.ReasonAgentCurrent, d)
}

func paused(w *v1alpha1.AgentRelease) { w.State = v1alpha1.ReleasePaused }

var (
	silent  = is(v1alpha1.ConditionReady, "Unknown", v1alpha1.ReasonMacSilent)
	gone    = is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonMacGone)
	stopped = is(v1alpha1.ConditionAccepting, "False", v1alpha1.ReasonShuttingDown)
	never   = is(v1alpha1.ConditionReady, "False", v1alpha1.ReasonNeverReported)
)

func TestWhoseTurnItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		target func(*v1alpha1.AgentRelease)
		macs   []Mac
		state  State
		mac    string
		start  bool
		says   string
	}{
		"the first by name begins":                        {macs: []Mac{mac("b"), mac("a")}, state: Upgrading, mac: "a", start: true},
		"no second one next to an ordered one":            {macs: []Mac{mac("a"), mac("b", ordered)}, state: Upgrading, mac: "b", says: "not responded"},
		"no second one next to a draining one":            {macs: []Mac{mac("a"), mac("b", ordered, phase(v1alpha1.UpgradeDraining))}, state: Upgrading, mac: "b"},
		"no second one next to one on trial":              {macs: []Mac{mac("a"), mac("b", ordered, runsIt, stopped, phase(v1alpha1.UpgradeTrial))}, state: Upgrading, mac: "b", says: "Trial"},
		"a new one is watched for a while":                {macs: []Mac{mac("a", ordered, runsIt, phase(v1alpha1.UpgradeSucceeded), runsFor(10*time.Second)), mac("b")}, state: Upgrading, mac: "a", says: "observed for another 20s"},
		"a new one without a judgement is watched":        {macs: []Mac{mac("a", ordered, runsIt, phase(v1alpha1.UpgradeSucceeded)), mac("b")}, state: Upgrading, mac: "a", says: "observed for another 30s"},
		"the next begins after that":                      {macs: []Mac{mac("a", ordered, runsIt, runsFor(time.Minute)), mac("b")}, state: Upgrading, mac: "b", start: true},
		"one that is new and not ready is waited for":     {macs: []Mac{mac("a", ordered, runsIt, runsFor(time.Minute), silent), mac("b")}, state: Upgrading, mac: "a", says: "currently unreachable"},
		"a rollback halts":                                {macs: []Mac{mac("a", ordered, phase(v1alpha1.UpgradeRolledBack)), mac("b")}, state: Halted, mac: "a", says: "because"},
		"a refusal halts":                                 {macs: []Mac{mac("a"), mac("b", ordered, phase(v1alpha1.UpgradeRefused))}, state: Halted, mac: "b"},
		"a rollback halts also what is underway":          {macs: []Mac{mac("a", ordered), mac("b", ordered, phase(v1alpha1.UpgradeRolledBack))}, state: Halted, mac: "b"},
		"a new target clears an old rollback":             {macs: []Mac{mac("a", another, phase(v1alpha1.UpgradeRolledBack)), mac("b")}, state: Upgrading, mac: "a", start: true},
		"one that drains for another order is waited for": {macs: []Mac{mac("a"), mac("b", another, phase(v1alpha1.UpgradeDraining))}, state: Waiting, mac: "b", says: "v0.3.9"},
		"a pause begins nothing":                          {target: paused, macs: []Mac{mac("a")}, state: Paused, says: "--resume"},
		"a pause continues a running upgrade":             {target: paused, macs: []Mac{mac("a", ordered)}, state: Upgrading, mac: "a"},
		"none begins while one is silent":                 {macs: []Mac{mac("a"), mac("z", silent)}, state: Waiting, mac: "z", says: "cordon it or delete it"},
		"none begins while one is gone":                   {macs: []Mac{mac("a"), mac("z", gone)}, state: Waiting, mac: "z"},
		"one that was stopped blocks none":                {macs: []Mac{mac("a", gone, stopped), mac("z")}, state: Upgrading, mac: "z", start: true},
		"one that never joined blocks none":               {macs: []Mac{mac("a", never), mac("z")}, state: Upgrading, mac: "z", start: true},
		"a cordoned one that is silent holds none up":     {macs: []Mac{mac("a", cordoned, silent), mac("z")}, state: Upgrading, mac: "z", start: true},
		"a cordoned one that was ordered holds none up":   {macs: []Mac{mac("a", ordered, cordoned, phase(v1alpha1.UpgradeDraining)), mac("z")}, state: Upgrading, mac: "z", start: true},
		"nor does one that drains for another order":      {macs: []Mac{mac("a", another, cordoned, phase(v1alpha1.UpgradeDraining)), mac("z")}, state: Upgrading, mac: "z", start: true},
		"nor does one that is being deleted":              {macs: []Mac{mac("a", ordered, leaves), mac("z")}, state: Upgrading, mac: "z", start: true},
		"it is reported":                                  {macs: []Mac{mac("a", ordered, cordoned, phase(v1alpha1.UpgradeDraining)), mac("z", runsIt)}, state: Done, says: "a (cordoned; Draining: because)"},
		"the way out is reported":                         {macs: []Mac{mac("a", ordered), mac("z")}, state: Upgrading, mac: "a", says: "cordon or delete it"},
		"a cordoned one that failed halts all the same":   {macs: []Mac{mac("a", ordered, cordoned, phase(v1alpha1.UpgradeRolledBack)), mac("z")}, state: Halted, mac: "a"},
		"a cordoned one is caught up later":               {macs: []Mac{mac("a", cordoned), mac("z", runsIt)}, state: Done, says: "a (cordoned)"},
		"all have it":                                     {macs: []Mac{mac("a", runsIt), mac("z", runsIt)}, state: Done, says: "all selected Macs run v0.4.0"},
		"only the named Mac":                              {target: func(w *v1alpha1.AgentRelease) { w.Mac = "z" }, macs: []Mac{mac("a"), mac("z")}, state: Upgrading, mac: "z", start: true},
		"no Mac of that name":                             {target: func(w *v1alpha1.AgentRelease) { w.Mac = "x" }, macs: []Mac{mac("a")}, state: Waiting, says: "class default has no Mac x"},
	} {
		t.Run(name, func(t *testing.T) {
			w := target()
			if tc.target != nil {
				tc.target(w)
				for i := range tc.macs { // the order is derived from the target
					if tc.macs[i].Order != nil && tc.macs[i].Order.Attempt == w.RetryGeneration {
						tc.macs[i].Order = w.Order()
					}
				}
			}
			got := Next(class(w), "v0.4.1", tc.macs, now)
			if got.State != tc.state || got.Mac != tc.mac || got.Start != tc.start || !strings.Contains(got.Message, tc.says) {
				t.Errorf("%s, Mac %q, start %v: %s; want %s, %q, %v and %q", got.State, got.Mac, got.Start, got.Message, tc.state, tc.mac, tc.start, tc.says)
			}
			if len(got.Macs) != len(tc.macs) {
				t.Errorf("%d Macs stand somewhere, want all %d", len(got.Macs), len(tc.macs))
			}
		})
	}
	if got := Next(class(nil), "", []Mac{mac("a")}, now); got.State != Idle || got.Start {
		t.Errorf("without a target: %+v", got)
	}
	if got := Next(class(target()), "v0.3.0", []Mac{mac("a")}, now); got.State != Waiting || got.Start || !strings.Contains(got.Message, "upgrade CRDs and operator first") {
		t.Errorf("an agent newer than the operator: %+v", got)
	}
	watched := []Mac{mac("a", ordered, runsIt, runsFor(10*time.Second))}
	if got := Next(class(target()), "", watched, now); got.After != 20*time.Second {
		t.Errorf("looked at again after %s, want 20s", got.After)
	}
}

func TestWhatAMacIsToldOfItsAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		target *v1alpha1.AgentRelease
		mac    Mac
		status metav1.ConditionStatus
		reason string
	}{
		"as wanted":              {target: target(), mac: mac("a", ordered, runsIt), status: "True", reason: v1alpha1.ReasonAgentCurrent},
		"waits":                  {target: target(), mac: mac("a"), status: "False", reason: v1alpha1.ReasonAgentOutdated},
		"not meant":              {target: &v1alpha1.AgentRelease{Version: "v0.4.0", Mac: "z"}, mac: mac("a"), status: "True", reason: v1alpha1.ReasonAgentSupported},
		"ordered":                {target: target(), mac: mac("a", ordered), status: "False", reason: v1alpha1.ReasonAgentUpgrading},
		"on trial":               {target: target(), mac: mac("a", ordered, runsIt, phase(v1alpha1.UpgradeTrial)), status: "False", reason: v1alpha1.ReasonAgentUpgrading},
		"rolled back":            {target: target(), mac: mac("a", ordered, phase(v1alpha1.UpgradeRolledBack)), status: "False", reason: v1alpha1.ReasonAgentRolledBack},
		"refused":                {target: target(), mac: mac("a", ordered, phase(v1alpha1.UpgradeRefused)), status: "False", reason: v1alpha1.ReasonAgentRefused},
		"nothing wanted, N":      {mac: mac("a", runsIt), status: "True", reason: v1alpha1.ReasonAgentSupported},
		"nothing wanted, N-1":    {mac: mac("a"), status: "True", reason: v1alpha1.ReasonAgentSupported},
		"nothing wanted, N-2":    {mac: mac("a", func(m *Mac) { m.Status.AgentVersion = "v0.2.9" }), status: "False", reason: v1alpha1.ReasonAgentTooOld},
		"too old beats outdated": {target: target(), mac: mac("a", func(m *Mac) { m.Status.AgentVersion = "v0.2.9" }), status: "False", reason: v1alpha1.ReasonAgentTooOld},
		"never reported":         {mac: mac("a", func(m *Mac) { m.Status.AgentVersion = "" }), status: "Unknown", reason: v1alpha1.ReasonAgentUnversioned},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(tc.target, tc.mac, "v0.4.2"); got.Status != tc.status || got.Reason != tc.reason || got.Message == "" {
				t.Errorf("%s %s: %s; want %s %s", got.Status, got.Reason, got.Message, tc.status, tc.reason)
			}
		})
	}
}

func TestOperatorNServesAgentsNAndNMinusOne(t *testing.T) {
	for _, tc := range []struct{ operator, agent, reason string }{
		{operator: "v0.4.0", agent: "v0.4.7", reason: v1alpha1.ReasonAgentSupported},
		{operator: "v0.4.7", agent: "v0.4.0-3-gabcdef0", reason: v1alpha1.ReasonAgentSupported},
		{operator: "v0.4.0", agent: "v0.3.9", reason: v1alpha1.ReasonAgentSupported},
		{operator: "v0.4.0", agent: "v0.2.9", reason: v1alpha1.ReasonAgentTooOld},
		{operator: "v0.4.0", agent: "v0.5.0", reason: v1alpha1.ReasonAgentTooNew},
		{operator: "v1.0.0", agent: "v0.9.0", reason: v1alpha1.ReasonAgentSupported},
		{operator: "v1.1.0", agent: "v0.9.0", reason: v1alpha1.ReasonAgentTooOld},
		{operator: "v2.0.0", agent: "v0.9.0", reason: v1alpha1.ReasonAgentTooOld},
		{operator: "v0.9.0", agent: "v1.0.0", reason: v1alpha1.ReasonAgentTooNew},
		{operator: "8cf0e8f", agent: "8cf0e8f", reason: v1alpha1.ReasonAgentSupported},
		{operator: "8cf0e8f", agent: "v0.4.0", reason: v1alpha1.ReasonAgentUnversioned},
		{operator: "v0.4.0", agent: "unversioned", reason: v1alpha1.ReasonAgentUnversioned},
	} {
		if _, reason, message := serves(tc.operator, tc.agent); reason != tc.reason || message == "" {
			t.Errorf("operator %s, agent %s: %s (%s), want %s", tc.operator, tc.agent, reason, message, tc.reason)
		}
	}
}

func labelled(key string) change {
	return func(m *Mac) { m.Labels = map[string]string{key: "yes"} }
}

// selected is a wave of the Macs with a label.
func selected(key string, soak int32) v1alpha1.ReleaseWave {
	return v1alpha1.ReleaseWave{MacSelector: v1alpha1.MacSelector{MatchLabels: map[string]string{key: "yes"}}, SoakSeconds: soak}
}

func TestWavesFollowOneAnother(t *testing.T) {
	for name, tc := range map[string]struct {
		macs  []Mac
		state State
		mac   string
		after time.Duration
	}{
		"the first wave begins":                  {macs: []Mac{mac("a"), mac("y", labelled("second")), mac("z", labelled("first"))}, state: Upgrading, mac: "z"},
		"the second one follows after its soak":  {macs: []Mac{mac("a"), mac("y", labelled("second")), mac("z", labelled("first"), ordered, runsIt, runsFor(time.Hour))}, state: Upgrading, mac: "y"},
		"it does not begin before":               {macs: []Mac{mac("a"), mac("y", labelled("second")), mac("z", labelled("first"), ordered, runsIt, runsFor(50*time.Minute))}, state: Waiting, mac: "y", after: 10 * time.Minute},
		"a Mac of the same wave does not wait":   {macs: []Mac{mac("a"), mac("y", labelled("first")), mac("z", labelled("first"), ordered, runsIt, runsFor(time.Minute))}, state: Upgrading, mac: "y"},
		"the rest follows the last wave":         {macs: []Mac{mac("a"), mac("y", labelled("second"), ordered, runsIt, runsFor(time.Minute)), mac("z", labelled("first"), ordered, runsIt, runsFor(2*time.Hour))}, state: Upgrading, mac: "a"},
		"a wave whose Macs are cordoned is over": {macs: []Mac{mac("a"), mac("z", labelled("first"), cordoned)}, state: Upgrading, mac: "a"},
		"a failure in a wave halts the rest":     {macs: []Mac{mac("a"), mac("z", labelled("first"), ordered, phase(v1alpha1.UpgradeRolledBack))}, state: Halted, mac: "z"},
	} {
		t.Run(name, func(t *testing.T) {
			w := target()
			w.Waves = []v1alpha1.ReleaseWave{selected("first", 3600), selected("second", 0)}
			got := Next(class(w), "v0.4.1", tc.macs, now)
			if got.State != tc.state || got.Mac != tc.mac || got.After != tc.after || got.Start != (tc.state == Upgrading) {
				t.Errorf("%s, Mac %q, again after %s, start %v: %s", got.State, got.Mac, got.After, got.Start, got.Message)
			}
		})
	}
}

func TestUpgradesBeginInTheMaintenanceWindow(t *testing.T) {
	for name, tc := range map[string]struct {
		window v1alpha1.Hours
		macs   []Mac
		state  State
		after  time.Duration
	}{
		"it is open":                               {window: v1alpha1.Hours{Start: "11:00", End: "13:00"}, macs: []Mac{mac("a")}, state: Upgrading},
		"it is closed":                             {window: v1alpha1.Hours{Start: "13:30", End: "14:00"}, macs: []Mac{mac("a")}, state: Waiting, after: 90 * time.Minute},
		"one that has begun is completed":          {window: v1alpha1.Hours{Start: "13:30", End: "14:00"}, macs: []Mac{mac("a", ordered), mac("b")}, state: Upgrading},
		"without a Mac to upgrade it is no matter": {window: v1alpha1.Hours{Start: "13:30", End: "14:00"}, macs: []Mac{mac("a", runsIt)}, state: Done},
		"an unknown zone never opens":              {window: v1alpha1.Hours{Start: "11:00", End: "13:00", TimeZone: "Mars/Phobos"}, macs: []Mac{mac("a")}, state: Waiting},
	} {
		t.Run(name, func(t *testing.T) {
			c := class(target())
			c.Spec.MaintenanceWindow = &tc.window
			got := Next(c, "v0.4.1", tc.macs, now)
			if got.State != tc.state || got.After != tc.after || got.Start != (tc.state == Upgrading && tc.macs[0].Order == nil) {
				t.Errorf("%s, again after %s, start %v: %s", got.State, got.After, got.Start, got.Message)
			}
		})
	}
}

func TestOneMacOfAllClassesIsUpgradedAtATime(t *testing.T) {
	classes := []v1alpha1.MacClass{*class(target()), *class(target()), *class(nil)}
	classes[1].Name, classes[2].Name = "studio", "idle"
	of := func(name string) change { return func(m *Mac) { m.Spec.Class = name } }
	for name, tc := range map[string]struct {
		macs   []Mac
		starts string
		says   string // by the class studio
	}{
		"the first class begins":              {macs: []Mac{mac("a"), mac("s", of("studio"))}, starts: "a", says: "once no Mac of class default is"},
		"the next one after that":             {macs: []Mac{mac("a", ordered, runsIt, runsFor(time.Minute)), mac("s", of("studio"))}, starts: "s", says: "s is next"},
		"not while one is observed":           {macs: []Mac{mac("a", ordered, runsIt), mac("s", of("studio"))}, says: "once no Mac of class default is"},
		"nor while one is silent":             {macs: []Mac{mac("a", silent), mac("s", of("studio"))}, says: "being upgraded or unreachable"},
		"a later class that is busy precedes": {macs: []Mac{mac("a"), mac("s", of("studio"), ordered)}, says: "not responded"},
		"a failure halts its class only":      {macs: []Mac{mac("a", ordered, phase(v1alpha1.UpgradeRolledBack)), mac("s", of("studio"))}, starts: "s", says: "s is next"},
		"no release, no upgrade":              {macs: []Mac{mac("i", of("idle")), mac("s", of("studio"), runsIt)}, says: "all selected Macs"},
		"a class that is missing":             {macs: []Mac{mac("i", of("gone")), mac("s", of("studio"), runsIt)}, says: "all selected Macs"},
	} {
		t.Run(name, func(t *testing.T) {
			turns := All(Classes(classes, tc.macs), "v0.4.1", now)
			starts := ""
			for _, x := range turns {
				if x.Start {
					starts += x.Mac
				}
			}
			if starts != tc.starts || !strings.Contains(turns[1].Message, tc.says) {
				t.Errorf("%q starts, want %q; studio says %q", starts, tc.starts, turns[1].Message)
			}
		})
	}
}
