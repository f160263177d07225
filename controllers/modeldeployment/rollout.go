package modeldeployment

import (
	"cmp"
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// maxFailures is how often engines of a revision may fail before it is halted while others
// serve. If none does, every request waits, and one failure is enough. All on one Mac count as one
// less at most, because the Mac may be at fault: its replicas are given up, and successors avoid it.
const maxFailures = 3

// served returns the last revision that served with all wanted replicas, if it still
// exists; without a record of it, the one, other than the wanted, that most of the
// available replicas have. Empty: there is no fallback.
func (s *scope) served() string {
	if name := s.deployment.Status.CurrentRevision; s.named(name) != nil {
		return name
	}
	count, best := map[string]int{}, ""
	for i := range s.replicas {
		r := &s.replicas[i]
		name := r.Spec.Revision
		if name == s.current.object.Name || !available(r) || s.named(name) == nil {
			continue
		}
		if count[name]++; best == "" || count[name] > count[best] || count[name] == count[best] && name < best {
			best = name
		}
	}
	return best
}

// figures of the replicas of the wanted revision.
type figures struct {
	placed, available, total int32
	bytes                    int64
	// loads: one has a Mac and does not serve yet, or prefetches.
	loads bool
	// fetches: the weights of one are prefetched before a swap.
	fetches bool
	// failures of engines that do not serve, and the first of their replicas.
	failures int32
	failing  *v1alpha1.ModelReplica
	// blamed are the Macs with replicas that do not serve, and those where their predecessors were
	// given up, with their failures.
	blamed map[string]int32
	// rest is a replica for which placement found no Mac after its predecessor was given up.
	rest *v1alpha1.ModelReplica
	// serving replicas of any revision.
	serving int
}

func (s *scope) figures() figures {
	f := figures{blamed: map[string]int32{}}
	for i := range s.replicas {
		r := &s.replicas[i]
		if available(r) {
			f.serving++
		}
		if !r.DeletionTimestamp.IsZero() || r.Spec.Revision != s.current.object.Name {
			continue
		}
		f.total++
		if r.Spec.NodeName != "" {
			f.placed++
		}
		if available(r) {
			f.available++
			continue
		}
		f.loads = f.loads || r.Spec.NodeName != "" || prefetches(r)
		f.fetches = f.fetches || prefetches(r)
		f.bytes = fleet.Add(f.bytes, r.Status.Progress.BytesDone)
		f.blame(r)
		if n := r.Status.Restarts; n > 0 {
			f.failures = int32(min(fleet.Add(int64(f.failures), int64(n)), math.MaxInt32))
			if f.failing == nil || r.Spec.Slot < f.failing.Spec.Slot {
				f.failing = r
			}
		}
	}
	return f
}

// assess returns the progress of the rollout and whether it is halted, from the current
// state and the recorded status. A halt is kept until another revision or another attempt
// is wanted: the replicas that failed are removed by then.
func assess(s *scope) (next v1alpha1.RolloutStatus, overdue bool) {
	d, before := s.deployment, s.deployment.Status.Rollout
	rollout, wanted := d.Spec.Rollout, s.current.object.Name
	f := s.figures()
	next = v1alpha1.RolloutStatus{StartTime: before.StartTime, ProgressTime: before.ProgressTime, PlacedReplicas: f.placed, BytesDone: f.bytes}
	now := metav1.NewTime(s.now.Truncate(time.Second))
	if h := before.Halt; h != nil && h.Revision == wanted && h.RetryGeneration == rollout.RetryGeneration {
		next.Halt = h
		return next, false
	}
	if later(next.StartTime, now) || d.Status.UpdateRevision != wanted || before.Halt != nil {
		next.StartTime, next.ProgressTime = &now, &now
	}
	moved := f.placed != before.PlacedReplicas || f.bytes != before.BytesDone || f.available != d.Status.UpdatedAvailableReplicas || f.total != d.Status.UpdatedReplicas
	begins := f.fetches && before.State != v1alpha1.RolloutPrefetching // it may have waited for long before
	if moved || begins || before.State == v1alpha1.RolloutPaused && !rollout.Paused || later(next.ProgressTime, now) {
		next.ProgressTime = &now
	}
	if rollout.Paused {
		return next, false
	}
	overdue = f.late(s, next.ProgressTime)
	if s.fallsBack() {
		next.Halt = s.halt(f, overdue, now)
		overdue = overdue && next.Halt != nil // else its replicas are given up
	}
	return next, overdue
}

// later reports whether a time is unknown, or in the future: the clock of an operator was ahead.
func later(t *metav1.Time, now metav1.Time) bool { return t == nil || t.After(now.Time) }

// halt returns why the wanted revision is given up; nil if it is not.
func (s *scope) halt(f figures, overdue bool, now metav1.Time) *v1alpha1.RolloutHalt {
	h := &v1alpha1.RolloutHalt{Revision: s.current.object.Name, RetryGeneration: s.deployment.Spec.Rollout.RetryGeneration, Time: now}
	switch {
	case f.failing != nil && (f.serving == 0 || f.several()):
		h.Reason, h.Message = failureOf(f.failing)
		h.Message = status.Shorten(fmt.Sprintf("%s on %s, after %d failures: %s", f.failing.Name, f.failing.Spec.NodeName, f.failures, h.Message), 2048)
	case f.rest != nil && f.placed == 0 && !f.fetches:
		a := givenUp(f.rest)
		h.Reason = a.Failure
		h.Message = status.Shorten(fmt.Sprintf("no other Mac can run it after a replica on %s was given up: %s", a.Name, a.Reason), 2048)
	case overdue && (f.serving == 0 || len(f.blamed) > 1):
		h.Reason = v1alpha1.ReasonProgressDeadline
		h.Message = fmt.Sprintf("no progress for %d s (rollout.progressDeadlineSeconds)", int(deadline(s.deployment).Seconds()))
	default:
		return nil
	}
	return h
}

func deadline(d *v1alpha1.ModelDeployment) time.Duration {
	return time.Duration(ptr.Deref(d.Spec.Rollout.ProgressDeadlineSeconds, v1alpha1.DefaultProgressDeadlineSeconds)) * time.Second
}

// untilOverdue returns when a rollout without progress is to be checked again; 0 if nothing
// is awaited.
func (s *scope) untilOverdue() time.Duration {
	if s.current == nil || s.rollout.ProgressTime == nil || s.rollout.Halt != nil || s.overdue || s.deployment.Spec.Rollout.Paused || !s.figures().loads {
		return 0
	}
	return max(time.Second, deadline(s.deployment)-s.now.Sub(s.rollout.ProgressTime.Time))
}

// complete reports whether all wanted replicas are of the wanted revision and serve, and no
// other is left.
func complete(s *scope, next v1alpha1.ModelDeploymentStatus) bool {
	return next.UpdatedReplicas == next.Replicas && next.UpdatedAvailableReplicas >= fleet.Wanted(s.deployment)
}

// tookOver reports whether the wanted revision serves on all Macs that placement found for it, and no
// replica of another is left: no more fit, and nothing of it fails or starts.
func (s *scope) tookOver() bool {
	serves := false
	for i := range s.replicas {
		r := &s.replicas[i]
		placed := condition(r.Status.Conditions, v1alpha1.ConditionPlaced)
		switch {
		case r.Spec.Revision != s.current.object.Name:
			return false
		case !r.DeletionTimestamp.IsZero():
		case available(r):
			serves = true
		case r.Spec.NodeName != "" || placed == nil || placed.Status != metav1.ConditionFalse:
			return false
		}
	}
	return serves && s.rollout.Halt == nil
}

// stateOf returns the state of the rollout after the pass acted.
func stateOf(s *scope, next v1alpha1.ModelDeploymentStatus) v1alpha1.RolloutState {
	rollout := s.deployment.Spec.Rollout
	surge, _ := rollout.Bounds(int(fleet.Wanted(s.deployment)))
	switch {
	case rollout.Paused:
		return v1alpha1.RolloutPaused
	case s.rollout.Halt != nil:
		return v1alpha1.RolloutHalted
	case s.verdict.engine == nil:
		return v1alpha1.RolloutPending
	case complete(s, next):
		return v1alpha1.RolloutComplete
	case s.some(prefetches):
		return v1alpha1.RolloutPrefetching
	case next.UpdatedReplicas == next.Replicas && !s.swaps():
		return v1alpha1.RolloutStarting
	case s.swaps():
		return v1alpha1.RolloutSwapping
	case s.waits():
		return v1alpha1.RolloutWaiting
	case surge > 0:
		return v1alpha1.RolloutSurging
	}
	return v1alpha1.RolloutReplacing
}

// swaps: a replica of the wanted revision takes, or took, the memory of an old one and does
// not serve yet.
func (s *scope) swaps() bool {
	return s.some(func(r *v1alpha1.ModelReplica) bool { return r.Spec.Swap && !available(r) })
}

func (s *scope) waits() bool {
	return s.some(func(r *v1alpha1.ModelReplica) bool { return r.Spec.NodeName == "" && withoutRoom(r) })
}

// some reports whether a replica of the wanted revision, not being deleted, matches.
func (s *scope) some(so func(*v1alpha1.ModelReplica) bool) bool {
	for i := range s.replicas {
		r := &s.replicas[i]
		if r.DeletionTimestamp.IsZero() && s.current != nil && r.Spec.Revision == s.current.object.Name && so(r) {
			return true
		}
	}
	return false
}

// eta returns when the rollout may be complete: by the pace of the replicas that serve
// already, or before the first by their Macs' estimates.
func eta(s *scope, next v1alpha1.ModelDeploymentStatus) *int64 {
	count := fleet.Wanted(s.deployment)
	left := count - next.UpdatedAvailableReplicas
	switch next.Rollout.State {
	case v1alpha1.RolloutSurging, v1alpha1.RolloutReplacing, v1alpha1.RolloutPrefetching, v1alpha1.RolloutSwapping, v1alpha1.RolloutStarting:
	default:
		return nil
	}
	if left <= 0 {
		return nil
	}
	if done := next.UpdatedAvailableReplicas; done > 0 && next.Rollout.State != v1alpha1.RolloutStarting {
		return ptr.To(max(0, int64(s.now.Sub(next.Rollout.StartTime.Time).Seconds())) * int64(left) / int64(done))
	}
	var longest *int64
	s.some(func(r *v1alpha1.ModelReplica) bool {
		if e := r.Status.Progress.ETASeconds; e != nil && !available(r) && (longest == nil || *e > *longest) {
			longest = e
		}
		return false
	})
	if longest == nil {
		return nil
	}
	surge, unavailable := s.deployment.Spec.Rollout.Bounds(int(count))
	batch := int64(max(1, surge+unavailable))
	if next.Rollout.State == v1alpha1.RolloutPrefetching || next.Rollout.State == v1alpha1.RolloutSwapping {
		batch = 1
	}
	turns := (int64(left) + batch - 1) / batch
	return ptr.To(max(0, min(*longest, math.MaxInt64/turns)) * turns)
}

// rolling returns the message of a rollout.
func rolling(s *scope, next v1alpha1.ModelDeploymentStatus) string {
	out := fmt.Sprintf("%d of %d replicas are updated to revision %s and available", next.UpdatedAvailableReplicas, fleet.Wanted(s.deployment), next.UpdateRevision)
	switch next.Rollout.State {
	case v1alpha1.RolloutPrefetching:
		out += "; no Mac has room alongside the old replicas: they will be replaced one at a time" + s.swapping()
	case v1alpha1.RolloutSwapping:
		out += "; no Mac has room alongside the old replicas: they are replaced one at a time, and requests wait meanwhile" + s.swapping()
	case v1alpha1.RolloutWaiting:
		out += "; no Mac has room alongside the old replicas: add a Mac, set rollout.onInsufficientMemory to Swap, or raise rollout.maxUnavailable"
	}
	if e := next.Rollout.ETASeconds; e != nil {
		out += fmt.Sprintf("; about %d s left", *e)
	}
	return out
}

// swapping returns the messages of placement, and of the prefetching Mac, about the replica
// that waits to swap.
func (s *scope) swapping() (out string) {
	s.some(func(r *v1alpha1.ModelReplica) bool {
		placed, fetched := condition(r.Status.Conditions, v1alpha1.ConditionPlaced), condition(r.Status.Conditions, v1alpha1.ConditionDownloaded)
		if r.Spec.NodeName != "" || !r.Spec.Swap || placed == nil {
			return false
		}
		if out = "; " + r.Name + ": " + placed.Message; fetched != nil && fetched.Status == metav1.ConditionFalse {
			out += " (" + cmp.Or(r.Status.Summary.Progress, fetched.Reason) + ": " + fetched.Message + ")"
		}
		return true
	})
	return out
}

// halted returns the message of a halt, with the next steps.
func halted(d *v1alpha1.ModelDeployment, next v1alpha1.ModelDeploymentStatus) string {
	h := next.Rollout.Halt
	return fmt.Sprintf("the rollout of revision %s is halted (%s: %s); the previous revision (%s) continues to serve. Correct the spec, roll back with `kubectl metalfleet rollout undo %s`, or retry with `kubectl metalfleet rollout resume %s`",
		h.Revision, h.Reason, h.Message, cmp.Or(next.CurrentRevision, "unknown"), d.Name, d.Name)
}
