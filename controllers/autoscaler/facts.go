package autoscaler

import (
	"math"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/internal/status"
)

const (
	// defaultTarget is the number of concurrent sequences if context.maxConcurrentRequests does not set
	// it.
	defaultTarget    = 4
	defaultQueueMax  = 15
	defaultDownDelay = 300
	defaultIdle      = 600
	// rememberEvery is how often the progress of a delay is written, and how old a delay
	// must be to be written at all.
	rememberEvery = 30 * time.Second
)

// Serving counts the endpoints that accept requests, including terminating ones that still
// do; an endpoint with addresses of two families is in two slices, and counts once.
func Serving(of []discoveryv1.EndpointSlice) int {
	serving := map[types.UID]bool{}
	unnamed := 0
	for i := range of {
		for _, e := range of[i].Endpoints {
			switch {
			case !ptr.Deref(e.Conditions.Serving, ptr.Deref(e.Conditions.Ready, true)):
			case e.TargetRef != nil && e.TargetRef.UID != "":
				serving[e.TargetRef.UID] = true
			default:
				unnamed++
			}
		}
	}
	return len(serving) + unnamed
}

// Policy resolves the defaults of spec.autoscaling.
func Policy(d *v1alpha1.ModelDeployment) scale.Policy {
	a := d.Spec.Autoscaling
	target := int64(a.TargetConcurrency)
	if target == 0 {
		target = fleet.Concurrency(d)
	}
	if target == 0 {
		target = defaultTarget
	}
	return scale.Policy{
		Min: int(ptr.Deref(a.MinReplicas, 1)), Max: int(a.MaxReplicas), Target: int(target),
		QueueMax: seconds(ptr.Deref(a.MaxQueueSeconds, defaultQueueMax)), UpDelay: seconds(a.ScaleUpDelaySeconds),
		DownDelay: seconds(ptr.Deref(a.ScaleDownDelaySeconds, defaultDownDelay)), Idle: seconds(ptr.Deref(a.ScaleToZeroDelaySeconds, defaultIdle)),
	}
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// Replicas returns the replicas that are not being deleted, for the decision. None is old while a
// rollout replaces none: it waits for room, which those that are not needed may have, or for a person.
func Replicas(d *v1alpha1.ModelDeployment, own []v1alpha1.ModelReplica, busy func(uid string) bool) []scale.Replica {
	var out []scale.Replica
	stands := slices.Contains([]v1alpha1.RolloutState{v1alpha1.RolloutWaiting, v1alpha1.RolloutPaused, v1alpha1.RolloutHalted}, d.Status.Rollout.State)
	for i := range own {
		r := &own[i]
		if !r.DeletionTimestamp.IsZero() {
			continue
		}
		out = append(out, scale.Replica{
			UID: string(r.UID), Placed: r.Spec.NodeName != "", Stuck: stuck(r), Ready: fleet.ReplicaReady(r), Busy: busy(string(r.UID)),
			Retiring: r.Annotations[v1alpha1.AnnotationRetiring] != "",
			Old:      d.Status.CurrentRevision != "" && r.Spec.Revision != d.Status.CurrentRevision && !stands,
		})
	}
	return out
}

// stuck reports whether placement found no Mac.
func stuck(r *v1alpha1.ModelReplica) bool {
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionPlaced)
	return r.Spec.NodeName == "" && c != nil && c.Status == metav1.ConditionFalse &&
		c.Reason != v1alpha1.ReasonPending && c.Reason != v1alpha1.ReasonPreempting
}

// Recall reads the memory that an earlier operator wrote.
func Recall(a *v1alpha1.AutoscalingStatus) scale.Memory {
	if a == nil {
		return scale.Memory{}
	}
	m := scale.Memory{Decided: true, Desired: int(a.DesiredReplicas), Low: int(a.LowReplicas)}
	for from, to := range map[*metav1.Time]*time.Time{a.LastScaleTime: &m.Changed, a.LowSince: &m.LowSince, a.IdleSince: &m.IdleSince, a.ObservedTime: &m.Seen} {
		if from != nil {
			*to = from.Time
		}
	}
	return m
}

// Record returns a decision as it is written. A delay that has just begun is left out: most
// end soon, and a lost one starts again.
func Record(d scale.Decision, start time.Duration, now time.Time) v1alpha1.AutoscalingStatus {
	out := v1alpha1.AutoscalingStatus{
		DesiredReplicas: int32(d.Desired), RecommendedReplicas: int32(min(d.Wanted, math.MaxInt32)), Reason: d.Reason, Message: d.Message,
		LastScaleTime: stamp(d.Changed), StartSeconds: int32(math.Ceil(start.Seconds())),
	}
	out.Removable = slices.Sorted(slices.Values(d.Remove))
	if old(d.LowSince, now) {
		out.LowSince, out.LowReplicas = stamp(d.LowSince), int32(d.Low)
	}
	if old(d.IdleSince, now) {
		out.IdleSince = stamp(d.IdleSince)
	}
	if out.LowSince != nil || out.IdleSince != nil {
		out.ObservedTime = stamp(now)
	}
	return out
}

func old(since, now time.Time) bool { return !since.IsZero() && now.Sub(since) >= rememberEvery }

func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return ptr.To(metav1.NewTime(t.Truncate(time.Second)))
}

// worth reports whether a status is to be written now. Changes of the actions are written
// at once, and so is what would let the next operator remove something too soon; the rest
// at most every 30 s, because figures change every second.
func worth(before *v1alpha1.AutoscalingStatus, next v1alpha1.AutoscalingStatus, written, now time.Time) bool {
	switch {
	case before == nil:
		return true
	case before.DesiredReplicas != next.DesiredReplicas, !slices.Equal(before.Removable, next.Removable), before.StartSeconds != next.StartSeconds:
		return true
	case before.LowSince != nil && (next.LowSince == nil || next.LowReplicas > before.LowReplicas):
		return true
	case before.IdleSince != nil && next.IdleSince == nil:
		return true
	}
	return now.Sub(written) >= rememberEvery && !status.Equal(*before, next)
}

// starts measures how long replicas take from their creation, or the end of their download
// if that is later, until they serve: the duration of a start with the weights on disk. All
// by the operator's clock.
type starts struct {
	last time.Duration
	// since is when each replica that does not serve was first seen, or first seen with its
	// weights; zero once it served.
	since map[types.UID]time.Time
	has   map[types.UID]bool
	// looked is when this process last looked; a replica that is new since then was created
	// since.
	looked time.Time
}

func (s *starts) look(replicas []v1alpha1.ModelReplica, now time.Time) {
	since, has := map[types.UID]time.Time{}, map[types.UID]bool{}
	for i := range replicas {
		r := &replicas[i]
		began, seen := s.since[r.UID]
		met := seen
		if !seen && !s.looked.IsZero() {
			began, met = s.looked, true
		}
		has[r.UID] = meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionDownloaded)
		switch {
		case fleet.ReplicaReady(r):
			if met && !began.IsZero() {
				s.last = now.Sub(began)
			}
			since[r.UID] = time.Time{}
		case !met || seen && !began.IsZero() && has[r.UID] && !s.has[r.UID]:
			since[r.UID] = now
		default:
			since[r.UID] = began
		}
	}
	s.since, s.has, s.looked = since, has, now
}
