//go:build !race

package modelreplica

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var now = time.Unix(1_800_000_000, 0)

func bound() *v1alpha1.ModelReplica {
	r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "u"}}
	r.Spec.NodeName, r.Spec.Epoch, r.Spec.Desired = "m", 2, v1alpha1.DesiredRunning
	return r
}

func is(kind string, s metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: s, Reason: reason, Message: "says the Mac"}
}

func mac(state string, reported ...metav1.Condition) *v1alpha1.MacNode {
	m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	status := metav1.ConditionTrue
	switch state {
	case v1alpha1.ReasonMacSilent:
		status = metav1.ConditionUnknown
	case v1alpha1.ReasonMacGone:
		status = metav1.ConditionFalse
	}
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: state}}
	if reported != nil {
		m.Status.Assignments = []v1alpha1.AssignmentStatus{{ReplicaUID: "u", Epoch: 2, Conditions: reported,
			Memory: v1alpha1.EngineMemory{FootprintBytes: 159744000}, Progress: v1alpha1.Progress{Stage: v1alpha1.StageServing}}}
	}
	return m
}

func unreachable(m *v1alpha1.MacNode) *v1alpha1.MacNode {
	m.Status.Conditions = append(m.Status.Conditions, is(v1alpha1.ConditionReachable, "False", v1alpha1.ReasonMacUnreachable))
	return m
}

func TestReadyIsDerived(t *testing.T) {
	serving := is(v1alpha1.ConditionServing, "True", v1alpha1.ReasonServing)
	deleting := func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, tc := range map[string]struct {
		mac    *v1alpha1.MacNode
		change func(*v1alpha1.ModelReplica)
		status metav1.ConditionStatus
		reason string
	}{
		"serving":                        {mac: mac(v1alpha1.ReasonReporting, serving), status: "True", reason: v1alpha1.ReasonReady},
		"on demand and not loaded":       {mac: mac(v1alpha1.ReasonReporting, onDemandOf(v1alpha1.ReasonOnDemand)...), status: "True", reason: v1alpha1.ReasonOnDemand},
		"on demand and loading":          {mac: mac(v1alpha1.ReasonReporting, onDemandOf(v1alpha1.ReasonLoading)...), status: "True", reason: v1alpha1.ReasonReady},
		"on demand, but the Mac is gone": {mac: mac(v1alpha1.ReasonMacGone, onDemandOf(v1alpha1.ReasonOnDemand)...), status: "False", reason: v1alpha1.ReasonMacGone},
		"on demand and draining":         {mac: mac(v1alpha1.ReasonReporting, onDemandOf(v1alpha1.ReasonOnDemand)...), change: deleting, status: "False", reason: v1alpha1.ReasonDraining},
		"on demand, and the Mac lets nothing in": {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionDownloaded, "True", "Verified"), is(v1alpha1.ConditionLoaded, "False", v1alpha1.ReasonWaitingRoom),
			is(v1alpha1.ConditionServing, "False", v1alpha1.ReasonWaitingRoom)), status: "False", reason: v1alpha1.ReasonWaitingRoom},
		"an unclean exit is looked into": {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionLoaded, "False", v1alpha1.ReasonHostUnsettled)), status: "False", reason: v1alpha1.ReasonHostUnsettled},
		"unplaced":                       {change: func(r *v1alpha1.ModelReplica) { r.Spec.NodeName = "" }, status: "False", reason: v1alpha1.ReasonPlacing},
		"unplaced, and placement says why": {change: func(r *v1alpha1.ModelReplica) {
			r.Spec.NodeName, r.Status.Conditions = "", []metav1.Condition{is(v1alpha1.ConditionPlaced, "False", v1alpha1.ReasonNoRoom)}
		}, status: "False", reason: v1alpha1.ReasonNoRoom},
		"no such Mac":                             {status: "False", reason: v1alpha1.ReasonMacGone},
		"serving, but the Mac is silent":          {mac: mac(v1alpha1.ReasonMacSilent, serving), status: "Unknown", reason: v1alpha1.ReasonMacSilent},
		"serving, but the Mac is gone":            {mac: mac(v1alpha1.ReasonMacGone, serving), status: "False", reason: v1alpha1.ReasonMacGone},
		"serving, and no gateway reaches the Mac": {mac: unreachable(mac(v1alpha1.ReasonReporting, serving)), status: "False", reason: v1alpha1.ReasonMacUnreachable},
		"loading, and no gateway reaches the Mac": {mac: unreachable(mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionLoaded, "False", v1alpha1.ReasonLoading))), status: "False", reason: v1alpha1.ReasonLoading},
		"serving and draining":                    {mac: mac(v1alpha1.ReasonReporting, serving), change: func(r *v1alpha1.ModelReplica) { r.Spec.Desired = v1alpha1.DesiredDrained }, status: "False", reason: v1alpha1.ReasonDraining},
		"serving and deleted":                     {mac: mac(v1alpha1.ReasonReporting, serving), change: deleting, status: "False", reason: v1alpha1.ReasonDraining},
		"not reported yet":                        {mac: mac(v1alpha1.ReasonReporting), status: "False", reason: v1alpha1.ReasonWaiting},
		"a report of another epoch":               {mac: mac(v1alpha1.ReasonReporting, serving), change: func(r *v1alpha1.ModelReplica) { r.Spec.Epoch = 3 }, status: "False", reason: v1alpha1.ReasonWaiting},
		"loading":                                 {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionDownloaded, "True", "Verified"), is(v1alpha1.ConditionLoaded, "False", v1alpha1.ReasonLoading)), status: "False", reason: v1alpha1.ReasonLoading},
		"the first failure is reported":           {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionDownloaded, "False", v1alpha1.ReasonDownloadFailed), is(v1alpha1.ConditionServing, "False", v1alpha1.ReasonWaiting)), status: "False", reason: v1alpha1.ReasonDownloadFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := bound()
			if tc.change != nil {
				tc.change(r)
			}
			c := meta.FindStatusCondition(derive(r, tc.mac, now).Conditions, v1alpha1.ConditionReady)
			if c == nil || c.Status != tc.status || c.Reason != tc.reason {
				t.Errorf("%+v, want %s %s", c, tc.status, tc.reason)
			}
		})
	}
}

// onDemandOf returns a Mac's conditions of a replica that accepts requests and is not
// loaded, for a reason.
func onDemandOf(reason string) []metav1.Condition {
	return []metav1.Condition{is(v1alpha1.ConditionDownloaded, "True", v1alpha1.ReasonVerified), is(v1alpha1.ConditionAdmitted, "Unknown", v1alpha1.ReasonOnDemand),
		is(v1alpha1.ConditionLoaded, "False", reason), is(v1alpha1.ConditionServing, "True", v1alpha1.ReasonOnDemand)}
}

func TestAReplicaOnDemandSaysWhetherItIsLoaded(t *testing.T) {
	m := mac(v1alpha1.ReasonReporting, onDemandOf(v1alpha1.ReasonOnDemand)...)
	m.Status.Assignments[0].Memory = v1alpha1.EngineMemory{}
	m.Status.Assignments[0].Freed.TotalBytes = 159744000
	if s := derive(bound(), m, now).Summary; s.Progress != "On demand, not loaded" || s.Memory != "0" || s.Freed != "152.3 MiB" {
		t.Errorf("summary %+v", s)
	}
	m = mac(v1alpha1.ReasonReporting, onDemandOf(v1alpha1.ReasonLoading)...)
	m.Status.Assignments[0].Progress = v1alpha1.Progress{Stage: v1alpha1.StageLoading, BytesDone: 1, BytesTotal: 4}
	if s := derive(bound(), m, now).Summary; s.Progress != "Loading 25% (1 B of 4 B)" {
		t.Errorf("summary %+v", s)
	}
	m = mac(v1alpha1.ReasonMacSilent, onDemandOf(v1alpha1.ReasonOnDemand)...)
	if s := derive(bound(), m, now).Summary; s.Progress != "On demand, not loaded (stale)" {
		t.Errorf("summary %+v", s)
	}
}

func TestEveryFigureOfTheMacIsCopied(t *testing.T) {
	m := mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionServing, "True", v1alpha1.ReasonServing))
	want := v1alpha1.EngineMemory{ReservedBytes: 1, LimitBytes: 2, FootprintBytes: 3, WeightsBytes: 4, KVInUseBytes: 5, ActiveBytes: 6, AccountedBytes: 7, PooledBytes: 8}
	m.Status.Assignments[0].Memory = want
	if got := derive(bound(), m, now).Memory; got != want {
		t.Errorf("copied %+v, want %+v", got, want)
	}
	failure := &v1alpha1.EngineFailure{Reason: v1alpha1.ReasonCanaryFailed, Message: "no token"}
	m.Status.Assignments[0].LastFailure = failure
	next := derive(bound(), m, now)
	if next.LastFailure != failure {
		t.Errorf("its last failure is %v", next.LastFailure)
	}
	r := bound()
	r.Status = next
	if got := derive(r, mac(v1alpha1.ReasonMacSilent), now).LastFailure; got != failure {
		t.Errorf("of a silent Mac it is %v", got)
	}
}

// Other reports of the Mac are ignored; when the prefetch ends, its status is removed.
func TestAReplicaTellsOfWeightsThatAreFetchedBeforeItHasAMac(t *testing.T) {
	r := bound()
	r.Spec.NodeName, r.Spec.PrefetchNodeName = "", "m"
	failed := mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionDownloaded, "False", v1alpha1.ReasonDownloadFailed), is(v1alpha1.ConditionServing, "True", v1alpha1.ReasonServing),
		is(v1alpha1.ConditionReleased, "True", v1alpha1.ReasonReleased))
	next := derive(r, failed, now)
	ready, downloaded := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionDownloaded)
	if ready.Status != "False" || ready.Reason != v1alpha1.ReasonDownloadFailed || !strings.Contains(ready.Message, "m downloads the weights first: says the Mac") ||
		downloaded == nil || len(next.Conditions) != 2 || next.Progress.Stage != v1alpha1.StageServing || next.Memory.FootprintBytes != 0 {
		t.Errorf("%+v", next)
	}
	next = derive(r, mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionDownloaded, "True", v1alpha1.ReasonVerified)), now)
	if c := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionReady); c.Reason != v1alpha1.ReasonPlacing {
		t.Errorf("fetched: %+v", c)
	}
	r.Status, r.Spec.PrefetchNodeName = next, ""
	next = derive(r, nil, now)
	if meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionDownloaded) != nil || next.Progress.Stage != "" {
		t.Errorf("let go: %+v", next)
	}
}

func TestReleaseIsTheMacsWordOrTheFence(t *testing.T) {
	for name, tc := range map[string]struct {
		mac      *v1alpha1.MacNode
		unbound  bool
		living   bool
		released bool
		known    bool
	}{
		"the Mac says so":                        {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionReleased, "True", "Released")), released: true, known: true},
		"the Mac still drains":                   {mac: mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionServing, "True", "Serving"))},
		"the Mac has not answered":               {mac: mac(v1alpha1.ReasonReporting)},
		"the Mac is silent":                      {mac: mac(v1alpha1.ReasonMacSilent, is(v1alpha1.ConditionServing, "True", "Serving"))},
		"the Mac is gone":                        {mac: mac(v1alpha1.ReasonMacGone, is(v1alpha1.ConditionServing, "True", "Serving")), released: true},
		"it said so and is gone":                 {mac: mac(v1alpha1.ReasonMacGone, is(v1alpha1.ConditionReleased, "True", "Released")), released: true, known: true},
		"the MacNode is deleted":                 {released: true},
		"it was never bound":                     {unbound: true, released: true},
		"its Mac is gone, but it is not deleted": {mac: mac(v1alpha1.ReasonMacGone, is(v1alpha1.ConditionServing, "True", "Serving")), living: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := bound()
			r.Status.Freed.TotalBytes = 5
			if tc.unbound {
				r.Spec.NodeName = ""
			}
			if !tc.living {
				r.DeletionTimestamp = &metav1.Time{Time: now}
			}
			if tc.mac != nil && tc.mac.Status.Assignments != nil {
				tc.mac.Status.Assignments[0].Freed = v1alpha1.Freed{TotalBytes: 9, Bytes: ptr.To[int64](4), HostCheck: v1alpha1.HostCheckVerified}
			}
			got := derive(r, tc.mac, now)
			if released := meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionReleased); released != tc.released {
				t.Errorf("released %v, want %v", released, tc.released)
			}
			if tc.released && tc.known != (got.Freed.HostCheck == v1alpha1.HostCheckVerified && got.Freed.Bytes != nil) {
				t.Errorf("freed %+v", got.Freed)
			}
			if tc.unbound && (got.Freed.HostCheck != "" || got.Summary.Freed != "5 B") {
				t.Errorf("freed %+v of a replica that never had a Mac, shown as %q", got.Freed, got.Summary.Freed)
			}
			if tc.released && !tc.known && !tc.unbound && (got.Freed.HostCheck != v1alpha1.HostCheckIndeterminate || got.Freed.Bytes != nil || got.Freed.TotalBytes < 5) {
				t.Errorf("freed %+v, want Indeterminate without a figure, and the total so far", got.Freed)
			}
		})
	}
}

func TestFiguresOfASilentMacAreMarked(t *testing.T) {
	m := mac(v1alpha1.ReasonMacSilent, is(v1alpha1.ConditionServing, "True", "Serving"))
	if s := derive(bound(), m, now).Summary; s.Memory != "152.3 MiB (stale)" || !strings.HasSuffix(s.Progress, "(stale)") {
		t.Errorf("summary %+v", s)
	}
	m = mac(v1alpha1.ReasonReporting, is(v1alpha1.ConditionServing, "True", "Serving"))
	if s := derive(bound(), m, now).Summary; s.Memory != "152.3 MiB" || s.Progress != "Serving" {
		t.Errorf("summary %+v", s)
	}
}

func TestReservedMemoryIsReadable(t *testing.T) {
	r := bound()
	r.Spec.ReservedBytes = 159744000
	if s := derive(r, mac(v1alpha1.ReasonReporting), now).Summary; s.Reserved != "152.3 MiB" {
		t.Errorf("summary %+v", s)
	}
}

func TestProgressIsReadable(t *testing.T) {
	p := v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: 40055603, BytesTotal: 97622426, ETASeconds: ptr.To[int64](4)}
	if got := string(p.Stage) + progress(p); got != "Downloading 41% (38.2 MiB of 93.1 MiB, 4 s)" {
		t.Errorf("got %q", got)
	}
	if got := progress(v1alpha1.Progress{Stage: v1alpha1.StageServing}); got != "" {
		t.Errorf("got %q", got)
	}
}
