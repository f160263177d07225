package memory

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// withMachine is a check that has seen the system wire 3 GiB and a virtual machine 8 GiB.
func withMachine() *Stranding {
	s := &Stranding{}
	s.Observe(wired(0, 3, 0, 0))
	s.Observe(wired(10, 11, 0, 0))
	return s
}

func TestOneMeasurementIsComparedWithWhatIsKnown(t *testing.T) {
	bound := StrandingBound(64 * gib)
	s := &Stranding{}
	if s.Exceeds(60*gib, 0, 64*gib) {
		t.Error("too much is wired although the system's own part is unknown")
	}
	if !s.Outdated(0) {
		t.Error("nothing was observed, and the evidence is not outdated")
	}
	s = withMachine()
	for wiredBytes, want := range map[int64]bool{11*gib + bound: false, 11*gib + bound + 1: true} {
		if got := s.Exceeds(wiredBytes, 0, 64*gib); got != want {
			t.Errorf("%d bytes wired: %v", wiredBytes, got)
		}
		if got := s.Exceeds(wiredBytes+20*gib, 20*gib, 64*gib); got != want {
			t.Errorf("%d bytes wired next to an engine of 20 GiB: %v", wiredBytes, got)
		}
	}
	s.Observe(wired(20, 11, 0, 0).ends(2))
	if s.Outdated(2) || !s.Outdated(3) {
		t.Errorf("after two ends: outdated %v; after a third: %v", s.Outdated(2), s.Outdated(3))
	}
}

func TestMemoryOfOtherProgramsIsNamed(t *testing.T) {
	s := &Stranding{}
	if f := s.Observe(wired(0, 3, 0, 0)); strings.Contains(f.Message, "other programs") {
		t.Errorf("nothing but the system wires memory: %s", f.Message)
	}
	if f := withMachine().Observe(wired(20, 11, 0, 0)); f.Status != metav1.ConditionFalse || !strings.Contains(f.Message, "other programs wire 8.0 GiB") {
		t.Errorf("a virtual machine: %+v", f)
	}
	s = withMachine()
	s.Observe(wired(20, 31, 20, 1))
	s.Observe(wired(30, 31, 0, 0))
	if f := s.Observe(wired(40, 31, 0, 0)); f.Status != metav1.ConditionTrue || !strings.Contains(f.Message, ", other programs 8.0 GiB") {
		t.Errorf("20 GiB stay next to a virtual machine: %+v", f)
	}
}

// TestMemoryOfOtherProgramsRaisesNoDoubt while engines end and shrink: what a virtual machine
// wires is known.
func TestMemoryOfOtherProgramsRaisesNoDoubt(t *testing.T) {
	for name, tc := range map[string]struct {
		wired float64
		want  bool
	}{"as much as before": {wired: 11, want: true}, "and what the engine held": {wired: 31, want: false}} {
		s := withMachine()
		s.Observe(wired(20, 31, 20, 1))
		// It ended between the measurements, which makes them inconsistent.
		w := wired(30, tc.wired, 0, 0).ends(1)
		w.Starting = true
		s.Observe(w)
		if got := s.MayStart(); got != tc.want {
			t.Errorf("%s: an engine may start: %v", name, got)
		}
	}
}

// TestUncleanEndsThatFollowOneAnotherHoldUpStartsForAWhileOnly: nothing starts before the memory was
// seen after the last of them, and twice after one alone.
func TestUncleanEndsThatFollowOneAnotherHoldUpStartsForAWhileOnly(t *testing.T) {
	for _, every := range []int{1, 4, 9} {
		s := withMachine()
		closed, longest := 0, 0
		for second := 11; second < 311; second++ {
			if (second-11)%every == 0 {
				if s.Unclean(); s.MayStart() {
					t.Fatalf("ends each %d s: engines start before the memory was seen", every)
				}
			}
			s.Observe(wired(second, 11, 0, 0))
			if closed++; s.MayStart() {
				closed = 0
			}
			longest = max(longest, closed)
		}
		if longest < 10 || longest > 31 {
			t.Errorf("ends each %d s: nothing starts for %d s, want 10 to 31", every, longest)
		}
	}
	s := withMachine()
	for _, second := range []int{11, 41, 71} { // what looks stranded has the check begin from its start
		s.Unclean()
		s.Observe(wired(second, 11, 0, 0))
		s.Observe(wired(second+5, 31, 0, 0).ends(1))
		s.Observe(wired(second+6, 11, 0, 0).ends(1))
		if s.Observe(wired(second+15, 11, 0, 0).ends(1)); s.MayStart() {
			t.Errorf("after %d s engines start 9 s after too much was left", second)
		}
		s.Observe(wired(second+16, 11, 0, 0).ends(1))
	}
}
