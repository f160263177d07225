package memory

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/probe"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestSettledHost(t *testing.T) {
	for name, tc := range map[string]struct {
		before, now, freed int64
		want               bool
	}{
		"by all of it":                       {before: 50, now: 10, freed: 40, want: true},
		"by all but 2 GiB":                   {before: 50, now: 12, freed: 40, want: true},
		"not by all but 3 GiB":               {before: 50, now: 13, freed: 40, want: false},
		"by all but a twentieth of 100 GiB":  {before: 150, now: 55, freed: 100, want: true},
		"not by all but 6 GiB of 100":        {before: 150, now: 56, freed: 100, want: false},
		"a small engine has nothing to show": {before: 50, now: 50, freed: 2, want: true},
		"more was taken meanwhile":           {before: 50, now: 60, freed: 40, want: false},
	} {
		if got := Settled(probe.Host{Used: tc.before * gib}, probe.Host{Used: tc.now * gib}, tc.freed*gib); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// wired is an observation of a Mac of 64 GiB, seconds after start.
// Each engine holds as much.
func wired(seconds int, gibs, footprints float64, engines int) WiredReading {
	held := map[int]int64{}
	for pid := range engines {
		held[pid] = int64(footprints*float64(gib)) / int64(engines)
	}
	return WiredReading{At: start().Add(time.Duration(seconds) * time.Second), Wired: int64(gibs * float64(gib)), Known: true, Measurable: true,
		Before: held, Held: held, Total: 64 * gib}
}

// ends adds the end of an engine that was not seen before.
func (w WiredReading) ends(n int64) WiredReading {
	w.Ends = n
	return w
}

func TestStrandedWiredMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		seen   []WiredReading
		status metav1.ConditionStatus
		reason string
		bytes  int64
	}{
		"nothing beyond the system's own":          {seen: []WiredReading{wired(0, 3, 0, 0), wired(10, 23, 20, 1), wired(20, 3, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"20 GiB stay":                              {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), wired(20, 23, 0, 0)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"20 GiB stay while others serve":           {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 43, 40, 2), wired(10, 43, 20, 1), wired(20, 43, 20, 1)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"20 GiB stay while another one grows":      {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 43, 40, 2), wired(10, 62, 39, 1), wired(20, 62, 39, 1)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"20 GiB of an engine that no look saw":     {seen: []WiredReading{wired(0, 3, 0, 0), wired(10, 23, 0, 0).ends(1), wired(20, 23, 0, 0).ends(1)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"4 GiB are within the bound":               {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 7, 0, 0), wired(20, 7, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 4},
		"seen once":                                {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 20},
		"seen twice within 10 s":                   {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), wired(19, 23, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 20},
		"given back late":                          {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), wired(15, 3, 0, 0), wired(30, 3, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"a failed reading between does not matter": {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), {Measurable: true}, wired(20, 23, 0, 0)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"a failed reading keeps what was found":    {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), wired(20, 23, 0, 0), {Measurable: true}}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"it came back":                             {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 23, 20, 1), wired(10, 23, 0, 0), wired(20, 23, 0, 0), wired(30, 3, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"footprints beyond what is wired":          {seen: []WiredReading{wired(0, 3, 0, 0), wired(10, 20, 30, 1), wired(20, 20, 30, 1)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"an empty pool was never seen":             {seen: []WiredReading{wired(0, 40, 10, 1), wired(10, 40, 10, 1)}, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNotMeasurable, bytes: 0},
		"never read":                               {seen: []WiredReading{{Measurable: true}}, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNotMeasurable, bytes: 0},
		"no Mac":                                   {seen: []WiredReading{{}}, status: metav1.ConditionUnknown, reason: v1alpha1.ReasonNotMeasurable, bytes: 0},
		"the least that an empty pool showed":      {seen: []WiredReading{wired(0, 9, 0, 0), wired(5, 3, 0, 0), wired(7, 9, 6, 1), wired(20, 9, 0, 0), wired(30, 9, 0, 0)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 6},
		"a virtual machine on an empty Mac":        {seen: []WiredReading{wired(0, 3, 0, 0), wired(10, 11, 0, 0), wired(20, 11, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"a virtual machine while engines serve":    {seen: []WiredReading{wired(0, 3, 0, 0), wired(10, 23, 20, 1), wired(20, 31, 20, 1), wired(30, 31, 20, 1), wired(40, 11, 0, 0), wired(50, 11, 0, 0)}, status: metav1.ConditionFalse, reason: v1alpha1.ReasonNothingWired, bytes: 0},
		"20 GiB stay with a virtual machine":       {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 11, 0, 0), wired(10, 31, 20, 1), wired(20, 31, 0, 0), wired(30, 31, 0, 0)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
		"and stay when it ends":                    {seen: []WiredReading{wired(0, 3, 0, 0), wired(5, 11, 0, 0), wired(10, 31, 20, 1), wired(20, 31, 0, 0), wired(30, 31, 0, 0), wired(40, 23, 0, 0)}, status: metav1.ConditionTrue, reason: v1alpha1.ReasonWiredUnowned, bytes: 20},
	} {
		s := &Stranding{}
		var f Finding
		for _, w := range tc.seen {
			f = s.Observe(w)
			if f.Bytes < 0 || f.Message == "" {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if f.Status != tc.status || f.Reason != tc.reason || f.Bytes != tc.bytes*gib {
			t.Errorf("%s: %+v", name, f)
		}
		if f.Status == metav1.ConditionTrue && (!strings.Contains(f.Message, "reboot") || s.MayStart()) {
			t.Errorf("%s: no next step, or engines start: %+v", name, f)
		}
	}
}

func TestNothingStartsAfterAnUncleanExitBeforeTheCheckPassedTwice(t *testing.T) {
	s := &Stranding{}
	s.Observe(wired(0, 3, 0, 0))
	if !s.MayStart() {
		t.Error("nothing happened, yet nothing may start")
	}
	s.Unclean()
	for _, step := range []struct {
		at   int
		gibs float64
		want bool
	}{{at: 1, gibs: 3, want: false}, {at: 5, gibs: 3, want: false}, {at: 10, gibs: 3, want: false}, {at: 11, gibs: 3, want: true}, {at: 12, gibs: 3, want: true}, {at: 13, gibs: 23, want: false}} {
		if s.Observe(wired(step.at, step.gibs, 0, 0).ends(int64(step.at))); s.MayStart() != step.want {
			t.Errorf("after %d s with %v GiB wired: %v", step.at, step.gibs, s.MayStart())
		}
	}
	s.Unclean()
	s.Observe(wired(20, 3, 0, 0))
	s.Observe(wired(25, 23, 0, 0).ends(25)) // a check that fails starts over
	s.Observe(wired(30, 3, 0, 0))
	if s.MayStart() {
		t.Error("a failed check between two passed ones is ignored")
	}
	if s.Observe(wired(40, 3, 0, 0)); !s.MayStart() {
		t.Error("two passed checks are not enough")
	}
	s.Unclean()
	if s.Observe(WiredReading{}); !s.MayStart() {
		t.Error("a system without the figure waits for ever")
	}
}

// before makes the engines hold other amounts when Wired was read than after it.
func (w WiredReading) before(gibs ...float64) WiredReading {
	w.Before = map[int]int64{}
	for pid, n := range gibs {
		w.Before[pid] = int64(n * float64(gib))
	}
	return w
}

// TestChangesOfLivingEnginesNeitherClearNorFindStrandedMemory: engines grow, shrink,
// start and end while the Mac is measured. 10 GiB are left in each history, or none.
func TestChangesOfLivingEnginesNeitherClearNorFindStrandedMemory(t *testing.T) {
	// Of 30 GiB in two engines one ended, whose 10 GiB stay; the other one grew from 20
	// to 32 GiB after the host was measured, or before.
	serving, left := wired(5, 33, 30, 2), wired(10, 33, 20, 1)
	for name, tc := range map[string]struct {
		seen   []WiredReading
		bytes  int64 // left
		starts bool
	}{
		"growth as an engine ends":          {seen: []WiredReading{serving, wired(10, 33, 32, 1).ends(1).before(20), wired(20, 45, 32, 1).ends(1), wired(30, 45, 32, 1).ends(1)}, bytes: 10, starts: false},
		"growth as an engine ends, seen so": {seen: []WiredReading{serving, wired(10, 33, 32, 1).ends(1).before(20)}, bytes: 0, starts: false},
		"growth after it was seen once":     {seen: []WiredReading{serving, left.ends(1), wired(11, 33, 32, 1).ends(1).before(20)}, bytes: 10, starts: false},
		"growth after it was found":         {seen: []WiredReading{serving, left.ends(1), wired(20, 33, 20, 1).ends(1), wired(21, 33, 32, 1).ends(1).before(20), wired(31, 33, 32, 1).ends(1).before(20)}, bytes: 10, starts: false},
		"growth, then the same as before":   {seen: []WiredReading{serving, left.ends(1), wired(11, 33, 32, 1).ends(1).before(20), wired(12, 45, 32, 1).ends(1), wired(22, 45, 32, 1).ends(1)}, bytes: 10, starts: false},
		"given back while another one grew": {seen: []WiredReading{serving, left.ends(1), wired(11, 23, 32, 1).ends(1).before(20), wired(12, 35, 32, 1).ends(1)}, bytes: 0, starts: true},
		"growth where nothing was left":     {seen: []WiredReading{serving, wired(10, 35, 32, 1).ends(1).before(20), wired(11, 35, 32, 1).ends(1)}, bytes: 0, starts: true},
		"growth without an end":             {seen: []WiredReading{wired(5, 23, 20, 1), wired(10, 35, 32, 1).before(20), wired(20, 35, 32, 1)}, bytes: 0, starts: true},
		"shrinking without an end":          {seen: []WiredReading{wired(5, 35, 32, 1), wired(10, 35, 20, 1).before(32), wired(20, 23, 20, 1)}, bytes: 0, starts: true},
		"an end while it was measured":      {seen: []WiredReading{serving, wired(10, 33, 15, 1).ends(1).before(15, 15), wired(11, 18, 15, 1).ends(1)}, bytes: 0, starts: true},
		"a start while it was measured":     {seen: []WiredReading{wired(5, 3, 0, 0), wired(10, 23, 20, 1).before(), wired(11, 23, 20, 1)}, bytes: 0, starts: true},
		"a start before it is known":        {seen: []WiredReading{wired(5, 3, 0, 0), {At: start().Add(10 * time.Second), Wired: 23 * gib, Known: true, Measurable: true, Starting: true, Total: 64 * gib}, wired(11, 23, 20, 1), wired(20, 23, 0, 0).ends(1), wired(30, 23, 0, 0).ends(1)}, bytes: 20, starts: false},
		"little by little":                  {seen: []WiredReading{serving, left.ends(1), wired(20, 33.1, 20.2, 1).ends(1).before(20), wired(30, 33.3, 20.4, 1).ends(1).before(20.2)}, bytes: 10, starts: false},
	} {
		s := &Stranding{}
		s.Observe(wired(0, 3, 0, 0))
		for _, w := range tc.seen {
			s.Observe(w)
		}
		if got := s.Evidence().Left; (got+gib/4)/gib != tc.bytes || s.MayStart() != tc.starts {
			t.Errorf("%s: %v are left of %d GiB, engines may start: %v", name, formatBytes(got), tc.bytes, s.MayStart())
		}
	}
}

func TestDivergingGauges(t *testing.T) {
	gauges := func(held, active, pooled, accounted float64) EngineReading {
		return with(engine("a", held, 1), func(e *EngineReading) {
			e.Active, e.Pooled, e.Accounted = int64(active*float64(gib)), int64(pooled*float64(gib)), int64(accounted*float64(gib))
		})
	}
	for name, tc := range map[string]struct {
		engine EngineReading
		want   string // in the message; empty: they agree
		bytes  int64
	}{
		"they agree":                              {engine: gauges(20, 18, 1, 18), want: "", bytes: 0},
		"bytes outside the back end":              {engine: gauges(20, 10, 1, 10), want: "9.0 GiB are outside its back end", bytes: 9},
		"a pool is accounted for":                 {engine: gauges(20, 10, 9, 10), want: "", bytes: 0},
		"within a tenth":                          {engine: gauges(20, 18.1, 0, 18.1), want: "", bytes: 0},
		"beyond a tenth":                          {engine: gauges(20, 17.9, 0, 17.9), want: "outside its back end", bytes: -1},
		"never more than 5 GiB":                   {engine: gauges(100, 94, 0, 94), want: "outside its back end", bytes: 6},
		"a GiB of a small one":                    {engine: gauges(2, 1.1, 0, 1.1), want: "", bytes: 0},
		"active and not accounted for, when idle": {engine: gauges(20, 20, 0, 12), want: "weights and KV cache account for 12.0 GiB", bytes: 8},
		"transients of a running prompt":          {engine: with(gauges(20, 20, 0, 12), busy), want: "", bytes: 0},
		"the system's figure reads low":           {engine: gauges(5, 20, 0, 20), want: "reports too little", bytes: 15},
		"while it loads":                          {engine: with(gauges(20, 10, 1, 10), loading), want: "", bytes: 0},
		"while it ends":                           {engine: with(gauges(20, 10, 1, 10), stopping), want: "", bytes: 0},
		"before it reported":                      {engine: gauges(20, 0, 0, 0), want: "", bytes: 0},
		"where it could not be measured":          {engine: with(gauges(20, 10, 1, 10), func(e *EngineReading) { e.FootprintKnown = false }), want: "", bytes: 0},
	} {
		d := &Divergence{}
		var f Finding
		for _, at := range []time.Duration{0, 9 * time.Second} {
			if f = d.Observe(Reading{Now: start().Add(at), Engines: []EngineReading{tc.engine}}, Residue{}); f.Status != metav1.ConditionFalse {
				t.Errorf("%s: reported after %s: %+v", name, at, f)
			}
		}
		f = d.Observe(Reading{Now: start().Add(10 * time.Second), Engines: []EngineReading{tc.engine}}, Residue{})
		if tc.want == "" && f.Status != metav1.ConditionFalse || tc.want != "" && (f.Status != metav1.ConditionTrue || f.Reason != v1alpha1.ReasonEngineDiverged ||
			!strings.Contains(f.Message, tc.want) || !strings.Contains(f.Message, "Drain the replica")) {
			t.Errorf("%s: %+v", name, f)
		}
		if tc.bytes >= 0 && f.Bytes != tc.bytes*gib {
			t.Errorf("%s: %d bytes", name, f.Bytes)
		}
		if f = d.Observe(Reading{Now: start().Add(11 * time.Second), Engines: []EngineReading{gauges(20, 18, 1, 18)}}, Residue{}); f.Status != metav1.ConditionFalse {
			t.Errorf("%s: it is over, yet reported: %+v", name, f)
		}
	}
}

func TestEveryDivergingEngineIsReported(t *testing.T) {
	diverging := func(uid string) EngineReading {
		return with(engine(uid, 20, 1), func(e *EngineReading) { e.Active, e.Accounted = 10*gib, 10*gib })
	}
	engines := []EngineReading{diverging("a"), engine("healthy", 20, 1), diverging("b")}
	d := &Divergence{}
	var f Finding
	for _, at := range []time.Duration{0, 10 * time.Second} {
		f = d.Observe(Reading{Now: start().Add(at), Engines: engines}, Residue{})
	}
	if f.Bytes != 20*gib || !strings.Contains(f.Message, "replica a") || !strings.Contains(f.Message, "replica b") || strings.Contains(f.Message, "healthy") {
		t.Errorf("%+v", f)
	}
}

func TestResidueOfAnEmptyPool(t *testing.T) {
	observe := func(left Residue, engines ...EngineReading) (f Finding) {
		d := &Divergence{}
		for s := range 11 {
			f = d.Observe(Reading{Now: start().Add(time.Duration(s) * time.Second), Engines: engines}, left)
		}
		return f
	}
	for name, tc := range map[string]struct {
		left    Residue
		engines []EngineReading
		want    int64
	}{
		"empty":                          {left: Residue{Processes: 60 << 20}, engines: nil, want: 0},
		"a process without an owner":     {left: Residue{Processes: 57 * gib}, engines: nil, want: 57},
		"a reservation without an order": {left: Residue{Reserved: 5 * gib}, engines: nil, want: 5},
		"engines are there":              {left: Residue{Processes: 57 * gib}, engines: []EngineReading{engine("a", 50, 1)}, want: 0},
	} {
		f := observe(tc.left, tc.engines...)
		if (f.Status == metav1.ConditionTrue) != (tc.want > 0) || f.Bytes != tc.want*gib || tc.want > 0 && (f.Reason != v1alpha1.ReasonResidue || !strings.Contains(f.Message, "a restart is not needed")) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	d := &Divergence{}
	if f := d.Observe(Reading{Now: start()}, Residue{Processes: 57 * gib}); f.Status != metav1.ConditionFalse {
		t.Errorf("reported at the first observation: %+v", f)
	}
}

// A restarted agent continues with the evidence of the one before it.
func TestRestoredEvidenceKeepsTheResult(t *testing.T) {
	before := &Stranding{}
	for _, w := range []WiredReading{wired(0, 3, 0, 0), wired(5, 43, 40, 2), wired(10, 43, 20, 1), wired(20, 43, 20, 1)} {
		before.Observe(w)
	}
	s := &Stranding{}
	s.Restore(before.Evidence())
	if s.MayStart() {
		t.Error("engines start before the first look, on a Mac with stranded memory")
	}
	if f := s.Observe(wired(30, 43, 20, 1)); f.Status != metav1.ConditionTrue || f.Bytes != 20*gib {
		t.Errorf("stranded memory is forgotten: %+v", f)
	}
	for name, tc := range map[string]struct {
		unclean bool
		status  metav1.ConditionStatus
	}{
		"an engine ended between the agents":   {unclean: true, status: metav1.ConditionTrue},
		"a virtual machine began between them": {unclean: false, status: metav1.ConditionFalse},
	} {
		s := &Stranding{}
		s.Restore(Evidence{Baseline: 3 * gib, BaselineKnown: true})
		if tc.unclean {
			s.Unclean()
		}
		s.Observe(wired(0, 23, 0, 0))
		if f := s.Observe(wired(10, 23, 0, 0)); f.Status != tc.status {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
