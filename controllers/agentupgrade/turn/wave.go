package turn

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// waveOf returns the number of the first wave that selects a Mac; that of the Macs that none
// selects is the number of waves.
func waveOf(w *v1alpha1.AgentRelease, mac *v1alpha1.MacNode) int {
	for i := range w.Waves {
		if w.Waves[i].MacSelector.Matches(mac) {
			return i
		}
	}
	return len(w.Waves)
}

// soaks returns how long the waves before that of a Mac must still be observed.
func (t *Turn) soaks(w *v1alpha1.AgentRelease, next *Standing) time.Duration {
	var wait time.Duration
	for _, s := range t.Macs {
		if s.wave < next.wave && s.Place == Current {
			wait = max(wait, time.Duration(w.Waves[s.wave].SoakSeconds)*time.Second-s.current)
		}
	}
	return wait
}

// window holds back a Mac that is next until the maintenance window opens.
func (t *Turn) window(h *v1alpha1.Hours, next *Standing, now time.Time) bool {
	if h == nil {
		return false
	}
	open, changes, err := h.Open(now)
	switch {
	case err != nil:
		t.set(Waiting, next, "the maintenance window: %v", err)
	case !open:
		t.set(Waiting, next, "Mac %s is next when the maintenance window opens at %s", next.Mac, changes.Format(time.RFC3339))
		t.After = changes.Sub(now)
	default:
		return false
	}
	return true
}

// currentFor returns how long a Mac has run the version, by the operator's clock.
func currentFor(mac *v1alpha1.MacNode, now time.Time) time.Duration {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	if c == nil || c.Status != "True" {
		return 0
	}
	return max(0, now.Sub(c.LastTransitionTime.Time))
}

// order sorts Macs by wave, then by name.
func order(a, b Standing) int { return cmp.Or(cmp.Compare(a.wave, b.wave), cmp.Compare(a.Mac, b.Mac)) }

// Upgraded returns how many Macs run the version, the one that is still observed included.
func (t *Turn) Upgraded() (n int32) {
	for _, s := range t.Macs {
		if s.Place == Current || s.Place == Settling {
			n++
		}
	}
	return n
}

// Busy reports whether a Mac is being upgraded, observed or away, so that no other may begin,
// of this class or of another.
func (t *Turn) Busy() bool {
	return t.first(Underway) != nil || t.first(Settling) != nil || t.first(Different) != nil || t.first(Away) != nil
}

// Wait holds back the Mac that is next, because another class is busy.
func (t *Turn) Wait(class string) {
	if t.Start {
		t.Start = false
		t.State, t.Message = Waiting, fmt.Sprintf("Mac %s is next once no Mac of class %s is being upgraded or unreachable", t.Mac, class)
	}
}
