package placement

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/placement/plan"
)

// passBudget is how long one pass decides. The next one reads the fleet again, so that a
// change waits no longer for it.
const passBudget = 2 * time.Second

// maxReports is after how many changed conditions a pass ends. One change may alter those of thousands
// of replicas that wait for a Mac, and only the next pass places what is created meanwhile.
const maxReports = 256

// round is a sequence of passes that decides for each unplaced replica once: a pass that has
// used its budget ends, and the next one skips what the round decided already. Without
// that, replicas at the end of the order would never be decided for. A replica that claims
// room or downloads is decided for in each pass, because later ones must not get these, unless
// it only keeps weights: each snapshot counts those. Decisions with claims have a budget of their
// own; those beyond it are decided for once in a round, like others. Room
// that becomes free during a round is for those that the round still decides for.
type round struct {
	// changed since the round began: another round follows. Watches set it.
	changed atomic.Bool

	// decided has the generations of the replicas that wait and claim nothing, or keep weights.
	decided map[types.UID]int64
	// retry is when the first decision of the round may change without an event; 0: never.
	retry time.Duration
	// used of the budget of this pass, and claimed of that of decisions with claims.
	used, claimed time.Duration
	// reports that this pass is to write.
	reports int
	// skipped: this pass continued another one.
	skipped bool
	// left: replicas are left for the next pass.
	left bool
}

// begin starts a pass, and a round unless one is in progress.
func (r *round) begin() {
	r.used, r.claimed, r.reports, r.skipped, r.left = 0, 0, 0, len(r.decided) > 0, false
	if !r.skipped {
		r.decided, r.retry = map[types.UID]int64{}, 0
		r.changed.Store(false)
	}
}

// skips reports whether this pass does not decide for a replica: the round did, or the
// budget is used up.
func (r *round) skips(replica *v1alpha1.ModelReplica) bool {
	if generation, known := r.decided[replica.UID]; known && generation == replica.Generation {
		return true
	}
	r.left = r.left || r.cut()
	return r.left
}

// note records a decision and how long it took.
func (r *round) note(replica *v1alpha1.ModelReplica, d plan.Decision, took time.Duration) {
	r.lookAgain(d.RetryAfter)
	if fleet.Prefetches(replica) {
		// A snapshot counts what it keeps already; the next pass reads what this one chose.
		if r.used += took; d.Prefetch == replica.Spec.PrefetchNodeName {
			r.decided[replica.UID] = replica.Generation
		}
		return
	}
	claims := d.Awaits != "" || d.FetchesOn(replica) != ""
	if claims && r.claimed < passBudget {
		r.claimed += took
		return // it is decided for in each pass
	}
	r.used += took
	if d.Mac == "" || replica.Spec.NodeName != "" || claims {
		r.decided[replica.UID] = replica.Generation
	}
}

// lookAgain notes that the next round is due after a time; 0: it is not.
func (r *round) lookAgain(after time.Duration) {
	if after > 0 && (r.retry == 0 || after < r.retry) {
		r.retry = after
	}
}

// cut reports whether the pass has used its budget, or has as much to report as it may.
func (r *round) cut() bool { return r.used >= passBudget || r.reports >= maxReports }

// end ends a pass and reports whether another follows at once: for the rest of the
// replicas, or for what changed while the round took several passes. After a failure
// another round follows in any case.
func (r *round) end(failed bool) bool {
	if failed {
		r.changed.Store(true)
	}
	if r.left {
		return true
	}
	r.decided = nil
	return r.skipped && r.changed.Load()
}
