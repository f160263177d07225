package agent

import (
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/power"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// acceptance is whether new requests are accepted, and since when.
type acceptance struct {
	yes, replaced bool
	// leaves is why the Mac itself becomes unavailable, a reason of Accepting;
	// empty: it stays.
	leaves string
	since  time.Time
}

func (a *acceptance) condition() metav1.Condition {
	switch {
	case a.leaves != "":
		return register.Leaving(a.leaves, a.since)
	case a.replaced:
		return register.Replaced(a.since)
	}
	return register.Accepting(a.yes, a.since)
}

// availability is the current acceptance of this Mac.
type availability struct{ now atomic.Pointer[acceptance] }

func (v *availability) get() *acceptance { return v.now.Load() }

func (v *availability) set(yes, replaced bool) {
	v.now.Store(&acceptance{yes: yes, replaced: replaced, since: time.Now()})
}

// follow applies a notice about the power of the Mac, and returns false if it changes
// nothing.
func (v *availability) follow(n power.Notice) bool {
	switch {
	case n == power.Sleeps:
		v.now.Store(&acceptance{leaves: v1alpha1.ReasonMacSleeps, since: time.Now()})
	case n == power.ShutsDown:
		v.now.Store(&acceptance{leaves: v1alpha1.ReasonMacShutsDown, since: time.Now()})
	case v.get().leaves == "":
		return false // it was never unavailable
	default:
		v.set(true, false)
	}
	return true
}
