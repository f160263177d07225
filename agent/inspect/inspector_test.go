package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// scripted answers looks by source, after one second each.
type scripted struct {
	mu      sync.Mutex
	answers map[string][]error // the last one stays
	looks   map[string][]time.Time
	active  int
	most    int
	ended   int
}

func (s *scripted) Resolve(ctx context.Context, order v1alpha1.Inspection) (model.Record, error) {
	source := order.Source
	s.mu.Lock()
	s.looks[source] = append(s.looks[source], time.Now())
	n, all := len(s.looks[source]), s.answers[source]
	s.active++
	s.most = max(s.most, s.active)
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.active--; s.mu.Unlock() }()
	select {
	case <-ctx.Done():
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		return model.Record{}, ctx.Err()
	case <-time.After(time.Second):
	}
	if len(all) > 0 {
		if err := all[min(n, len(all))-1]; err != nil {
			return model.Record{}, err
		}
	}
	return model.Record{Source: source, Files: []model.File{{Path: "m"}}}, nil
}

// count is how often a source was looked at.
func (s *scripted) count(source string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.looks[source])
}

func order(id, source string) v1alpha1.Inspection {
	return v1alpha1.Inspection{ID: id, Source: source}
}

// run starts an inspector inside a bubble and stops it at its end.
func run(t *testing.T, s *scripted, body func(i *Inspector)) {
	synctest.Test(t, func(t *testing.T) {
		if s.looks = map[string][]time.Time{}; s.answers == nil {
			s.answers = map[string][]error{}
		}
		i := New(s, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { i.Run(ctx); close(done) }()
		body(i)
		cancel()
		<-done
		if s.active != 0 {
			t.Errorf("%d looks go on after Run returned", s.active)
		}
	})
}

func after(d time.Duration) { time.Sleep(d); synctest.Wait() } // virtual time

func states(i *Inspector) []string {
	var out []string
	for _, s := range i.Snapshot() {
		out = append(out, fmt.Sprintf("%s %s %s", s.ID, s.State, s.Reason))
	}
	return out
}

func wantStates(t *testing.T, i *Inspector, want ...string) {
	t.Helper()
	if got := states(i); !slices.Equal(got, want) {
		t.Errorf("states are %q, want %q", got, want)
	}
}

func TestInspectorReportsEachOrder(t *testing.T) {
	s := &scripted{answers: map[string][]error{"bad": {failure(v1alpha1.ReasonInvalidModel, "broken\x00file")}}}
	run(t, s, func(i *Inspector) {
		i.Set([]v1alpha1.Inspection{order("b", "bad"), order("a", "good")})
		wantStates(t, i, "a Running ", "b Running ")
		<-i.Changed()
		after(time.Second)
		wantStates(t, i, "a Resolved ", "b Failed InvalidModel")
		snap := i.Snapshot()
		if snap[0].Model == nil || snap[0].Model.Source != "good" || snap[1].Message != "broken?file" {
			t.Errorf("snapshot is %+v", snap)
		}
		snap[0].Model.Files[0].Path = "changed by the reader"
		if i.Snapshot()[0].Model.Files[0].Path != "m" {
			t.Error("a reader changed what others see")
		}
		select {
		case <-i.Changed():
		default:
			t.Error("no change was signalled")
		}
	})
}

func TestInspectorLooksAtAFewAtOnceAndOnce(t *testing.T) {
	s := &scripted{}
	run(t, s, func(i *Inspector) {
		var all []v1alpha1.Inspection
		for n := range 8 {
			all = append(all, order(fmt.Sprint(n), fmt.Sprint("s", n)))
			all[n].Namespace = fmt.Sprint("ns", n%2)
		}
		for range 5 { // inspections that stay do not start again
			i.Set(all)
			after(900 * time.Millisecond)
		}
		if s.most != atOnce {
			t.Errorf("%d at once, want %d", s.most, atOnce)
		}
		for source, looks := range s.looks {
			if len(looks) != 1 {
				t.Errorf("%s was looked at %d times", source, len(looks))
			}
		}
		if got := states(i); len(got) != 8 || got[7] != "7 Resolved " {
			t.Errorf("states are %q", got)
		}
		after(24 * time.Hour)
		if s.count("s0") != 1 {
			t.Error("a resolved source is looked at again")
		}
	})
}

func TestInspectorForgetsWhatIsNoLongerOrdered(t *testing.T) {
	s := &scripted{}
	run(t, s, func(i *Inspector) {
		i.Set([]v1alpha1.Inspection{order("a", "one"), order("b", "two")})
		after(500 * time.Millisecond)
		i.Set([]v1alpha1.Inspection{order("b", "two")})
		synctest.Wait()
		if s.ended != 1 {
			t.Errorf("%d looks were stopped, want 1", s.ended)
		}
		wantStates(t, i, "b Running ")
		after(time.Second)
		wantStates(t, i, "b Resolved ")
		i.Set([]v1alpha1.Inspection{order("b", "another source")})
		wantStates(t, i, "b Running ")
		after(2 * time.Second)
		if m := i.Snapshot()[0].Model; m == nil || m.Source != "another source" {
			t.Errorf("the old source's record stays: %+v", m)
		}
		i.Set(nil)
		wantStates(t, i)
	})
}

func TestInspectorTriesAgain(t *testing.T) {
	away := &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "away"}
	gone := failure(v1alpha1.ReasonSourceNotFound, "not there")
	s := &scripted{answers: map[string][]error{"flaky": {away, away, away, nil}, "missing": {gone, gone, nil}, "dead": {away}}}
	run(t, s, func(i *Inspector) {
		i.Set([]v1alpha1.Inspection{order("f", "flaky"), order("m", "missing")})
		after(1100 * time.Millisecond)
		wantStates(t, i, "f Failed SourceUnreachable", "m Failed SourceNotFound")
		after(20 * time.Second)
		wantStates(t, i, "f Resolved ", "m Failed SourceNotFound")
		after(100 * time.Second)
		wantStates(t, i, "f Resolved ", "m Resolved ")
		if n := s.count("missing"); n != 3 {
			t.Errorf("%d looks at what only a person can mend in two minutes", n)
		}
		i.Set([]v1alpha1.Inspection{order("d", "dead")})
		after(time.Hour)
		if n := s.count("dead"); n < 40 || n > 75 {
			t.Errorf("%d looks at a dead host in an hour", n)
		}
		for len(i.Changed()) > 0 {
			<-i.Changed()
		}
		after(time.Hour)
		if len(i.Changed()) != 0 {
			t.Error("failing again in the same way is signalled as a change")
		}
	})
}

// TestAWaitForATokenIsNoFailure: it is reported as a wait, and ends at once when
// tokens arrive.
func TestAWaitForATokenIsNoFailure(t *testing.T) {
	s := &scripted{answers: map[string][]error{"hf://o/m": {MissingToken(), MissingToken(), MissingToken(), MissingToken(), MissingToken(), MissingToken(), nil}}}
	run(t, s, func(i *Inspector) {
		o := order("a", "hf://o/m")
		o.TokenRef = "ref"
		i.Set([]v1alpha1.Inspection{o, order("b", "file://m.gguf")})
		after(time.Minute)
		wantStates(t, i, "a Running ", "b Resolved ")
		if m := i.Snapshot()[0].Message; !strings.Contains(m, "model.secretRef") {
			t.Errorf("message %q", m)
		}
		for s.count("hf://o/m") < 7 {
			before := s.count("hf://o/m")
			i.Retry()
			synctest.Wait()
			if now := s.count("hf://o/m"); now != before+1 {
				t.Fatalf("%d looks after a token came, %d before", now, before)
			}
			after(2 * time.Second)
		}
		wantStates(t, i, "a Resolved ", "b Resolved ")
		i.Retry()
		after(time.Hour)
		if n := s.count("hf://o/m"); n != 7 {
			t.Errorf("%d looks: what is resolved is looked at again", n)
		}
	})
}

// TestASourceThatIsRefusedIsReadLessAndLess: each look may fetch many MiB. Files of this Mac cost
// nothing, and a person who copies one waits for it.
func TestASourceThatIsRefusedIsReadLessAndLess(t *testing.T) {
	refused := failure(v1alpha1.ReasonInvalidModel, "broken")
	lost := &download.Error{Transient: true, Reason: v1alpha1.ReasonSourceUnreachable, Message: "lost"}
	s := &scripted{answers: map[string][]error{
		"hf://o/refused": {refused}, "file:///m": {refused}, "hf://o/lost": {lost, lost, lost, lost, lost, lost, lost, refused, nil},
	}}
	run(t, s, func(i *Inspector) {
		i.Set([]v1alpha1.Inspection{order("a", "hf://o/refused"), order("b", "file:///m"), order("c", "hf://o/lost")})
		after(3 * time.Hour)
		wantStates(t, i, "a Failed InvalidModel", "b Failed InvalidModel", "c Resolved ")
		if n := s.count("hf://o/refused"); n < 12 || n > 20 {
			t.Errorf("a refused source was read %d times in three hours", n)
		}
		if n := s.count("file:///m"); n < 200 {
			t.Errorf("a file of this Mac was looked at %d times in three hours", n)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if looks := s.looks["hf://o/lost"]; looks[len(looks)-1].Sub(looks[len(looks)-2]) > time.Minute {
			t.Error("failures of another kind count for the first refusal")
		}
	})
}

// Slow sources of one namespace leave a slot for the sources of another.
func TestAttackSlowSourcesThatFillTheSlots(t *testing.T) {
	s := &scripted{}
	run(t, s, func(i *Inspector) {
		var orders []v1alpha1.Inspection
		for n := range 20 {
			o := order(fmt.Sprintf("junk-%02d", n), fmt.Sprint("junk", n))
			o.Namespace = "a"
			orders = append(orders, o)
		}
		i.Set(orders)
		after(100 * time.Millisecond)
		late := order("late", "late")
		late.Namespace = "b"
		i.Set(append(orders, late))
		after(10 * time.Millisecond)
		if s.count("late") != 1 {
			t.Error("the source of namespace b waits for those of namespace a")
		}
		after(30 * time.Second)
		if n := len(states(i)); n != 21 || s.most > atOnce {
			t.Errorf("%d results, up to %d at once", n, s.most)
		}
		for _, o := range orders {
			if s.count(o.Source) != 1 {
				t.Errorf("%s was inspected %d times", o.Source, s.count(o.Source))
			}
		}
		late.Namespace = "c"
		i.Set(append(orders, late))
		after(time.Second)
		if s.count("late") != 1 {
			t.Error("another namespace alone starts the inspection again")
		}
	})
}

// Namespaces take turns: two that order many sources do not hold up a third.
func TestNamespacesWithManySourcesTakeTurns(t *testing.T) {
	s := &scripted{}
	run(t, s, func(i *Inspector) {
		var orders []v1alpha1.Inspection
		for n := range 60 {
			o := order(fmt.Sprintf("junk-%02d", n), fmt.Sprint("junk", n))
			o.Namespace = fmt.Sprint("junk", n%2)
			orders = append(orders, o)
		}
		late := order("late", "late")
		late.Namespace = "small"
		i.Set(append(orders, late))
		after(1500 * time.Millisecond)
		if s.count("late") != 1 {
			t.Errorf("the source of a small namespace waits for those of two others")
		}
		after(30 * time.Second)
		if n := len(s.looks); n != len(orders)+1 {
			t.Errorf("%d sources were inspected, want all %d", n, len(orders)+1)
		}
		i.Set(nil)
		if len(i.lastTurn) != 0 {
			t.Errorf("%d namespaces without inspections are remembered", len(i.lastTurn))
		}
	})
}

// deaf ignores its context for the sources of namespace a.
type deaf struct{ *scripted }

func (d deaf) Resolve(ctx context.Context, order v1alpha1.Inspection) (model.Record, error) {
	if order.Namespace != "a" {
		return d.scripted.Resolve(ctx, order)
	}
	time.Sleep(time.Hour)
	return model.Record{}, ctx.Err()
}

// A job that was stopped by an edit, or removed, keeps its slot until it has ended: edits
// get a namespace no slot more.
func TestAttackEditsOfSourcesThatDoNotEnd(t *testing.T) {
	for name, edited := range map[string][]v1alpha1.Inspection{
		"other sources": {{ID: "1", Source: "x", Namespace: "a"}, {ID: "2", Source: "y", Namespace: "a"}},
		"other orders":  {{ID: "3", Source: "x", Namespace: "a"}, {ID: "4", Source: "y", Namespace: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{looks: map[string][]time.Time{}}
				i := New(deaf{s}, logr.Discard())
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { i.Run(ctx); close(done) }()
				i.Set([]v1alpha1.Inspection{{ID: "1", Source: "u", Namespace: "a"}, {ID: "2", Source: "v", Namespace: "a"}})
				after(time.Second)
				i.Set(edited)
				after(time.Second)
				i.Set(append(edited, v1alpha1.Inspection{ID: "b", Source: "late", Namespace: "b"}))
				after(2 * time.Second)
				if s.count("late") != 1 {
					t.Error("the source of namespace b waits for stopped ones of namespace a")
				}
				i.Set([]v1alpha1.Inspection{{ID: "5", Source: "z", Namespace: "b"}, {ID: "6", Source: "w", Namespace: "b"}})
				after(2 * time.Hour)
				if s.count("z") != 1 || s.count("w") != 1 {
					t.Error("the slots of stopped jobs are not free after their end")
				}
				cancel()
				<-done
			})
		})
	}
}

// breaking panics over one source.
type breaking struct{ *scripted }

func (b breaking) Resolve(ctx context.Context, order v1alpha1.Inspection) (model.Record, error) {
	if order.Source == "hf://evil/model" {
		panic("integer divide by zero")
	}
	return b.scripted.Resolve(ctx, order)
}

func TestAttackAPanicOverASourceEndsItsInspectionAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := New(breaking{&scripted{looks: map[string][]time.Time{}}}, logr.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { i.Run(ctx); close(done) }()
		i.Set([]v1alpha1.Inspection{order("a", "hf://evil/model"), order("b", "hf://good/model")})
		time.Sleep(5 * time.Second)
		s := i.Snapshot()
		if len(s) != 2 || s[0].State != v1alpha1.InspectionFailed || s[0].Reason != v1alpha1.ReasonInvalidModel || s[1].State != v1alpha1.InspectionResolved {
			t.Errorf("%+v", s)
		}
		cancel()
		<-done
	})
}
