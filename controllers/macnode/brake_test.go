package macnode

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// seen is a Mac that joined and was last heard so long ago.
func seen(silence time.Duration, change ...func(*Sight)) Sight {
	s := Sight{Pulse: Pulse{Renewed: stamp, Heard: true, Silence: silence}, Before: &metav1.Condition{Reason: v1alpha1.ReasonHeardFrom}}
	if silence >= silentAfter {
		s.Before.Reason = v1alpha1.ReasonMacSilent
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func was(reason string) func(*Sight) {
	return func(s *Sight) { s.Before = &metav1.Condition{Reason: reason} }
}

func announced(s *Sight) { s.Announced = true }
func lost(s *Sight)      { s.Lost = true }
func notHeard(s *Sight)  { s.Heard = false }

func TestTheBrakeHoldsWhereMoreThanHalfFallSilentAtOnce(t *testing.T) {
	const s = time.Second
	alive := seen(5 * s)
	gone, back := seen(200*s), seen(5*s, func(s *Sight) { s.Back = true })
	for name, tc := range map[string]struct {
		fleet []Sight
		want  string // silent/fleet, and whether it holds
	}{
		"all are heard":                       {[]Sight{alive, alive, alive, alive}, "0/4 false"},
		"half is not over half":               {[]Sight{alive, alive, gone, gone}, "2/4 false"},
		"three of four":                       {[]Sight{alive, gone, gone, gone}, "3/4 true"},
		"all of them":                         {[]Sight{gone, gone, gone, gone}, "4/4 true"},
		"a fleet of three has none":           {[]Sight{alive, gone, gone}, "2/3 false"},
		"within a minute":                     {[]Sight{alive, gone, seen(230 * s), seen(260 * s)}, "3/4 true"},
		"and no longer":                       {[]Sight{alive, gone, seen(230 * s), seen(261 * s)}, "2/4 false"},
		"any minute counts":                   {[]Sight{alive, seen(900 * s), seen(40 * s), seen(50 * s), seen(60 * s)}, "3/5 true"},
		"a pause of 29 s is none":             {[]Sight{seen(29 * s), gone, gone, alive}, "2/4 false"},
		"announced ones do not count":         {[]Sight{alive, seen(200*s, announced), gone, gone}, "2/4 false"},
		"what was gone before is not there":   {[]Sight{alive, alive, seen(999*s, was(v1alpha1.ReasonMacGone)), gone, gone, gone}, "3/5 true"},
		"whether or not we saw it live":       {[]Sight{alive, alive, gone, gone, gone, seen(1*s, was(v1alpha1.ReasonMacGone), notHeard)}, "3/5 true"},
		"one that is back is there":           {[]Sight{alive, alive, gone, gone, gone, seen(1*s, was(v1alpha1.ReasonMacGone))}, "3/6 false"},
		"who is just back counts as silent":   {[]Sight{alive, back, back, gone}, "3/4 true"},
		"where somebody still is":             {[]Sight{alive, back, back, back}, "0/4 false"},
		"who never joined is not there":       {[]Sight{alive, gone, gone, {Before: &metav1.Condition{Reason: v1alpha1.ReasonNeverHeardFrom}}}, "2/3 false"},
		"also when it is gone by that":        {[]Sight{alive, gone, gone, seen(200*s, lost, was(v1alpha1.ReasonMacGone))}, "3/4 true"},
		"who is given up counts all the same": {[]Sight{alive, gone, gone, seen(200*s, lost)}, "3/4 true"},
	} {
		b := Look(tc.fleet)
		if got := fmt.Sprintf("%d/%d %v", b.Silent, b.Fleet, b.Holds()); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func leaves(s *Sight) { s.Leaving = "the Mac is about to sleep" }

// TestWhatAMacSaysOfItsPower: an agent that stops is no Mac that goes.
func TestWhatAMacSaysOfItsPower(t *testing.T) {
	for reason, want := range map[string]bool{
		v1alpha1.ReasonMacSleeps: true, v1alpha1.ReasonMacShutsDown: true, v1alpha1.ReasonShuttingDown: false, v1alpha1.ReasonAgentUpgrading: false,
	} {
		mac := &v1alpha1.MacNode{}
		mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse, Reason: reason, Message: "said"}}
		if got := SightOf(mac, Pulse{}, start).Leaving != ""; got != want {
			t.Errorf("%s: leaving %v", reason, got)
		}
		mac.Status.Conditions[0].Status = metav1.ConditionTrue
		if SightOf(mac, Pulse{}, start).Leaving != "" {
			t.Errorf("%s: leaving while it takes orders", reason)
		}
	}
	never := Sight{Leaving: "said"}
	if c := never.Judge(Brake{}); c.Reason != v1alpha1.ReasonNeverHeardFrom {
		t.Errorf("one that never joined: %s", c.Reason)
	}
}

func TestTheBrakeKeepsAMacFromBeingGone(t *testing.T) {
	holds, free := Brake{Silent: 3, Fleet: 4}, Brake{Silent: 2, Fleet: 4}
	for name, tc := range map[string]struct {
		mac   Sight
		brake Brake
		want  string
	}{
		"without the brake it is gone":    {seen(180 * time.Second), free, v1alpha1.ReasonMacGone},
		"with it, it is not":              {seen(180 * time.Second), holds, v1alpha1.ReasonBrakeHeld},
		"nor later":                       {seen(9*time.Hour, was(v1alpha1.ReasonBrakeHeld)), holds, v1alpha1.ReasonBrakeHeld},
		"released, it is":                 {seen(9*time.Hour, was(v1alpha1.ReasonBrakeHeld)), free, v1alpha1.ReasonMacGone},
		"silent is silent":                {seen(31 * time.Second), holds, v1alpha1.ReasonMacSilent},
		"heard is heard":                  {seen(time.Second, was(v1alpha1.ReasonBrakeHeld)), holds, v1alpha1.ReasonHeardFrom},
		"given up, it is gone":            {seen(180*time.Second, lost), holds, v1alpha1.ReasonMacGone},
		"announced, it is gone":           {seen(180*time.Second, announced), holds, v1alpha1.ReasonMacGone},
		"it said that it sleeps":          {seen(time.Second, leaves), holds, v1alpha1.ReasonMacGone},
		"and the operator restarts":       {seen(time.Second, leaves, notHeard), free, v1alpha1.ReasonMacGone},
		"it is awake again":               {seen(time.Second, was(v1alpha1.ReasonMacGone)), free, v1alpha1.ReasonHeardFrom},
		"gone before, it stays gone":      {seen(999*time.Second, was(v1alpha1.ReasonMacGone)), holds, v1alpha1.ReasonMacGone},
		"held, and the operator restarts": {seen(time.Second, was(v1alpha1.ReasonBrakeHeld), notHeard), holds, v1alpha1.ReasonMacSilent},
	} {
		c := tc.mac.Judge(tc.brake)
		if c.Reason != tc.want {
			t.Errorf("%s: %s, want %s", name, c.Reason, tc.want)
		}
		if c.Reason == v1alpha1.ReasonBrakeHeld && (c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "3 of 4 Macs stopped reporting within 60 s") || !strings.Contains(c.Message, "metalfleet.dev/lost=true")) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestRandomSilencesAgreeWithCountingEveryWindow compares Look with a count
// that tries each Mac's own moment as the start of the window.
func TestRandomSilencesAgreeWithCountingEveryWindow(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var macs []Sight
		for range rng.IntN(12) {
			m := seen(time.Duration(rng.IntN(300)) * time.Second)
			m.Announced = rng.IntN(5) == 0
			macs = append(macs, m)
		}
		want := 0
		for _, first := range macs {
			n := 0
			for _, m := range macs {
				if m.Silence >= silentAfter && !m.Announced && m.Silence >= first.Silence && m.Silence <= first.Silence+brakeWindow {
					n++
				}
			}
			want = max(want, n)
		}
		if got := Look(macs); got.Silent != want || got.Fleet != len(macs) {
			t.Fatalf("seed %d: %+v, want %d of %d", seed, got, want, len(macs))
		}
	}
}

func TestAMacIsBackForAMinuteAfterASilence(t *testing.T) {
	mac := func(age, since time.Duration, reason string) *v1alpha1.MacNode {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", CreationTimestamp: metav1.NewTime(start.Add(-age))}}
		m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: reason, LastTransitionTime: metav1.NewTime(start.Add(-since))}}
		return m
	}
	const heard, silent, held = v1alpha1.ReasonHeardFrom, v1alpha1.ReasonMacSilent, v1alpha1.ReasonBrakeHeld
	for name, tc := range map[string]struct {
		mac   *v1alpha1.MacNode
		pulse Pulse
		want  bool
	}{
		"heard again 59 s ago":       {mac(time.Hour, 59*time.Second, heard), Pulse{}, true},
		"a minute ago":               {mac(time.Hour, time.Minute, heard), Pulse{}, false},
		"silent still":               {mac(time.Hour, 59*time.Second, silent), Pulse{Heard: true, Silence: silentAfter}, false},
		"heard, and not judged anew": {mac(time.Hour, time.Hour, silent), Pulse{Heard: true}, true},
		"the same under the brake":   {mac(time.Hour, time.Hour, held), Pulse{Heard: true}, true},
		"a restart hears nothing":    {mac(time.Hour, time.Hour, held), Pulse{}, false},
		"it was gone":                {mac(time.Hour, time.Hour, v1alpha1.ReasonMacGone), Pulse{Heard: true}, false},
		"it has just joined":         {mac(50*time.Second, 40*time.Second, heard), Pulse{}, false},
		"it was not judged ever":     {&v1alpha1.MacNode{}, Pulse{}, false},
	} {
		if got := SightOf(tc.mac, tc.pulse, start).Back; got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
