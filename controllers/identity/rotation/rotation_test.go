//go:build !race

package rotation

import (
	"strings"
	"testing"
	"time"
)

var (
	now    = time.Unix(1_800_000_000, 0).UTC()
	policy = Policy{Spread: time.Hour, SharePercent: 80}
)

const year = 365 * 24 * time.Hour

func rootAt(name string, at time.Time) Root {
	return Root{Fingerprint: name, NotBefore: at, NotAfter: at.Add(10 * year)}
}

// at is a state of a stage, as it is shortly after it was reached.
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

// fleet is told and confirms, but for what change says.
func fleet(change func(*World)) World {
	w := World{GatewaysTold: true, Macs: []Mac{{"m1", true, true, true}, {"m2", true, true, true}}}
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
		"nothing is asked":                        {at(Settled), fleet(nil), 0, Wait, "begins at"},
		"a rotation is asked":                     {at(Settled), fleet(asked), 0, Begin, `requested ("1")`},
		"it was made already":                     {handled, fleet(asked), 0, Wait, ""},
		"another one is asked":                    {handled, fleet(func(w *World) { w.Asked = "2" }), 0, Begin, `requested ("2")`},
		"one is asked at once":                    {at(Settled), fleet(atOnce), 0, Begin, "immediately"},
		"that was made already":                   {handled, fleet(atOnce), 0, Wait, ""},
		"just before 80 % of ten years":           {at(Settled), fleet(nil), 8*year - time.Second, Wait, ""},
		"80 % of ten years are over":              {at(Settled), fleet(nil), 8 * year, Begin, "80 %"},
		"gateways are not told":                   {at(Publishing), fleet(func(w *World) { w.GatewaysTold = false }), time.Hour, Wait, "gateways' Secret"},
		"gateways are told":                       {at(Publishing), fleet(nil), time.Hour, Spread, ""},
		"their Secret was changed":                {at(Spreading), fleet(func(w *World) { w.GatewaysTold = false }), 2 * time.Hour, Respread, ""},
		"a Mac's Secret is not written":           {at(Spreading), fleet(func(w *World) { w.Macs[1].Told = false }), 2 * time.Hour, Wait, "m2"},
		"also one of a Mac that is gone":          {at(Spreading), fleet(func(w *World) { w.Macs[1] = Mac{Name: "m2"} }), 2 * time.Hour, Wait, "m2"},
		"gateways had too little time":            {at(Spreading), fleet(nil), time.Hour - time.Second, Wait, "gateways have time to read"},
		"a Mac that lives has not confirmed":      {at(Spreading), fleet(func(w *World) { w.Macs[0].Confirmed = false }), 9 * time.Hour, Wait, "m1"},
		"a Mac that is gone has not confirmed":    {at(Spreading), fleet(func(w *World) { w.Macs[0] = Mac{Name: "m1", Told: true} }), time.Hour, Sign, ""},
		"all confirm and gateways had their time": {at(Spreading), fleet(nil), time.Hour, Sign, ""},
		"there is no Mac":                         {at(Spreading), fleet(func(w *World) { w.Macs = nil }), time.Hour, Sign, ""},
		"the old root may be met":                 {at(Retiring), fleet(nil), 24*time.Hour - time.Second, Wait, "may be valid until"},
		"it may not":                              {at(Retiring), fleet(nil), 24 * time.Hour, End, ""},
		"another is asked while one retires":      {at(Retiring), fleet(asked), 0, Wait, ""},
		"in a hurry gateways are told all the same": {hurried(at(Publishing)), fleet(func(w *World) { w.GatewaysTold = false }), 0, Wait,
			"gateways' Secret"},
		"in a hurry Macs are told all the same": {hurried(at(Spreading)), fleet(func(w *World) { w.Macs[0].Told = false }), 0, Wait, "m1"},
		"in a hurry nobody's word is waited for": {hurried(at(Spreading)), fleet(func(w *World) { w.Macs[0].Confirmed = false }), 0, Sign,
			"not required"},
		"in a hurry the old root goes":                 {hurried(at(Retiring)), fleet(nil), 0, End, ""},
		"a hurry while one spreads: its root goes too": {at(Spreading), fleet(atOnce), 0, Begin, "immediately"},
		"a hurry while one retires: that ends first":   {at(Retiring), fleet(atOnce), 0, End, ""},
		"what signs has expired: nobody is cut off":    {at(Spreading), fleet(func(w *World) { w.Macs[0].Confirmed = false }), 10 * year, Sign, ""},
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
		macs = append(macs, Mac{Name: name, Told: true, Lives: true})
	}
	d := Decide(now.Add(time.Hour), at(Spreading), World{GatewaysTold: true, Macs: macs}, policy)
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
