package autoscaler

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
)

var epoch = time.Unix(1_800_000_000, 0)

func replica(uid string, conditions ...string) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{}
	r.UID, r.Spec.NodeName = types.UID(uid), "mac-1"
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	return r
}

func TestWhatAStartTakes(t *testing.T) {
	loaded := []string{v1alpha1.ConditionDownloaded, v1alpha1.ConditionReady}
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	for name, tc := range map[string]struct {
		looks func(*starts)
		want  time.Duration
	}{
		"one that served before us is not measured": {looks: func(s *starts) {
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(0))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(9))
		}, want: 0},
		"from its making": {looks: func(s *starts) {
			s.look(nil, at(0))
			s.look([]v1alpha1.ModelReplica{replica("a", v1alpha1.ConditionDownloaded)}, at(1))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(8))
		}, want: 8 * time.Second},
		"within one look": {looks: func(s *starts) {
			s.look(nil, at(0))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(1))
		}, want: time.Second},
		"without its download": {looks: func(s *starts) {
			s.look([]v1alpha1.ModelReplica{replica("a")}, at(0))
			s.look([]v1alpha1.ModelReplica{replica("a")}, at(500))
			s.look([]v1alpha1.ModelReplica{replica("a", v1alpha1.ConditionDownloaded)}, at(600))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(620))
		}, want: 20 * time.Second},
		"not that it came back": {looks: func(s *starts) {
			s.look(nil, at(0))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(5))
			s.look([]v1alpha1.ModelReplica{replica("a", v1alpha1.ConditionDownloaded)}, at(100))
			s.look([]v1alpha1.ModelReplica{replica("a", loaded...)}, at(300))
		}, want: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var s starts
			if tc.looks(&s); s.last != tc.want {
				t.Errorf("a start took %s, want %s", s.last, tc.want)
			}
		})
	}
}

// To the second, and without a delay that has just begun.
func TestWhatIsWrittenIsRecalled(t *testing.T) {
	now := epoch.Add(time.Hour)
	m := scale.Memory{Decided: true, Desired: 3, Changed: epoch, LowSince: now.Add(-2 * time.Minute), Low: 2, IdleSince: now.Add(-40 * time.Second), Seen: now}
	written := Record(scale.Decision{Memory: m, Wanted: 1, Remove: []string{"b", "a"}}, 1500*time.Millisecond, now)
	if got := Recall(&written); got != m {
		t.Errorf("%+v is recalled as %+v", m, got)
	}
	if written.StartSeconds != 2 || written.RecommendedReplicas != 1 || len(written.Removable) != 2 || written.Removable[0] != "a" {
		t.Errorf("%+v", written)
	}
	m.LowSince, m.IdleSince = now.Add(-29*time.Second), now.Add(-29*time.Second)
	written = Record(scale.Decision{Memory: m}, 0, now)
	if written.LowSince != nil || written.IdleSince != nil || written.ObservedTime != nil {
		t.Errorf("a delay that has just begun is written: %+v", written)
	}
	if got := Recall(nil); got.Decided {
		t.Errorf("nothing is recalled as %+v", got)
	}
}

func TestWhatIsWorthAWrite(t *testing.T) {
	since := ptr.To(metav1.NewTime(epoch))
	before := v1alpha1.AutoscalingStatus{DesiredReplicas: 2, Reason: "Steady", LowSince: since, LowReplicas: 1, IdleSince: since}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.AutoscalingStatus)
		now    bool
	}{
		"nothing":                    {change: func(*v1alpha1.AutoscalingStatus) {}},
		"another sentence":           {change: func(a *v1alpha1.AutoscalingStatus) { a.Message = "x" }},
		"figures":                    {change: func(a *v1alpha1.AutoscalingStatus) { a.RecommendedReplicas = 9 }},
		"a delay that went on":       {change: func(a *v1alpha1.AutoscalingStatus) { a.ObservedTime = since }},
		"the number":                 {change: func(a *v1alpha1.AutoscalingStatus) { a.DesiredReplicas = 3 }, now: true},
		"those that may go":          {change: func(a *v1alpha1.AutoscalingStatus) { a.Removable = []string{"a"} }, now: true},
		"what a start took":          {change: func(a *v1alpha1.AutoscalingStatus) { a.StartSeconds = 3 }, now: true},
		"fewer are not enough":       {change: func(a *v1alpha1.AutoscalingStatus) { a.LowSince = nil }, now: true},
		"more were needed meanwhile": {change: func(a *v1alpha1.AutoscalingStatus) { a.LowReplicas = 2 }, now: true},
		"a request":                  {change: func(a *v1alpha1.AutoscalingStatus) { a.IdleSince = nil }, now: true},
	} {
		t.Run(name, func(t *testing.T) {
			next := *before.DeepCopy()
			tc.change(&next)
			if got := worth(&before, next, epoch, epoch.Add(29*time.Second)); got != tc.now {
				t.Errorf("written at once: %v, want %v", got, tc.now)
			}
			if got := worth(&before, next, epoch, epoch.Add(30*time.Second)); got != (name != "nothing") {
				t.Errorf("written after 30 s: %v", got)
			}
		})
	}
	if !worth(nil, before, epoch, epoch) {
		t.Error("the first decision is not written")
	}
}

func TestAReplicaThatNoMacHasRoomForIsStuck(t *testing.T) {
	for reason, want := range map[string]bool{v1alpha1.ReasonNoRoom: true, v1alpha1.ReasonTooLarge: true, v1alpha1.ReasonPreempting: false, v1alpha1.ReasonPending: false} {
		r := replica("a")
		r.Spec.NodeName = ""
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: reason}}
		if got := stuck(&r); got != want {
			t.Errorf("%s: stuck = %v", reason, got)
		}
	}
}

func TestWhichGatewaysServe(t *testing.T) {
	endpoint := func(uid string, ready, serving *bool) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: serving}}
		if uid != "" {
			e.TargetRef = &corev1.ObjectReference{UID: types.UID(uid)}
		}
		return e
	}
	yes, no := ptr.To(true), ptr.To(false)
	v4 := discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{endpoint("a", yes, yes), endpoint("ends", no, yes), endpoint("starts", no, no)}}
	v6 := discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{endpoint("a", yes, yes), endpoint("", nil, nil), endpoint("", no, nil)}}
	if n := Serving([]discoveryv1.EndpointSlice{v4, v6}); n != 3 {
		t.Errorf("%d serve, want a, the one that ends and the one without a name", n)
	}
	if n := Serving(nil); n != 0 {
		t.Errorf("%d of none serve", n)
	}
}

func TestThePolicyThatAUserLeavesOut(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 7}
	want := scale.Policy{Min: 1, Max: 7, Target: 4, QueueMax: 15 * time.Second, DownDelay: 5 * time.Minute, Idle: 10 * time.Minute}
	if got := Policy(d); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	d.Spec.Context.MaxConcurrentRequests = 9
	d.Spec.Autoscaling.MaxQueueSeconds, d.Spec.Autoscaling.ScaleDownDelaySeconds = ptr.To[int32](0), ptr.To[int32](0)
	want.Target, want.QueueMax, want.DownDelay = 9, 0, 0
	if got := Policy(d); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestARolloutThatWaitsForRoomGetsThatOfIdleReplicas: three serve, one of them requests, and the one of
// the new revision finds no Mac.
func TestARolloutThatWaitsForRoomGetsThatOfIdleReplicas(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	d.Status.CurrentRevision, d.Status.UpdateRevision = "old", "new"
	own := []v1alpha1.ModelReplica{replica("a", v1alpha1.ConditionReady), replica("b", v1alpha1.ConditionReady), replica("c", v1alpha1.ConditionReady), replica("d")}
	for i := range own {
		own[i].Spec.Revision = "old"
	}
	own[3].Spec.Revision, own[3].Spec.NodeName = "new", ""
	own[3].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoRoom}}
	for state, want := range map[v1alpha1.RolloutState]int{v1alpha1.RolloutWaiting: 1, v1alpha1.RolloutSurging: 3} {
		d.Status.Rollout.State = state
		m := scale.Memory{Decided: true, Desired: 3, Changed: epoch, Seen: epoch}
		var last scale.Decision
		for i := range 3600 {
			busy := func(uid string) bool { return uid == "b" }
			last = scale.Decide(Policy(d), m, scale.Figures{Requests: 1, Complete: true}, Replicas(d, own, busy), epoch.Add(time.Duration(i)*time.Second))
			m = last.Memory
		}
		if last.Desired != want || slices.Contains(last.Remove, "b") {
			t.Errorf("%s: %d replicas are wanted (%s), and %v may be removed", state, last.Desired, last.Reason, last.Remove)
		}
	}
}

// TestARolloutThatStandsKeepsNoIdleReplicas: it was halted, or paused, in the middle, and no request comes
// for a day.
func TestARolloutThatStandsKeepsNoIdleReplicas(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: ptr.To[int32](0), MaxReplicas: 8}
	d.Status.CurrentRevision, d.Status.UpdateRevision = "old", "new"
	own := []v1alpha1.ModelReplica{replica("a", v1alpha1.ConditionReady), replica("b", v1alpha1.ConditionReady), replica("c", v1alpha1.ConditionReady)}
	for i, revision := range []string{"old", "old", "new"} {
		own[i].Spec.Revision = revision
	}
	idle := func(string) bool { return false }
	for state, want := range map[v1alpha1.RolloutState]int{v1alpha1.RolloutHalted: 0, v1alpha1.RolloutPaused: 0, v1alpha1.RolloutReplacing: 3} {
		d.Status.Rollout.State = state
		last := scale.Decision{Memory: scale.Memory{Decided: true, Desired: 3, Changed: epoch, Seen: epoch}}
		for i := range 24 * 3600 {
			last = scale.Decide(Policy(d), last.Memory, scale.Figures{Complete: true}, Replicas(d, own, idle), epoch.Add(time.Duration(i)*time.Second))
		}
		if last.Desired != want {
			t.Errorf("%s: %d replicas are wanted after a day, want %d (%s: %s)", state, last.Desired, want, last.Reason, last.Message)
		}
	}
}
