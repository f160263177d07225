package report

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const mib = int64(1) << 20

// status of a Mac with one assignment, changed by f.
func status(f func(*v1alpha1.MacNodeStatus, *v1alpha1.AssignmentStatus)) *v1alpha1.MacNodeStatus {
	s := &v1alpha1.MacNodeStatus{
		Chip:       "M4",
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionMemoryPressure, Status: "False", Reason: v1alpha1.ReasonBelowSoftMark, Message: "12.3 GiB of 40 GiB"}},
		Memory:     v1alpha1.MacMemory{TotalBytes: 16 << 30, FootprintBytes: 1000 * mib, FreeBytes: 8 << 30, MeasuredAt: &metav1.Time{Time: time.Unix(1, 0)}},
		Assignments: []v1alpha1.AssignmentStatus{{
			ReplicaUID: "u", Epoch: 1, Progress: v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: 10, BytesTotal: 100},
			Memory:     v1alpha1.EngineMemory{FootprintBytes: 1000 * mib},
			Conditions: []metav1.Condition{{Type: "Serving", Status: "False", Reason: "Waiting"}},
		}},
	}
	if f != nil {
		f(s, &s.Assignments[0])
	}
	return s
}

func TestWhatIsDueWhen(t *testing.T) {
	type mac = v1alpha1.MacNodeStatus
	type one = v1alpha1.AssignmentStatus
	for name, tc := range map[string]struct {
		change func(*mac, *one)
		after  time.Duration
		needed bool
	}{
		"nothing changed":                    {change: nil, after: 0, needed: false},
		"only the time of measuring":         {change: func(s *mac, _ *one) { s.Memory.MeasuredAt = &metav1.Time{Time: time.Unix(9, 0)} }, after: 0, needed: false},
		"a condition":                        {change: func(_ *mac, a *one) { a.Conditions[0].Status = "True" }, after: 0, needed: true},
		"a stage":                            {change: func(_ *mac, a *one) { a.Progress.Stage = v1alpha1.StageLoading }, after: 0, needed: true},
		"a reclaim":                          {change: func(s *mac, _ *one) { s.Reclaims = []v1alpha1.Reclaim{{ID: "u/1/1"}} }, after: 0, needed: true},
		"freed bytes":                        {change: func(s *mac, _ *one) { s.Memory.FreedBytesTotal = 1 }, after: 0, needed: true},
		"a reservation":                      {change: func(s *mac, _ *one) { s.Memory.ReservedBytes = 1 }, after: 0, needed: true},
		"an assignment more":                 {change: func(s *mac, _ *one) { s.Assignments = append(s.Assignments, one{ReplicaUID: "v"}) }, after: 0, needed: true},
		"an inspection":                      {change: func(s *mac, _ *one) { s.Inspections = []v1alpha1.InspectionStatus{{ID: "i"}} }, after: 0, needed: true},
		"progress":                           {change: func(_ *mac, a *one) { a.Progress.BytesDone = 11 }, after: progressEvery, needed: true},
		"a figure by less than 1 %":          {change: func(s *mac, _ *one) { s.Memory.FootprintBytes += 9 * mib }, after: 0, needed: false},
		"a figure by more than 1 %":          {change: func(s *mac, _ *one) { s.Memory.FootprintBytes += 11 * mib }, after: figuresEvery, needed: true},
		"a large figure by more than 64 MiB": {change: func(s *mac, _ *one) { s.Memory.FreeBytes -= 65 * mib }, after: figuresEvery, needed: true},
		"an engine's figure":                 {change: func(_ *mac, a *one) { a.Memory.FootprintBytes -= 11 * mib }, after: figuresEvery, needed: true},
		"a pressure level":                   {change: func(s *mac, _ *one) { s.Memory.PressureLevel = v1alpha1.PressureHard }, after: 0, needed: true},
		"a condition of the Mac":             {change: func(s *mac, _ *one) { s.Conditions[0].Status = "True" }, after: 0, needed: true},
		"a level within a condition":         {change: func(s *mac, _ *one) { s.Conditions[0].Reason = v1alpha1.ReasonHardPressure }, after: 0, needed: true},
		"a sentence of a Mac's condition":    {change: func(s *mac, _ *one) { s.Conditions[0].Message = "12.4 GiB of 40 GiB" }, after: figuresEvery, needed: true},
		"a sentence of a replica's":          {change: func(_ *mac, a *one) { a.Conditions[0].Message = "tried 4 times" }, after: progressEvery, needed: true},
		"a reclaim without attribution":      {change: func(s *mac, _ *one) { s.Memory.IndeterminateReclaims = 1 }, after: 0, needed: true},
		"the term that binds":                {change: func(s *mac, _ *one) { s.Memory.EffectiveCeilingTerm = v1alpha1.CeilingDynamic }, after: figuresEvery, needed: true},
		"the machine's warmth":               {change: func(s *mac, _ *one) { s.Memory.ThermalState = "Serious" }, after: figuresEvery, needed: true},
		"a dynamic ceiling that moves":       {change: func(s *mac, _ *one) { s.Memory.DynamicCeilingBytes = 9 << 30 }, after: figuresEvery, needed: true},
		"swap":                               {change: func(s *mac, _ *one) { s.Memory.SwapUsedBytes = 65 * mib }, after: figuresEvery, needed: true},
		"accounted bytes of an engine":       {change: func(_ *mac, a *one) { a.Memory.AccountedBytes = 65 * mib }, after: figuresEvery, needed: true},
		"a request that runs":                {change: func(_ *mac, a *one) { a.Activity = &v1alpha1.EngineActivity{Running: 1} }, after: figuresEvery, needed: true},
		"caches that were cleared":           {change: func(s *mac, _ *one) { s.CacheCleared = &v1alpha1.CacheCleared{Request: "r"} }, after: 0, needed: true},
		"a rounded figure alone":             {change: func(s *mac, _ *one) { s.Summary.Used = "1 GiB" }, after: 0, needed: false},
	} {
		t.Run(name, func(t *testing.T) {
			if after, needed := due(status(nil), status(tc.change)); after != tc.after || needed != tc.needed {
				t.Errorf("after %v, needed %v; want %v, %v", after, needed, tc.after, tc.needed)
			}
		})
	}
	if _, needed := due(nil, status(nil)); !needed {
		t.Error("the first status is not written")
	}
}

// A figure that a later version adds must not be one that is never written.
func TestEveryFigureOfTheMacsMemoryIsWrittenSometime(t *testing.T) {
	kind := reflect.TypeFor[v1alpha1.MacMemory]()
	for i := range kind.NumField() {
		next := status(nil)
		field := reflect.ValueOf(&next.Memory).Elem().Field(i)
		switch field.Kind() {
		case reflect.Int64:
			field.SetInt(field.Int() + 1<<30)
		case reflect.String:
			field.SetString("another")
		case reflect.Pointer: // measuredAt says nothing by itself
			continue
		default:
			t.Fatalf("%s: a kind this test does not know", kind.Field(i).Name)
		}
		if _, needed := due(status(nil), next); !needed {
			t.Errorf("memory.%s changed, and nothing is written", kind.Field(i).Name)
		}
	}
}

func TestAMacUnderPressureIsWrittenAtMostEvery30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, stop := running(t)
		defer stop()
		for i := range 600 { // ten minutes of polls: every figure and every sentence moves
			r.Offer(status(func(s *v1alpha1.MacNodeStatus, a *v1alpha1.AssignmentStatus) {
				n := int64(i) * 100 * mib
				s.Memory.DynamicCeilingBytes, s.Memory.EffectiveCeilingBytes, s.Memory.ActiveBytes, s.Memory.PooledBytes = n, n, n, n
				s.Memory.EffectiveCeilingTerm = []v1alpha1.CeilingTerm{v1alpha1.CeilingStatic, v1alpha1.CeilingDynamic}[i%2]
				s.Conditions[0].Message, a.Memory.AccountedBytes = time.Duration(n).String(), n
			}))
			time.Sleep(time.Second)
		}
		if n := len(w.at()); n < 15 || n > 21 {
			t.Errorf("%d writes in ten minutes: %v", n, w.at())
		}
	})
}

// TestManyLargeStatusesAreWrittenSeldom: tenants have a Mac inspect other sources all the time.
func TestManyLargeStatusesAreWrittenSeldom(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes    int
		urgent   bool
		min, max int // of 6,000 statuses in ten minutes
	}{
		"small and urgent": {0, true, 850, 1100},
		"large and urgent": {256 << 10, true, 30, 36}, // 8 MiB and 600 s of 16 KiB, each takes 528 KiB
		"large progress":   {256 << 10, false, 22, 28},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w, stop := running(t)
				defer stop()
				text := strings.Repeat("x", tc.bytes)
				for i := range 6000 {
					r.Offer(status(func(s *v1alpha1.MacNodeStatus, a *v1alpha1.AssignmentStatus) {
						s.Inspections = []v1alpha1.InspectionStatus{{ID: "i", Message: text}}
						if a.Progress.BytesDone = int64(i); tc.urgent {
							a.Restarts = int32(i)
						}
					}))
					time.Sleep(100 * time.Millisecond)
				}
				if n := len(w.at()); n < tc.min || n > tc.max {
					t.Errorf("%d writes, want %d to %d", n, tc.min, tc.max)
				}
			})
		})
	}
}

// writes records what a reporter wrote and when.
type writes struct {
	mu    sync.Mutex // guards what follows
	times []time.Duration
	saved *v1alpha1.MacNodeStatus
	err   error
	took  time.Duration
}

// at says when was written; last what the last successful write held.
func (w *writes) at() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.times
}

func (w *writes) last() *v1alpha1.MacNodeStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.saved
}

// behave sets how long writes take and how they end.
func (w *writes) behave(took time.Duration, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took, w.err = took, err
}

func (w *writes) write(after time.Duration, s *v1alpha1.MacNodeStatus) (time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times = append(w.times, after)
	if w.err == nil {
		w.saved = s
	}
	return w.took, w.err
}

// running starts a reporter in a bubble.
func running(t *testing.T) (*Reporter, *writes, func()) {
	w := &writes{}
	began := time.Now()
	r := newReporter(logr.Discard(), func(_ context.Context, s *v1alpha1.MacNodeStatus) error {
		took, err := w.write(time.Since(began), s)
		time.Sleep(took)
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, w, func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestConditionsGoAtOnceFiguresSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, stop := running(t)
		defer stop()
		r.Offer(status(nil))
		synctest.Wait()
		for i := range 100 { // ten seconds of a moving figure
			r.Offer(status(func(s *v1alpha1.MacNodeStatus, _ *v1alpha1.AssignmentStatus) {
				s.Memory.FootprintBytes += int64(i) * 100 * mib
			}))
			time.Sleep(100 * time.Millisecond)
		}
		if len(w.at()) != 1 {
			t.Fatalf("%d writes for figures within ten seconds: %v", len(w.at()), w.at())
		}
		r.Offer(status(func(_ *v1alpha1.MacNodeStatus, a *v1alpha1.AssignmentStatus) { a.Conditions[0].Status = "True" }))
		synctest.Wait()
		if len(w.at()) != 2 || w.at()[1] != 10*time.Second {
			t.Fatalf("a condition waited: %v", w.at())
		}
		r.Offer(status(func(s *v1alpha1.MacNodeStatus, a *v1alpha1.AssignmentStatus) {
			a.Conditions[0].Status, s.Memory.FootprintBytes = "True", 1
		}))
		time.Sleep(29 * time.Second)
		if len(w.at()) != 2 {
			t.Fatalf("a figure went too soon: %v", w.at())
		}
		time.Sleep(2 * time.Second)
		if len(w.at()) != 3 || w.last().Memory.FootprintBytes != 1 {
			t.Errorf("a figure did not go after 30 s: %v", w.at())
		}
	})
}

func TestProgressGoesEveryTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, stop := running(t)
		defer stop()
		for i := range 1000 { // ten seconds of a download
			r.Offer(status(func(_ *v1alpha1.MacNodeStatus, a *v1alpha1.AssignmentStatus) { a.Progress.BytesDone = int64(i) }))
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(w.at()); n < 4 || n > 6 {
			t.Errorf("%d writes in ten seconds: %v", n, w.at())
		}
	})
}

func TestWhatComesDuringAWriteGoesWithTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, stop := running(t)
		defer stop()
		w.behave(time.Second, nil)
		for i := range 10 {
			r.Offer(status(func(s *v1alpha1.MacNodeStatus, _ *v1alpha1.AssignmentStatus) { s.Memory.FreedBytesTotal = int64(i) }))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		if len(w.at()) != 2 || w.last().Memory.FreedBytesTotal != 9 {
			t.Errorf("%v, last %d", w.at(), w.last().Memory.FreedBytesTotal)
		}
	})
}

func TestAFailedWriteIsTriedAgainWithTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, stop := running(t)
		defer stop()
		w.behave(0, errors.New("the API is away"))
		r.Offer(status(nil))
		time.Sleep(time.Minute)
		if n := len(w.at()); n < 10 || n > 40 {
			t.Errorf("%d attempts in a minute", n)
		}
		r.Offer(status(func(s *v1alpha1.MacNodeStatus, _ *v1alpha1.AssignmentStatus) { s.Memory.FreedBytesTotal = 5 }))
		w.behave(0, nil)
		time.Sleep(10 * time.Second)
		n := len(w.at())
		if w.last() == nil || w.last().Memory.FreedBytesTotal != 5 {
			t.Fatalf("last %+v", w.last())
		}
		time.Sleep(time.Hour)
		if len(w.at()) != n {
			t.Error("an unchanged status was written")
		}
		r.Again()
		synctest.Wait()
		if len(w.at()) != n+1 {
			t.Error("not written again to a new object")
		}
	})
}
