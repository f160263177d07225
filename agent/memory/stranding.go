package memory

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// strandingApart is how long two observations must agree.
const strandingApart = 10 * time.Second

// Finding is what a judge says: the parts of a condition.
type Finding struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
	// Bytes that nobody owns; never negative.
	Bytes int64
}

// WiredReading is what the judge of stranded memory looks at.
type WiredReading struct {
	At time.Time
	// Wired of the host, read before Footprints; Known is false where the
	// system does not tell or the probe failed.
	Wired int64
	Known bool
	// Measurable is false where this system never tells (not a Mac).
	Measurable bool
	// Footprints of all living engine processes, read after Wired.
	Footprints int64
	// Engines that have a process.
	Engines int
	// Total memory of the machine.
	Total int64
}

// Stranding judges whether wired memory is left that no process owns. Its zero
// value has seen nothing. Baseline is what is wired with an empty pool; it may
// be restored from a file of the same boot.
type Stranding struct {
	Baseline      int64
	BaselineKnown bool

	over    time.Time // since when too much is unowned; zero: it is not
	unclean bool      // an engine ended uncleanly and the check has not passed twice since
	passed  time.Time // when it passed the first time since
}

// StrandingBound is what may be wired without an owner: max(4 GiB, 2 %) of the
// machine's memory, in bytes.
func StrandingBound(total int64) int64 { return max(4*footprint.GiB, total/50) }

// Unclean says that an engine was killed or crashed: nothing starts in its
// place until the check has passed twice.
func (s *Stranding) Unclean() { s.unclean, s.passed = true, time.Time{} }

// MayStart reports whether engines may be started: no check is due.
func (s *Stranding) MayStart() bool { return !s.unclean && s.over.IsZero() }

// Observe judges one observation; two at least 10 s apart decide.
func (s *Stranding) Observe(w WiredReading) Finding {
	return Finding{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotMeasurable, Message: fmt.Sprint(w.Known)}
}
