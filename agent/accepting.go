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
	// empty: it stays. resumes is whether requests are accepted once it is back.
	leaves  string
	resumes bool
	since   time.Time
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

// set is what the agent decides. A Mac that is about to become unavailable stays so.
func (v *availability) set(yes, replaced bool) {
	v.change(func(a *acceptance) {
		a.resumes, a.replaced = yes, replaced
		a.yes = yes && a.leaves == ""
	})
}

// change replaces the acceptance by another one that begins now.
func (v *availability) change(to func(*acceptance)) {
	for {
		old, next := v.now.Load(), acceptance{}
		if old != nil {
			next = *old
		}
		to(&next)
		next.since = time.Now()
		if v.now.CompareAndSwap(old, &next) {
			return
		}
	}
}

// follow applies a notice about the power of the Mac, and returns false if it changes
// nothing.
func (v *availability) follow(n power.Notice) bool {
	leaves := ""
	switch {
	case n == power.Sleeps:
		leaves = v1alpha1.ReasonMacSleeps
	case n == power.ShutsDown:
		leaves = v1alpha1.ReasonMacShutsDown
	case v.get().leaves == "":
		return false // it was never unavailable
	}
	v.change(func(a *acceptance) {
		a.leaves = leaves
		a.yes = a.resumes && leaves == ""
	})
	return true
}
