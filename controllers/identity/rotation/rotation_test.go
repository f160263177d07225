//go:build !race

package rotation

import (
	"strings"
	"testing"
	"time"
)

var (
	now    = time.Unix(1_800_000_000, 0).UTC()
	policy = Policy{Spread: time.Hour, Lead: 2 * year}
)

const year = 365 * 24 * time.Hour

func rootAt(name string, at time.Time) Root {
	return Root{Fingerprint: name, NotAfter: at.Add(10 * year)}
}

// at returns the state shortly after a stage was reached.
func at(stage Stage) State {
	s := State{Signing: rootAt("a", now), IssuedUntil: now.Add(24 * time.Hour)}
	b := rootAt("b", now)
	switch stage {
	case Publishing:
		s.Next = &b
	case Spreading:
		s.Next, s.SpreadSince = &b, now
	case Retiring:
		s.Old, s.OldUntil = &b, now.Add(24*time.Hour)
	}
	return s
}

// fleet returns an up-to-date, confirmed fleet with changes.
func fleet(change func(*World)) World {
	w := World{GatewaysUpdated: true, Macs: []Mac{{Name: "m1", Updated: true, Lives: true, Confirmed: true}, {Name: "m2", Updated: true, Lives: true, Confirmed: true}}}
	if change != nil {
		change(&w)
	}
	return w
}

func hurried(s State) State { s.Hurry = true; return s }

func TestEachStepWaitsForWhatItNeeds(t *testing.T) {
	asked := func(w *World) { w.Asked = "1" }
	atOnce := func(w *World) { w.AtOnce = "1" }
	handled := at(Settled)
	handled.Handled, handled.HandledAtOnce = "1", "1"
	for name, tc := range map[string]struct {
		s     State
		w     World
		after time.Duration
		step  Step
		why   string
	}{
		"nothing is asked":                        {s: at(Settled), w: fleet(nil), step: Wait, why: "begins at"},
		"a rotation is asked":                     {s: at(Settled), w: fleet(asked), step: Begin, why: `requested ("1")`},
		"it was made already":                     {s: handled, w: fleet(asked), step: Wait},
		"another one is asked":                    {s: handled, w: fleet(func(w *World) { w.Asked = "2" }), step: Begin, why: `requested ("2")`},
		"one is asked at once":                    {s: at(Settled), w: fleet(atOnce), step: Begin, why: "immediately"},
		"that was made already":                   {s: handled, w: fleet(atOnce), step: Wait},
		"two years are left, and a second":        {s: at(Settled), w: fleet(nil), after: 8*year - time.Second, step: Wait},
		"two years are left":                      {s: at(Settled), w: fleet(nil), after: 8 * year, step: Begin, why: "expires at"},
		"gateways lack one":                       {s: at(Publishing), w: fleet(func(w *World) { w.GatewaysUpdated = false }), after: time.Hour, step: Wait, why: "gateways' Secret"},
		"gateways have both":                      {s: at(Publishing), w: fleet(nil), after: time.Hour, step: Spread},
		"their Secret was changed":                {s: at(Spreading), w: fleet(func(w *World) { w.GatewaysUpdated = false }), after: 2 * time.Hour, step: Respread},
		"a Mac's Secret is not written":           {s: at(Spreading), w: fleet(func(w *World) { w.Macs[1].Updated = false }), after: 2 * time.Hour, step: Wait, why: "m2"},
		"also one of a Mac that is gone":          {s: at(Spreading), w: fleet(func(w *World) { w.Macs[1] = Mac{Name: "m2"} }), after: 2 * time.Hour, step: Wait, why: "m2"},
		"gateways had too little time":            {s: at(Spreading), w: fleet(nil), after: time.Hour - time.Second, step: Wait, why: "gateways have time to read"},
		"the clock before was ahead":              {s: at(Spreading), w: fleet(nil), after: -time.Hour, step: Respread},
		"a Mac that lives has not confirmed":      {s: at(Spreading), w: fleet(func(w *World) { w.Macs[0].Confirmed = false }), after: 9 * time.Hour, step: Wait, why: "m1"},
		"a Mac that is gone has not confirmed":    {s: at(Spreading), w: fleet(func(w *World) { w.Macs[0] = Mac{Name: "m1", Updated: true} }), after: time.Hour, step: Sign},
		"all confirm and gateways had their time": {s: at(Spreading), w: fleet(nil), after: time.Hour, step: Sign},
		"there is no Mac":                         {s: at(Spreading), w: fleet(func(w *World) { w.Macs = nil }), after: time.Hour, step: Sign},
		"the old root may be met":                 {s: at(Retiring), w: fleet(nil), after: 24*time.Hour - time.Second, step: Wait, why: "may be valid until"},
		"it may not":                              {s: at(Retiring), w: fleet(nil), after: 24 * time.Hour, step: End},
		"another is asked while one retires":      {s: at(Retiring), w: fleet(asked), step: Wait},
		"in a hurry gateways still have to have both": {s: hurried(at(Publishing)), w: fleet(func(w *World) { w.GatewaysUpdated = false }), after: 0, step: Wait,
			why: "gateways' Secret"},
		"in a hurry Macs still have to have both": {s: hurried(at(Spreading)), w: fleet(func(w *World) { w.Macs[0].Updated = false }), step: Wait, why: "m1"},
		"in a hurry no confirmation is awaited": {s: hurried(at(Spreading)), w: fleet(func(w *World) { w.Macs[0].Confirmed = false }), after: 0, step: Sign,
			why: "not required"},
		"in a hurry the old root is dropped":           {s: hurried(at(Retiring)), w: fleet(nil), step: End},
		"a hurry while one spreads drops its root too": {s: at(Spreading), w: fleet(atOnce), step: Begin, why: "immediately"},
		"a hurry while one retires: that ends first":   {s: at(Retiring), w: fleet(atOnce), step: End},
		"the signing root has expired":                 {s: at(Spreading), w: fleet(func(w *World) { w.Macs[0].Confirmed = false }), after: 10 * year, step: Sign},
	} {
		d := Decide(now.Add(tc.after), tc.s, tc.w, policy)
		if d.Step != tc.step || !strings.Contains(d.Why, tc.why) {
			t.Errorf("%s: %q, %q; want %q, %q", name, d.Step, d.Why, tc.step, tc.why)
		}
		if d.Hurry != (d.Step == Begin && tc.w.AtOnce != "") {
			t.Errorf("%s: hurry is %v", name, d.Hurry)
		}
		if d.Step == Wait && d.Again > 0 && Decide(now.Add(tc.after+d.Again), tc.s, tc.w, policy).Why == d.Why {
			t.Errorf("%s: after %s nothing is new (%s)", name, d.Again, d.Why)
		}
	}
}

func TestWhoIsWaitedForIsNamed(t *testing.T) {
	var macs []Mac
	for _, name := range []string{"g", "b", "f", "a", "e", "d", "c"} {
		macs = append(macs, Mac{Name: name, Updated: true, Lives: true})
	}
	d := Decide(now.Add(time.Hour), at(Spreading), World{GatewaysUpdated: true, Macs: macs}, policy)
	if d.Step != Wait || d.Unconfirmed != 7 || !strings.Contains(d.Why, "a, b, c, d, e and 2 more") {
		t.Errorf("%+v", d)
	}
}

func TestAStateHasOneStage(t *testing.T) {
	for _, want := range Stages() {
		if got := at(want).Stage(); got != want {
			t.Errorf("%s is called %s", want, got)
		}
	}
}
