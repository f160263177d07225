//go:build !race

package modeldeployment

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

var now = time.Unix(1_800_000_000, 0)

// have parses a replica: "new#0 ready", "old#1", "new#2 refused deleting".
func have(words string) v1alpha1.ModelReplica {
	f := strings.Fields(words)
	var revision string
	var slot int32
	if _, err := fmt.Sscanf(strings.Replace(f[0], "#", " ", 1), "%s %d", &revision, &slot); err != nil {
		panic(err)
	}
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: words, UID: types.UID(words), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour + time.Duration(slot)*time.Minute))}}
	r.Spec.Revision, r.Spec.Slot, r.Spec.Epoch, r.Spec.NodeName = revision, slot, 1, "mac-"+fmt.Sprint(slot)
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonLoading}
	for _, w := range f[1:] {
		switch w {
		case "ready":
			ready.Status, ready.Reason = metav1.ConditionTrue, v1alpha1.ReasonReady
		case "gone":
			ready.Reason = v1alpha1.ReasonMacGone
		case "silent":
			ready.Status, ready.Reason = metav1.ConditionUnknown, v1alpha1.ReasonMacSilent
		case "ended":
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonLoadFailed})
		case "nocanary":
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonCanaryFailed, Message: "no token"})
		case "noroom":
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoRoom})
		case "fetches", "away":
			reason := map[string]string{"fetches": v1alpha1.ReasonPrefetching, "away": v1alpha1.ReasonNoCandidates}[w]
			r.Spec.PrefetchNodeName = "mac-" + fmt.Sprint(slot)
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: reason, Message: "downloads the weights first"})
		case "nocandidates":
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoCandidates})
		case "nofetch":
			ready.Reason, ready.Message = v1alpha1.ReasonDownloadFailed, "the hub is away"
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionDownloaded, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonDownloadFailed, Message: "the hub is away"})
		case "evicted":
			r.Annotations = map[string]string{v1alpha1.AnnotationEvict: "true"}
		case "swap":
			r.Spec.Swap = true
		case "succeeds": // a replica that was given up
			r.Spec.Avoid = []v1alpha1.AvoidedMac{{Name: "mac-9", Until: metav1.NewTime(now.Add(time.Minute)), Failure: v1alpha1.ReasonCanaryFailed, Reason: "no token"}}
		case "unplaced":
			r.Spec.NodeName = ""
		case "deleting":
			r.DeletionTimestamp = &metav1.Time{Time: now}
		case "refused", "waits":
			reason := v1alpha1.ReasonInsufficientRoom
			if w == "waits" {
				reason = v1alpha1.ReasonWaiting
			}
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAdmitted, Status: metav1.ConditionFalse,
				Reason: reason, Message: "no room", LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))})
		case "OnDemand":
			r.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand
		case "loaded":
			r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionTrue})
		case "second":
			r.Spec.Epoch = 2
		}
	}
	r.Status.Conditions = append(r.Status.Conditions, ready)
	return r
}

func intOrString(text string) *intstr.IntOrString {
	v := intstr.Parse(text)
	return &v
}

func TestPlan(t *testing.T) {
	for name, tc := range map[string]struct {
		desired desiredState
		have    []string
		// create as "slot/epoch", remove as the text of the replica.
		create, remove []string
	}{
		"from nothing":                                 {desired: desiredState{count: 2, surge: 1}, create: []string{"0/1", "1/1"}},
		"all is well":                                  {desired: desiredState{count: 2, surge: 1}, have: []string{"new#0 ready", "new#1"}},
		"a free slot is filled":                        {desired: desiredState{count: 3, surge: 1}, have: []string{"new#0 ready", "new#2 ready"}, create: []string{"1/1"}},
		"not ready is removed before ready":            {desired: desiredState{count: 1}, have: []string{"new#0", "new#1 ready"}, remove: []string{"new#0"}},
		"unplaced is removed before placed":            {desired: desiredState{count: 1}, have: []string{"new#0", "new#1 unplaced"}, remove: []string{"new#1 unplaced"}},
		"the newest is removed first":                  {desired: desiredState{count: 1}, have: []string{"new#0 ready", "new#1 ready"}, remove: []string{"new#1 ready"}},
		"to zero":                                      {desired: desiredState{count: 0}, have: []string{"new#0 ready", "old#0 ready"}, remove: []string{"new#0 ready", "old#0 ready"}},
		"a terminating one counts for nothing":         {desired: desiredState{count: 1}, have: []string{"new#0 ready deleting"}, create: []string{"0/2"}},
		"a refused one is replaced":                    {desired: desiredState{count: 1}, have: []string{"new#0 refused"}, create: []string{"0/2"}, remove: []string{"new#0 refused"}},
		"a refused one on demand waits":                {desired: desiredState{count: 1}, have: []string{"new#0 OnDemand refused"}},
		"not loaded is removed before loaded":          {desired: desiredState{count: 1}, have: []string{"new#0 OnDemand ready", "new#1 OnDemand ready loaded"}, remove: []string{"new#0 OnDemand ready"}},
		"one that waits for admission is not":          {desired: desiredState{count: 1}, have: []string{"new#0 waits"}},
		"one on a gone Mac is replaced":                {desired: desiredState{count: 2}, have: []string{"new#0 gone", "new#1 ready"}, create: []string{"0/2"}, remove: []string{"new#0 gone"}},
		"a third attempt has the third epoch":          {desired: desiredState{count: 1}, have: []string{"new#0 second refused", "new#0 refused deleting"}, create: []string{"0/3"}, remove: []string{"new#0 second refused"}},
		"a rollout surges first":                       {desired: desiredState{count: 2, surge: 1}, have: []string{"old#0 ready", "old#1 ready"}, create: []string{"0/1"}},
		"old ones stay until new ones serve":           {desired: desiredState{count: 2, surge: 1}, have: []string{"old#0 ready", "old#1 ready", "new#0"}},
		"then one old is replaced by one new":          {desired: desiredState{count: 2, surge: 1}, have: []string{"old#0 ready", "old#1 ready", "new#0 ready"}, create: []string{"1/1"}, remove: []string{"old#1 ready"}},
		"the last old one is removed":                  {desired: desiredState{count: 2, surge: 1}, have: []string{"old#0 ready", "new#0 ready", "new#1 ready"}, remove: []string{"old#0 ready"}},
		"without surge one is removed first":           {desired: desiredState{count: 2, surge: 0, unavailable: 1}, have: []string{"old#0 ready", "old#1 ready"}, create: []string{"0/1"}, remove: []string{"old#1 ready"}},
		"an old one that never served may go":          {desired: desiredState{count: 1, surge: 1}, have: []string{"old#0"}, create: []string{"0/1"}, remove: []string{"old#0"}},
		"an evicted one has a successor first":         {desired: desiredState{count: 1, surge: 1}, have: []string{"new#0 ready evicted"}, create: []string{"1/1"}},
		"an evicted one serves until then":             {desired: desiredState{count: 1, surge: 1}, have: []string{"new#0 ready evicted", "new#1 unplaced noroom"}},
		"then it is removed":                           {desired: desiredState{count: 1, surge: 1}, have: []string{"new#0 ready evicted", "new#1 ready"}, remove: []string{"new#0 ready evicted"}},
		"an evicted one that serves nothing":           {desired: desiredState{count: 1, surge: 1}, have: []string{"new#0 evicted"}, create: []string{"0/2"}, remove: []string{"new#0 evicted"}},
		"two evicted, one after the other":             {desired: desiredState{count: 2}, have: []string{"new#0 ready evicted", "new#1 ready evicted"}, create: []string{"2/1"}},
		"two evicted, one successor serves":            {desired: desiredState{count: 2}, have: []string{"new#0 ready evicted", "new#1 ready evicted", "new#2 ready"}, create: []string{"1/2"}, remove: []string{"new#1 ready evicted"}},
		"fewer are wanted, the evicted one is removed": {desired: desiredState{count: 1, surge: 1}, have: []string{"new#0 ready evicted", "new#1 ready", "new#2 ready"}, remove: []string{"new#2 ready", "new#0 ready evicted"}},
		"a rollout replaces the evicted first":         {desired: desiredState{count: 2, surge: 1}, have: []string{"old#0 ready evicted", "old#1 ready", "new#0 ready"}, create: []string{"1/1"}, remove: []string{"old#0 ready evicted"}},
		"a paused rollout replaces the evicted":        {desired: desiredState{count: 1, surge: 1, paused: true, served: "old"}, have: []string{"old#0 ready evicted"}, create: []string{"1/1"}},
		"draining old ones do not stop a surge":        {desired: desiredState{count: 1, surge: 1}, have: []string{"old#0 ready", "old#1 ready deleting"}, create: []string{"0/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var existing []v1alpha1.ModelReplica
			for _, words := range tc.have {
				existing = append(existing, have(words))
			}
			tc.desired.revision, tc.desired.avoid = "new", avoidFor
			got := plan(tc.desired, existing, now)
			var create, remove []string
			for _, b := range got.create {
				create = append(create, fmt.Sprintf("%d/%d", b.slot, b.epoch))
			}
			for _, r := range got.remove {
				remove = append(remove, r.Name)
			}
			if !slices.Equal(create, tc.create) || !slices.Equal(remove, tc.remove) {
				t.Errorf("create %v, remove %v; want %v, %v", create, remove, tc.create, tc.remove)
			}
		})
	}
}

// Unplaced replicas of a large spec would fill etcd.
func TestFewReplicasWaitForAMacAtOnce(t *testing.T) {
	w := desiredState{count: 1000, surge: 1, revision: "new", avoid: avoidFor}
	var existing []v1alpha1.ModelReplica
	for i := range maxUnplaced {
		existing = append(existing, have(fmt.Sprintf("new#%d unplaced", i)))
	}
	for placed := range maxUnplaced + 1 {
		if placed > 0 {
			existing[placed-1].Spec.NodeName = "m"
		}
		if got := plan(w, existing, now); len(got.create) != placed || len(got.remove) != 0 {
			t.Errorf("%d of %d are placed: %d are created, %d removed", placed, len(existing), len(got.create), len(got.remove))
		}
	}
	if got := plan(w, nil, now); len(got.create) != maxUnplaced {
		t.Errorf("%d are created at once", len(got.create))
	}
}

// Of surplus replicas only removable ones are removed.
func TestABusyReplicaIsNotRemovedByANumber(t *testing.T) {
	existing := []v1alpha1.ModelReplica{have("new#0 ready"), have("new#1 ready"), have("new#2 ready")}
	idle := ""
	w := desiredState{revision: "new", count: 1, surge: 1, mayRemove: func(r *v1alpha1.ModelReplica) bool { return r.Name == idle }}
	if c := plan(w, existing, now); len(c.create)+len(c.remove) > 0 {
		t.Errorf("%+v, and all are busy", c)
	}
	idle = "new#0 ready"
	if c := plan(w, existing, now); len(c.create) > 0 || len(c.remove) != 1 || c.remove[0].Name != idle {
		t.Errorf("%+v, want the idle one removed alone", c)
	}
}

// A plan that is carried out leads to the desiredState, and then plans nothing more.
func TestPlanConverges(t *testing.T) {
	for name, w := range map[string]desiredState{
		"surge": {count: 3, surge: 2}, "unavailable": {count: 3, unavailable: 2}, "both": {count: 5, surge: 1, unavailable: 1}, "to one": {count: 1, surge: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.revision = "new"
			existing := []v1alpha1.ModelReplica{have("old#0 ready"), have("old#1 ready"), have("old#2"), have("old#3 gone")}
			for range 20 {
				c := plan(w, existing, now)
				if len(c.create)+len(c.remove) == 0 {
					break
				}
				ready := 0
				existing = slices.DeleteFunc(existing, func(r v1alpha1.ModelReplica) bool {
					return slices.ContainsFunc(c.remove, func(x *v1alpha1.ModelReplica) bool { return x.Name == r.Name })
				})
				for _, r := range existing {
					if r.Status.Conditions[len(r.Status.Conditions)-1].Status == metav1.ConditionTrue {
						ready++
					}
				}
				if least := min(2, w.count) - w.unavailable; ready < least {
					t.Fatalf("%d ready, want at least %d", ready, least)
				}
				for _, b := range c.create {
					existing = append(existing, have(fmt.Sprintf("new#%d ready", b.slot)))
				}
				if len(existing) > max(w.count+w.surge, 4) {
					t.Fatalf("%d replicas exist", len(existing))
				}
			}
			for _, r := range existing {
				if r.Spec.Revision != "new" {
					t.Errorf("%s is left", r.Name)
				}
			}
			if len(existing) != w.count {
				t.Errorf("%d replicas, want %d", len(existing), w.count)
			}
		})
	}
}

func TestSuccessorsAvoidTheMacThatRefused(t *testing.T) {
	told := have("new#5 ready")
	told.Spec.Avoid = []v1alpha1.AvoidedMac{
		{Name: "mac-8", Until: metav1.NewTime(now.Add(time.Minute))}, {Name: "mac-9", Until: metav1.NewTime(now.Add(-time.Second))}}
	got := plan(desiredState{revision: "new", count: 2, avoid: avoidFor}, []v1alpha1.ModelReplica{have("new#0 refused"), told}, now)
	if len(got.create) != 1 {
		t.Fatalf("%+v", got)
	}
	var names []string
	for _, a := range got.create[0].avoid {
		names = append(names, fmt.Sprintf("%s %s", a.Name, a.Until.Sub(now)))
	}
	// Refused a minute ago, so nine minutes remain; expired entries are dropped.
	if want := []string{"mac-0 9m0s", "mac-8 1m0s"}; !slices.Equal(names, want) {
		t.Errorf("avoids %v, want %v", names, want)
	}
}

// The clock of the operator that created the replica was a day ahead.
func TestARefusalIsRememberedNoLonger(t *testing.T) {
	r := have("new#0 refused")
	r.Spec.Avoid = []v1alpha1.AvoidedMac{{Name: "mac-8", Until: metav1.NewTime(now.Add(24 * time.Hour))}}
	got := plan(desiredState{revision: "new", count: 1, avoid: avoidFor}, []v1alpha1.ModelReplica{r}, now)
	for _, a := range got.create[0].avoid {
		if left := a.Until.Sub(now); left > avoidFor || len(got.create[0].avoid) != 2 {
			t.Errorf("%s is avoided for %s", a.Name, left)
		}
	}
}

// The transition's time is of the Mac's clock, which is not trusted.
func TestAMacsClockCannotStretchItsRefusal(t *testing.T) {
	for name, offset := range map[string]time.Duration{"fast": 1000 * time.Hour, "slow": -1000 * time.Hour} {
		r := have("new#0 refused")
		r.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(offset))
		got := plan(desiredState{revision: "new", count: 1, avoid: avoidFor}, []v1alpha1.ModelReplica{r}, now)
		if a := got.create[0].avoid; len(a) != 1 || a[0].Until.Sub(now) != avoidFor {
			t.Errorf("clock %s: %v", name, a)
		}
	}
}

func TestNamesTellSuccessorsFromPredecessors(t *testing.T) {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}}
	other := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "v"}}
	names := []string{
		replicaName(d, replicaToCreate{revision: "r1", slot: 0, epoch: 1}), replicaName(d, replicaToCreate{revision: "r1", slot: 1, epoch: 1}), replicaName(d, replicaToCreate{revision: "r1", slot: 0, epoch: 2}),
		replicaName(d, replicaToCreate{revision: "r2", slot: 0, epoch: 1}), replicaName(other, replicaToCreate{revision: "r1", slot: 0, epoch: 1}), replicaName(d, replicaToCreate{revision: "r1", slot: 11, epoch: 1}), replicaName(d, replicaToCreate{revision: "r1", slot: 1, epoch: 11}),
	}
	if got := slices.Compact(slices.Sorted(slices.Values(names))); len(got) != len(names) {
		t.Errorf("names collide: %v", names)
	}
	if names[0] != replicaName(d, replicaToCreate{revision: "r1", slot: 0, epoch: 1}) {
		t.Error("the same replica has two names")
	}
}

func TestFreedBytesAreAccountedOnce(t *testing.T) {
	released := have("new#0 deleting")
	released.Status.Freed.TotalBytes = 7
	released.Status.Conditions = append(released.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue})
	living := have("new#1 ready")
	living.Status.Freed.TotalBytes = 5
	draining := have("new#2 deleting")
	draining.Status.Freed.TotalBytes = 3
	world := []v1alpha1.ModelReplica{released, living, draining}

	var s v1alpha1.ModelDeploymentStatus
	for pass := range 3 {
		s.RetiredFreedBytes, s.Accounted = account(s, world)
		if total := s.RetiredFreedBytes + liveFreed(world, s.Accounted); s.RetiredFreedBytes != 7 || total != 15 || len(s.Accounted) != 1 {
			t.Errorf("pass %d: retired %d, total %d, accounted %v", pass, s.RetiredFreedBytes, total, s.Accounted)
		}
	}
	// Once it is deleted its entry is dropped, but its bytes stay.
	world = world[1:]
	s.RetiredFreedBytes, s.Accounted = account(s, world)
	if total := s.RetiredFreedBytes + liveFreed(world, s.Accounted); total != 15 || len(s.Accounted) != 0 {
		t.Errorf("after it is gone: total %d, accounted %v", total, s.Accounted)
	}
}

// TestTwoReplicasWhoseHashesBeginAlikeHaveTwoNames: the API server would refuse the second one.
func TestTwoReplicasWhoseHashesBeginAlikeHaveTwoNames(t *testing.T) {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "uid"}}
	had, pairs := map[string]string{}, 0
	for i := range int64(300_000) {
		s := &scope{deployment: d}
		name := replicaName(d, replicaToCreate{revision: "r", slot: int32(i % 1000), epoch: 1 + i/1000})
		first := s.nameFor(name)
		if before, alike := had[first]; alike {
			pairs++
			for _, siblings := range []*[]v1alpha1.ModelReplica{&s.replicas, &s.prefetchers} {
				*siblings = []v1alpha1.ModelReplica{{ObjectMeta: metav1.ObjectMeta{Name: first}}}
				if second := s.nameFor(name); second == first || second == before {
					t.Errorf("%s and %s have the names %s and %s", before, name, first, second)
				}
				*siblings = nil
			}
		}
		had[first] = name
	}
	if pairs == 0 {
		t.Error("no two hashes begin alike")
	}
}
