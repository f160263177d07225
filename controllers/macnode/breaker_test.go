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

// seen returns a Mac that joined and renewed its Lease that long ago.
func seen(silence time.Duration, change ...func(*Observation)) Observation {
	s := Observation{Pulse: Pulse{Renewed: stamp, Seen: true, Silence: silence}, Before: &metav1.Condition{Reason: v1alpha1.ReasonReporting}}
	if silence >= silentAfter {
		s.Before.Reason = v1alpha1.ReasonMacSilent
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func was(reason string) func(*Observation) {
	return func(s *Observation) { s.Before = &metav1.Condition{Reason: reason} }
}

func announced(s *Observation) { s.Announced = true }
func lost(s *Observation)      { s.Lost = true }
func notSeen(s *Observation)   { s.Seen = false }
func emptied(s *Observation)   { s.Renewed = time.Time{} }

func TestTheBreakerHoldsWhereMoreThanHalfFallSilentAtOnce(t *testing.T) {
	const s = time.Second
	alive := seen(5 * s)
	gone, back := seen(200*s), seen(5*s, func(s *Observation) { s.Back = true })
	for name, tc := range map[string]struct {
		fleet []Observation
		want  string // silent/fleet, and whether it is open
	}{
		"all are heard":                       {fleet: []Observation{alive, alive, alive, alive}, want: "0/4 false"},
		"half is not over half":               {fleet: []Observation{alive, alive, gone, gone}, want: "2/4 false"},
		"three of four":                       {fleet: []Observation{alive, gone, gone, gone}, want: "3/4 true"},
		"all of them":                         {fleet: []Observation{gone, gone, gone, gone}, want: "4/4 true"},
		"a fleet of three has none":           {fleet: []Observation{alive, gone, gone}, want: "2/3 false"},
		"within a minute":                     {fleet: []Observation{alive, gone, seen(230 * s), seen(260 * s)}, want: "3/4 true"},
		"and no longer":                       {fleet: []Observation{alive, gone, seen(230 * s), seen(261 * s)}, want: "2/4 false"},
		"any minute counts":                   {fleet: []Observation{alive, seen(900 * s), seen(40 * s), seen(50 * s), seen(60 * s)}, want: "3/5 true"},
		"a pause of 29 s is none":             {fleet: []Observation{seen(29 * s), gone, gone, alive}, want: "2/4 false"},
		"announced ones do not count":         {fleet: []Observation{alive, seen(200*s, announced), gone, gone}, want: "2/4 false"},
		"what was gone before is not there":   {fleet: []Observation{alive, alive, seen(999*s, was(v1alpha1.ReasonMacGone)), gone, gone, gone}, want: "3/5 true"},
		"whether or not we saw it live":       {fleet: []Observation{alive, alive, gone, gone, gone, seen(1*s, was(v1alpha1.ReasonMacGone), notSeen)}, want: "3/5 true"},
		"one that is back is there":           {fleet: []Observation{alive, alive, gone, gone, gone, seen(1*s, was(v1alpha1.ReasonMacGone))}, want: "3/6 false"},
		"who is just back counts as silent":   {fleet: []Observation{alive, back, back, gone}, want: "3/4 true"},
		"unless others are":                   {fleet: []Observation{alive, back, back, back}, want: "0/4 false"},
		"who never joined is not there":       {fleet: []Observation{alive, gone, gone, {Before: &metav1.Condition{Reason: v1alpha1.ReasonNeverReported}}}, want: "2/3 false"},
		"an emptied Lease is a silence":       {fleet: []Observation{alive, gone, gone, seen(200*s, emptied)}, want: "3/4 true"},
		"also when it is gone by that":        {fleet: []Observation{alive, gone, gone, seen(200*s, lost, was(v1alpha1.ReasonMacGone))}, want: "3/4 true"},
		"who is given up counts all the same": {fleet: []Observation{alive, gone, gone, seen(200*s, lost)}, want: "3/4 true"},
	} {
		b := Look(tc.fleet)
		if got := fmt.Sprintf("%d/%d %v", b.Silent, b.Fleet, b.Open()); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func leaves(s *Observation) { s.Leaving = "the Mac is about to sleep" }

// TestWhatAMacSaysOfItsPower: an agent that stops is not a Mac that leaves.
func TestWhatAMacSaysOfItsPower(t *testing.T) {
	for reason, want := range map[string]bool{
		v1alpha1.ReasonMacSleeps: true, v1alpha1.ReasonMacShutsDown: true, v1alpha1.ReasonShuttingDown: false, v1alpha1.ReasonAgentUpgrading: false,
	} {
		mac := &v1alpha1.MacNode{}
		mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse, Reason: reason, Message: "said"}}
		if got := ObservationOf(mac, Pulse{}, start).Leaving != ""; got != want {
			t.Errorf("%s: leaving %v", reason, got)
		}
		mac.Status.Conditions[0].Status = metav1.ConditionTrue
		if ObservationOf(mac, Pulse{}, start).Leaving != "" {
			t.Errorf("%s: leaving while it takes orders", reason)
		}
	}
	never := Observation{Leaving: "said"}
	if c := never.Judge(Breaker{}); c.Reason != v1alpha1.ReasonNeverReported {
		t.Errorf("one that never joined: %s", c.Reason)
	}
}

func TestTheBreakerKeepsAMacFromBeingGone(t *testing.T) {
	holds, free := Breaker{Silent: 3, Fleet: 4}, Breaker{Silent: 2, Fleet: 4}
	for name, tc := range map[string]struct {
		mac     Observation
		breaker Breaker
		want    string
	}{
		"without the breaker it is gone":  {mac: seen(180 * time.Second), breaker: free, want: v1alpha1.ReasonMacGone},
		"with it, it is not":              {mac: seen(180 * time.Second), breaker: holds, want: v1alpha1.ReasonBreakerOpen},
		"nor later":                       {mac: seen(9*time.Hour, was(v1alpha1.ReasonBreakerOpen)), breaker: holds, want: v1alpha1.ReasonBreakerOpen},
		"released, it is":                 {mac: seen(9*time.Hour, was(v1alpha1.ReasonBreakerOpen)), breaker: free, want: v1alpha1.ReasonMacGone},
		"silent is silent":                {mac: seen(31 * time.Second), breaker: holds, want: v1alpha1.ReasonMacSilent},
		"heard is heard":                  {mac: seen(time.Second, was(v1alpha1.ReasonBreakerOpen)), breaker: holds, want: v1alpha1.ReasonReporting},
		"given up, it is gone":            {mac: seen(180*time.Second, lost), breaker: holds, want: v1alpha1.ReasonMacGone},
		"announced, it is gone":           {mac: seen(180*time.Second, announced), breaker: holds, want: v1alpha1.ReasonMacGone},
		"its sleep was announced":         {mac: seen(time.Second, leaves), breaker: holds, want: v1alpha1.ReasonMacGone},
		"and the operator restarts":       {mac: seen(time.Second, leaves, notSeen), breaker: free, want: v1alpha1.ReasonMacGone},
		"it is awake again":               {mac: seen(time.Second, was(v1alpha1.ReasonMacGone)), breaker: free, want: v1alpha1.ReasonReporting},
		"gone before, it stays gone":      {mac: seen(999*time.Second, was(v1alpha1.ReasonMacGone)), breaker: holds, want: v1alpha1.ReasonMacGone},
		"held, and the operator restarts": {mac: seen(time.Second, was(v1alpha1.ReasonBreakerOpen), notSeen), breaker: holds, want: v1alpha1.ReasonMacSilent},
	} {
		c := tc.mac.Judge(tc.breaker)
		if c.Reason != tc.want {
			t.Errorf("%s: %s, want %s", name, c.Reason, tc.want)
		}
		if c.Reason == v1alpha1.ReasonBreakerOpen && (c.Status != metav1.ConditionUnknown || !strings.Contains(c.Message, "3 of 4 Macs stopped reporting within 60 s") || !strings.Contains(c.Message, "metalfleet.dev/lost=true")) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// The reference tries each Mac's own moment as the start of the window.
func TestRandomSilencesAgreeWithCountingEveryWindow(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var macs []Observation
		for range rng.IntN(12) {
			m := seen(time.Duration(rng.IntN(300)) * time.Second)
			m.Announced = rng.IntN(5) == 0
			macs = append(macs, m)
		}
		want := 0
		for _, first := range macs {
			n := 0
			for _, m := range macs {
				if m.Silence >= silentAfter && !m.Announced && m.Silence >= first.Silence && m.Silence <= first.Silence+breakerWindow {
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
	const seen, silent, held = v1alpha1.ReasonReporting, v1alpha1.ReasonMacSilent, v1alpha1.ReasonBreakerOpen
	for name, tc := range map[string]struct {
		mac   *v1alpha1.MacNode
		pulse Pulse
		want  bool
	}{
		"heard again 59 s ago":       {mac: mac(time.Hour, 59*time.Second, seen), pulse: Pulse{}, want: true},
		"a minute ago":               {mac: mac(time.Hour, time.Minute, seen), pulse: Pulse{}},
		"silent still":               {mac: mac(time.Hour, 59*time.Second, silent), pulse: Pulse{Seen: true, Silence: silentAfter}},
		"seen, and not judged again": {mac: mac(time.Hour, time.Hour, silent), pulse: Pulse{Seen: true}, want: true},
		"the same under the breaker": {mac: mac(time.Hour, time.Hour, held), pulse: Pulse{Seen: true}, want: true},
		"a restart hears nothing":    {mac: mac(time.Hour, time.Hour, held), pulse: Pulse{}},
		"it was gone":                {mac: mac(time.Hour, time.Hour, v1alpha1.ReasonMacGone), pulse: Pulse{Seen: true}},
		"it has just joined":         {mac: mac(50*time.Second, 40*time.Second, seen), pulse: Pulse{}},
		"a clock was ahead":          {mac: mac(time.Hour, -24*time.Hour, seen), pulse: Pulse{}},
		"it was not judged ever":     {mac: &v1alpha1.MacNode{}, pulse: Pulse{}},
	} {
		if got := ObservationOf(tc.mac, tc.pulse, start).Back; got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
