package modeldeployment

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

// macOf returns the Mac that runs a replica, or downloads its weights; empty: none.
func macOf(r *v1alpha1.ModelReplica) string {
	if prefetches(r) {
		return r.Spec.PrefetchNodeName
	}
	return r.Spec.NodeName
}

// givenUp returns the Mac on which a predecessor of a replica was given up; nil if none was.
func givenUp(r *v1alpha1.ModelReplica) *v1alpha1.AvoidedMac {
	i := slices.IndexFunc(r.Spec.Avoid, func(a v1alpha1.AvoidedMac) bool { return a.Failure != "" && a.Name != macOf(r) })
	if i < 0 {
		return nil
	}
	return &r.Spec.Avoid[i]
}

// blame counts a replica that does not serve.
func (f *figures) blame(r *v1alpha1.ModelReplica) {
	before, mac := givenUp(r), macOf(r)
	if before != nil {
		f.blamed[before.Name] = max(f.blamed[before.Name], maxFailures)
	}
	if mac != "" {
		f.blamed[mac] = int32(min(fleet.Add(int64(f.blamed[mac]), int64(r.Status.Restarts)), maxFailures))
		return
	}
	placed := condition(r.Status.Conditions, v1alpha1.ConditionPlaced)
	if before != nil && !r.Spec.Swap && placed != nil && placed.Status == metav1.ConditionFalse {
		f.rest = r
	}
}

// several reports whether more than one Mac made engines fail maxFailures times.
func (f *figures) several() bool {
	n := int32(0)
	for _, failures := range f.blamed {
		n += min(failures, maxFailures-1)
	}
	return n >= maxFailures
}

// late reports whether no replica made progress within the deadline.
func (f *figures) late(s *scope, since *metav1.Time) bool {
	return f.loads && since != nil && s.now.Sub(since.Time) >= deadline(s.deployment)
}

// fallsBack reports whether another revision serves if the wanted one is given up.
func (s *scope) fallsBack() bool {
	served := s.served()
	return served != "" && served != s.current.object.Name
}

// failureOf returns why the engine of a replica fails. The conditions of a restarted engine no longer
// contain that.
func failureOf(r *v1alpha1.ModelReplica) (reason, message string) {
	if last := r.Status.LastFailure; last != nil {
		return last.Reason, last.Message
	}
	if c := trouble(r); c != nil {
		return c.Reason, c.Message
	}
	return v1alpha1.ReasonLoadFailed, "the engine fails"
}

// abandoned returns the replicas of the wanted revision that are given up because of their Macs: their
// engines failed often, or the rollout makes no progress. One Mac's word does not halt it.
func (s *scope) abandoned() map[types.UID]v1alpha1.AvoidedMac {
	if s.rollout.Halt != nil || s.deployment.Spec.Rollout.Paused || !s.fallsBack() {
		return nil
	}
	f, out := s.figures(), map[types.UID]v1alpha1.AvoidedMac{}
	late := f.late(s, s.rollout.ProgressTime)
	for _, r := range all(s.replicas) {
		mac := macOf(r)
		if mac == "" || !r.DeletionTimestamp.IsZero() || r.Spec.Revision != s.current.object.Name || available(r) {
			continue
		}
		a := v1alpha1.AvoidedMac{Name: mac, Until: metav1.NewTime(s.now.Add(avoidFor).Truncate(time.Second))}
		switch {
		case r.Status.Restarts >= maxFailures:
			a.Failure, a.Reason = failureOf(r)
		case late:
			a.Failure = v1alpha1.ReasonProgressDeadline
			a.Reason = fmt.Sprintf("no progress for %d s (rollout.progressDeadlineSeconds)", int(deadline(s.deployment).Seconds()))
		default:
			continue
		}
		a.Reason = status.Shorten(a.Reason, 1024)
		out[r.UID] = a
	}
	return out
}
