//go:build !race

package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

var (
	now    = time.Unix(1_800_000_000, 0)
	record = fleettest.Model("file://m.gguf", "a", 98_000_000)
)

func ready(name string, change ...func(*v1alpha1.MacNode)) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.Chip = "M2Ultra"
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	for _, c := range change {
		c(&m)
	}
	return m
}

func deployment(name, source string, age time.Duration) v1alpha1.ModelDeployment {
	d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now.Add(-age))}}
	d.Spec.Model.Source = source
	return d
}

func reports(d v1alpha1.ModelDeployment, state v1alpha1.InspectionState, reason, message string, r *model.Record) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) {
		m.Status.Inspections = append(m.Status.Inspections,
			v1alpha1.InspectionStatus{ID: InspectionID(&d), State: state, Reason: reason, Message: message, Model: r})
	}
}

func silent(m *v1alpha1.MacNode) {
	m.Status.Conditions[0].Status, m.Status.Conditions[0].Reason = metav1.ConditionUnknown, v1alpha1.ReasonMacSilent
}

func TestStateOf(t *testing.T) {
	deleted := ready("m")
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	gone, never, quiet, unjudged := ready("m"), ready("m"), ready("m", silent), ready("m")
	gone.Status.Conditions[0].Status, gone.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonMacGone
	never.Status.Conditions[0].Status, never.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonNeverReported
	unjudged.Status.Conditions = nil
	alive := ready("m")
	for name, tc := range map[string]struct {
		mac  *v1alpha1.MacNode
		want MacState
	}{"ready": {mac: &alive, want: MacReady}, "no such Mac": {want: MacGone}, "being deleted": {mac: &deleted, want: MacGone}, "gone": {mac: &gone, want: MacGone},
		"never joined": {mac: &never, want: MacGone}, "silent": {mac: &quiet, want: MacSilent}, "not judged": {mac: &unjudged, want: MacUnknown}} {
		if got := StateOf(tc.mac); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestReportsOfAnotherEpochAreNotBelieved(t *testing.T) {
	m := ready("m")
	m.Status.Assignments = []v1alpha1.AssignmentStatus{{ReplicaUID: "u", Epoch: 1}}
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	r.Spec.Epoch = 2
	if Report(&m, &r) != nil {
		t.Error("a report of epoch 1 was taken for one of epoch 2")
	}
	r.Spec.Epoch = 1
	if Report(&m, &r) == nil {
		t.Error("the report of this epoch was not found")
	}
}

func TestInspect(t *testing.T) {
	d := deployment("d", "file://m.gguf", time.Hour)
	forged := record
	forged.Digest = "sha256:" + strings.Repeat("0", 64)
	other := fleettest.Model("file://m.gguf", "b", 98_000_000)
	for name, tc := range map[string]struct {
		macs            []v1alpha1.MacNode
		digest          string
		reason, message string
	}{
		"no Mac":                      {reason: v1alpha1.ReasonNoMacs, message: "no ready Mac"},
		"only a silent Mac":           {macs: []v1alpha1.MacNode{ready("a", silent)}, reason: v1alpha1.ReasonNoMacs},
		"no report yet":               {macs: []v1alpha1.MacNode{ready("a"), ready("b")}, reason: v1alpha1.ReasonInspecting, message: "waiting for a, b"},
		"one found it":                {macs: []v1alpha1.MacNode{ready("a"), ready("b", reports(d, v1alpha1.InspectionResolved, "", "", &record))}, digest: record.Digest},
		"as many found another":       {macs: []v1alpha1.MacNode{ready("b", reports(d, v1alpha1.InspectionResolved, "", "", &other)), ready("a", reports(d, v1alpha1.InspectionResolved, "", "", &record))}, reason: v1alpha1.ReasonSourceDisputed, message: "a found "},
		"one failed, one still looks": {macs: []v1alpha1.MacNode{ready("a", reports(d, v1alpha1.InspectionFailed, v1alpha1.ReasonSourceNotFound, "no", nil)), ready("b", reports(d, v1alpha1.InspectionRunning, "", "", nil))}, reason: v1alpha1.ReasonInspecting, message: "waiting for b"},
		"all failed, the one that says most": {macs: []v1alpha1.MacNode{ready("a", reports(d, v1alpha1.InspectionFailed, v1alpha1.ReasonSourceNotFound, "no", nil)),
			ready("b", reports(d, v1alpha1.InspectionFailed, v1alpha1.ReasonInvalidModel, "cut off", nil))}, digest: "", reason: v1alpha1.ReasonInvalidModel, message: "b: cut off (the inspection failed on 2 Macs"},
		"an unknown reason has a name":        {macs: []v1alpha1.MacNode{ready("a", reports(d, v1alpha1.InspectionFailed, "NotListed", "x", nil))}, reason: v1alpha1.ReasonInspectionFailed, message: "a: x"},
		"a record that does not hold is none": {macs: []v1alpha1.MacNode{ready("a", reports(d, v1alpha1.InspectionResolved, "", "", &forged))}, reason: v1alpha1.ReasonInvalidModel, message: "does not match"},
		"resolved without a record is none":   {macs: []v1alpha1.MacNode{ready("a", reports(d, v1alpha1.InspectionResolved, "", "", nil))}, reason: v1alpha1.ReasonInvalidModel, message: "no model record"},
		"a silent Mac's failure is no verdict": {macs: []v1alpha1.MacNode{ready("a", silent, reports(d, v1alpha1.InspectionFailed, v1alpha1.ReasonSourceNotFound, "no", nil)), ready("b")}, digest: "",
			reason: v1alpha1.ReasonInspecting, message: "waiting for b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := Inspect(&d, tc.macs)
			if tc.digest != "" {
				if f.Record == nil || f.Record.Digest != tc.digest {
					t.Fatalf("%+v", f)
				}
				return
			}
			got := f.Waiting
			if f.Refusal != nil {
				got = *f.Refusal
			}
			if f.Record != nil || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v, want %s %q", got, tc.reason, tc.message)
			}
		})
	}
}

// Sources of one namespace cannot use up the inspections of every Mac.
func TestAttackSourcesThatFillTheInspections(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	var all []v1alpha1.ModelDeployment
	for i := range 2 * MaxInspections {
		d := deployment(fmt.Sprint("junk-", i), fmt.Sprintf("file://nothing-%d.gguf", i), 2*time.Hour)
		d.Namespace = "many"
		all = append(all, d)
	}
	for i := range 3 {
		d := deployment(fmt.Sprint("real-", i), fmt.Sprintf("file://real-%d.gguf", i), time.Duration(60-i)*time.Minute)
		d.Namespace = "few"
		all = append(all, d)
	}
	for _, m := range macs {
		got := Inspections(m.Name, all, macs, nil)
		if len(got) != MaxInspections {
			t.Fatalf("Mac %s has %d inspections, want %d", m.Name, len(got), MaxInspections)
		}
		var few []string
		for _, i := range got[:6] {
			if i.Namespace == "few" {
				few = append(few, i.Source)
			}
		}
		if want := []string{"file://real-0.gguf", "file://real-1.gguf", "file://real-2.gguf"}; !slices.Equal(few, want) {
			t.Errorf("Mac %s inspects %q of the later namespace among its first 6, want %q", m.Name, few, want)
		}
	}
}

// TestAMacThatLeavesIsNotAskedAndOthersHearOfIt: it drains for an hour before its MacNode is gone.
func TestAMacThatLeavesIsNotAskedAndOthersHearOfIt(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b"), ready("c")}
	d := deployment("d", "hf://owner/model", time.Hour)
	asked := Asked(&d, macs)
	i := slices.IndexFunc(macs, func(m v1alpha1.MacNode) bool { return m.Name == asked[0].Name })
	before := *macs[i].DeepCopy()
	macs[i].DeletionTimestamp, macs[i].Finalizers = &metav1.Time{Time: time.Unix(1_800_000_000, 0)}, []string{v1alpha1.FinalizerDrain}
	if again := Asked(&d, macs); len(again) != 2 || slices.ContainsFunc(again, func(m *v1alpha1.MacNode) bool { return m.Name == before.Name }) {
		t.Errorf("%d Macs are asked, and %s leaves", len(again), before.Name)
	}
	if SameStanding(&before, &macs[i]) || !Concerns(&before, &macs[i], &d) {
		t.Error("the orders of the other Mac are not derived")
	}
}

// TestSettledDeploymentsLeaveTheirInspectionsToOthers: each Mac has room for 64 inspections, and the
// oldest deployments ask first.
func TestSettledDeploymentsLeaveTheirInspectionsToOthers(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	settle := func(d *v1alpha1.ModelDeployment, status metav1.ConditionStatus) {
		d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, ObservedGeneration: d.Generation}}
	}
	var all []v1alpha1.ModelDeployment
	for i := range MaxInspections + 2 {
		d := deployment(fmt.Sprint("d-", i), fmt.Sprintf("hf://owner/model-%d", min(i, MaxInspections)), time.Duration(1000-i)*time.Hour)
		d.Namespace, d.Generation = fmt.Sprint("team-", i), 3
		if settle(&d, metav1.ConditionTrue); i == MaxInspections+1 {
			settle(&d, metav1.ConditionFalse) // another one asks for the same
		}
		all = append(all, d)
	}
	newest := func(want bool, what string) {
		t.Helper()
		for _, m := range macs {
			got := Inspections(m.Name, all, macs, nil)
			if asked := slices.ContainsFunc(got, func(in v1alpha1.Inspection) bool { return in.Source == all[MaxInspections].Spec.Model.Source }); asked != want || len(got) != MaxInspections {
				t.Errorf("%s: Mac %s has %d inspections, that of the newest source %v", what, m.Name, len(got), asked)
			}
		}
	}
	newest(true, "others are settled")
	settle(&all[MaxInspections+1], metav1.ConditionTrue)
	newest(false, "it is settled")
	all[MaxInspections+1].Generation++
	newest(true, "it has another spec")
	settle(&all[MaxInspections+1], metav1.ConditionTrue)
	all[MaxInspections+1].Spec.Prefetch.Macs = 1
	newest(true, "it prefetches")
}

// A namespace with many sources names one that another wants, too, and did so first. It waits in
// the share of the other one.
func TestAnInspectionThatNamespacesShareIsChargedToTheOneWithTheFewest(t *testing.T) {
	var all []v1alpha1.ModelDeployment
	for i, source := range []string{"hf://org/popular", "https://slow/1", "https://slow/2", "https://slow/3"} {
		d := deployment(fmt.Sprint("hog-", i), source, time.Duration(100-i)*time.Hour)
		d.Namespace = "hog"
		all = append(all, d)
	}
	for i, source := range []string{"hf://org/own", "hf://org/popular"} {
		d := deployment(fmt.Sprint("team-", i), source, time.Duration(10-i)*time.Minute)
		d.Namespace = "team"
		all = append(all, d)
	}
	var got []string
	for _, in := range Inspections("m", all, []v1alpha1.MacNode{ready("m")}, nil) {
		got = append(got, in.Namespace+" "+in.Source)
	}
	want := []string{"hog https://slow/1", "team hf://org/own", "hog https://slow/2", "team hf://org/popular", "hog https://slow/3"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Deployments with long lists of files do not take the bytes that others need.
func TestAttackLongSourcesThatFillTheInspections(t *testing.T) {
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	var all []v1alpha1.ModelDeployment
	for i := range 30 {
		d := deployment(fmt.Sprint("long-", i), fmt.Sprintf("hf://long/%d", i), 2*time.Hour)
		d.Namespace = fmt.Sprint("evil-", i%3)
		for j := range 1 + i%4*5 { // of all sizes, so that they leave no gap
			d.Spec.Model.Files = append(d.Spec.Model.Files, fmt.Sprint(j)+strings.Repeat("<", 250))
		}
		all = append(all, d)
	}
	for i := range 50 {
		d := deployment(fmt.Sprint("real-", i), fmt.Sprintf("file://real-%d.gguf", i), time.Hour)
		d.Namespace = "victim"
		all = append(all, d)
	}
	got := map[string]int{}
	for _, i := range Inspections("a", all, macs, nil) {
		got[i.Namespace]++
	}
	if got["victim"] != 50 || got["evil-0"] == 0 || got["evil-1"] == 0 || got["evil-2"] == 0 {
		t.Errorf("inspections by namespace: %v", got)
	}
}

// processorTime is what this process has used, which does not depend on how busy the machine is.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// The orders of a Mac take time in proportion to the deployments of the cluster.
func TestAttackManyDeployments(t *testing.T) {
	all := make([]v1alpha1.ModelDeployment, 40_000)
	for i := range all {
		all[i] = deployment(fmt.Sprint("d", i), "file://m", time.Hour)
		all[i].UID = types.UID(all[i].Name)
	}
	replica := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{UID: "r"}}
	replica.Spec.NodeName, replica.Spec.DeploymentRef.UID = "a", "d7"
	began := processorTime(t)
	orders := Assignments("a", []v1alpha1.ModelReplica{replica}, all)
	if took := processorTime(t) - began; took > time.Second { // comparing all deployments with each other takes several
		t.Errorf("the orders of one replica took %s", took)
	}
	if len(orders) != 1 || !slices.Equal(orders[0].ServedNames, []string{"ns/d7"}) {
		t.Errorf("orders %+v", orders)
	}
}

func TestNamesBelongToTheDeploymentThatHoldsThem(t *testing.T) {
	type claim struct {
		name         string
		age          time.Duration
		claims, held []string
		deleted      bool
	}
	for name, tc := range map[string]struct {
		others       []claim
		held         []string
		owned, kept  []string
		lost, lostTo string
	}{
		"free names":                       {owned: []string{"chat", "talk", "ns/d"}, kept: []string{"ns/d"}},
		"an older claim is not a holding":  {others: []claim{{name: "o", age: 2 * time.Hour, claims: []string{"chat"}}}, owned: []string{"chat", "talk", "ns/d"}, kept: []string{"ns/d"}},
		"a younger one may hold":           {others: []claim{{name: "o", age: time.Minute, claims: []string{"chat"}, held: []string{"chat"}}}, owned: []string{"talk", "ns/d"}, kept: []string{"ns/d"}, lost: "chat", lostTo: "o"},
		"a name that is no longer claimed": {others: []claim{{name: "o", age: 2 * time.Hour, claims: []string{"x"}, held: []string{"chat"}}}, owned: []string{"chat", "talk", "ns/d"}, kept: []string{"ns/d"}},
		"a holder that is being deleted":   {others: []claim{{name: "o", age: 2 * time.Hour, claims: []string{"chat"}, held: []string{"chat"}, deleted: true}}, owned: []string{"chat", "talk", "ns/d"}, kept: []string{"ns/d"}},
		"what it holds stays":              {held: []string{"chat", "ns/d"}, others: []claim{{name: "o", age: 2 * time.Hour, claims: []string{"chat", "talk"}}}, owned: []string{"chat", "talk", "ns/d"}, kept: []string{"chat", "ns/d"}},
		"both hold, the other is older":    {held: []string{"chat", "ns/d"}, others: []claim{{name: "o", age: 2 * time.Hour, claims: []string{"chat"}, held: []string{"chat"}}}, owned: []string{"talk", "ns/d"}, kept: []string{"ns/d"}, lost: "chat", lostTo: "o"},
		"both hold, the other is younger":  {held: []string{"chat", "ns/d"}, others: []claim{{name: "o", age: time.Minute, claims: []string{"chat"}, held: []string{"chat"}}}, owned: []string{"chat", "talk", "ns/d"}, kept: []string{"chat", "ns/d"}},
		"both hold, as old, UIDs decide":   {held: []string{"chat", "ns/d"}, others: []claim{{name: "c", age: time.Hour, claims: []string{"chat"}, held: []string{"chat"}}}, owned: []string{"talk", "ns/d"}, kept: []string{"ns/d"}, lost: "chat", lostTo: "c"},
	} {
		d := deployment("d", "file://m", time.Hour)
		d.Spec.ServedNames, d.Status.ServedNames = []string{"chat", "talk"}, tc.held
		all := []v1alpha1.ModelDeployment{d}
		for _, c := range tc.others {
			o := deployment(c.name, "file://m", c.age)
			o.Spec.ServedNames, o.Status.ServedNames = c.claims, c.held
			if c.deleted {
				o.DeletionTimestamp = &metav1.Time{Time: now}
			}
			all = append(all, o)
		}
		owned, conflicts := Names(&d, Holders(all))
		lost, lostTo := "", ""
		for _, c := range conflicts {
			lost, lostTo = lost+c.Name, lostTo+c.Owner.Name
		}
		if kept := Kept(&d, owned, true); !slices.Equal(owned, tc.owned) || !slices.Equal(kept, tc.kept) || lost != tc.lost || lostTo != tc.lostTo {
			t.Errorf("%s: owns %v, keeps %v, lost %q to %q; want %+v", name, owned, kept, lost, lostTo, tc)
		}
		if kept := Kept(&d, owned, false); !slices.Equal(kept, []string{"ns/d"}) {
			t.Errorf("%s: without a revision it keeps %v", name, kept)
		}
	}
}

// A name with a slash may be the full name of another deployment: that one owns it,
// regardless of age.
func TestNamesWithASlash(t *testing.T) {
	hub, claimant, owner := deployment("hub", "file://m", 2*time.Hour), deployment("claimant", "file://m", 3*time.Hour), deployment("owner", "file://m", time.Hour)
	hub.Spec.ServedNames = []string{"Qwen/Qwen3-8B", "ns/hub"}
	claimant.Spec.ServedNames = []string{"ns/owner", "ns/vacant"}
	claimant.Status.ServedNames = claimant.Spec.ServedNames
	all := []v1alpha1.ModelDeployment{hub, claimant, owner}
	for d, want := range map[*v1alpha1.ModelDeployment]struct{ owned, lost []string }{
		&hub:      {owned: []string{"Qwen/Qwen3-8B", "ns/hub"}},
		&claimant: {owned: []string{"ns/vacant", "ns/claimant"}, lost: []string{"ns/owner"}},
		&owner:    {owned: []string{"owner", "ns/owner"}},
	} {
		owned, conflicts := Names(d, Holders(all))
		var lost []string
		for _, c := range conflicts {
			lost = append(lost, c.Name)
		}
		if !slices.Equal(owned, want.owned) || !slices.Equal(lost, want.lost) {
			t.Errorf("%s owns %v and not %v, want %v", d.Name, owned, lost, want)
		}
	}
}

func TestAssignmentsFollowFromReplicas(t *testing.T) {
	d := deployment("d", "file://m.gguf", time.Hour)
	d.Status.ServedNames = []string{"d", "ns/d"}
	var replicas []v1alpha1.ModelReplica
	for i := range 70 {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprintf("u%02d", i)),
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(i) * time.Minute))}}
		r.Spec = v1alpha1.ModelReplicaSpec{DeploymentRef: v1alpha1.DeploymentReference{Name: "d", UID: "d"}, Epoch: 3, NodeName: "m", Model: record, ReservedBytes: 9, DrainSeconds: 7, Desired: v1alpha1.DesiredRunning}
		replicas = append(replicas, r)
	}
	replicas[1].DeletionTimestamp = &metav1.Time{Time: now}
	replicas[2].Spec.NodeName = "other"
	got := Assignments("m", replicas[:3], []v1alpha1.ModelDeployment{d})
	want := []v1alpha1.Assignment{
		{ReplicaUID: "u01", Epoch: 3, Namespace: "ns", Name: "r1", ServedNames: []string{"d", "ns/d"}, Model: record, ReservedBytes: 9, DrainSeconds: 7, Desired: v1alpha1.DesiredDrained},
		{ReplicaUID: "u00", Epoch: 3, Namespace: "ns", Name: "r0", ServedNames: []string{"d", "ns/d"}, Model: record, ReservedBytes: 9, DrainSeconds: 7, Desired: v1alpha1.DesiredRunning},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if n := len(Assignments("m", replicas, nil)); n != MaxAssignments {
		t.Errorf("%d orders, the schema allows %d", n, MaxAssignments)
	}
}

// Prefetches come after bound replicas, and end with the replica.
func TestWeightsAreOrderedAheadOfABinding(t *testing.T) {
	ahead := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "ahead", CreationTimestamp: metav1.Unix(1, 0)}}
	ahead.Spec.PrefetchNodeName, ahead.Spec.Desired, ahead.Spec.Epoch = "m", v1alpha1.DesiredRunning, 3
	ahead.Spec.Model.Digest = "sha256:new"
	bound := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "bound", CreationTimestamp: metav1.Unix(2, 0)}}
	bound.Spec.NodeName, bound.Spec.PrefetchNodeName, bound.Spec.Desired = "m", "elsewhere", v1alpha1.DesiredRunning
	told := func(mac string) (out string) {
		for _, a := range Assignments(mac, []v1alpha1.ModelReplica{ahead, bound}, nil) {
			out += fmt.Sprintf("%s/%d %s; ", a.ReplicaUID, a.Epoch, a.Desired)
		}
		return out
	}
	if got, want := told("m"), "bound/0 Running; ahead/3 Downloaded; "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := told("elsewhere"); got != "" {
		t.Errorf("a Mac that it is not bound to reports %q", got)
	}
	ahead.DeletionTimestamp = &metav1.Time{Time: time.Unix(3, 0)}
	if got, want := told("m"), "bound/0 Running; "; got != want {
		t.Errorf("deleted: %q, want %q", got, want)
	}
}

func TestInspectionsAreBoundedAndOldestFirst(t *testing.T) {
	var all []v1alpha1.ModelDeployment
	for i := range 100 {
		all = append(all, deployment(fmt.Sprint("d", i), fmt.Sprintf("file://%d.gguf", i), time.Duration(i)*time.Minute))
	}
	twin := deployment("twin", "file://99.gguf", 0)
	dying := deployment("dying", "file://dying.gguf", 1000*time.Hour)
	dying.DeletionTimestamp = &metav1.Time{Time: now}
	got := Inspections("m", append(all, twin, dying), []v1alpha1.MacNode{ready("m")}, nil)
	if len(got) != MaxInspections || got[0].Source != "file://99.gguf" || got[63].Source != "file://36.gguf" {
		t.Errorf("%d inspections from %v to %v", len(got), got[0], got[len(got)-1])
	}
	if none := Inspections("x", all, []v1alpha1.MacNode{ready("m")}, nil); none != nil {
		t.Errorf("a Mac that is not there is asked %v", none)
	}
}

func TestResolve(t *testing.T) {
	q := func(s string) *resource.Quantity { x := resource.MustParse(s); return &x }
	short := record
	short.Facts.ContextTokens = 2048
	unknown := record
	unknown.Facts.HeadSize = 0
	for name, tc := range map[string]struct {
		context v1alpha1.ContextSpec
		limit   *resource.Quantity
		record  model.Record
		want    v1alpha1.ContextLimits
		reason  string
	}{
		"defaults":                              {record: record, want: v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}},
		"a short model bounds the default":      {record: short, want: v1alpha1.ContextLimits{MaxTokens: 2048, MaxConcurrentRequests: 4, KVCacheTokens: 4096}},
		"given cache tokens bound the default":  {context: v1alpha1.ContextSpec{KVCacheTokens: 100}, record: record, want: v1alpha1.ContextLimits{MaxTokens: 100, MaxConcurrentRequests: 4, KVCacheTokens: 100}},
		"what is given stays":                   {context: v1alpha1.ContextSpec{MaxTokens: 64, MaxConcurrentRequests: 2, KVCacheTokens: 99}, record: record, want: v1alpha1.ContextLimits{MaxTokens: 64, MaxConcurrentRequests: 2, KVCacheTokens: 99}},
		"longer than the model was trained for": {context: v1alpha1.ContextSpec{MaxTokens: 2049}, record: short, reason: v1alpha1.ReasonContextTooLong},
		"unknown dimensions are refused":        {record: unknown, reason: v1alpha1.ReasonUnknownSize},
		"a limit below the need":                {limit: q("100Mi"), record: record, reason: v1alpha1.ReasonLimitTooSmall},
		"a limit above it is reserved":          {limit: q("40Gi"), record: record, want: v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := v1alpha1.ModelDeploymentSpec{Context: tc.context, Memory: v1alpha1.MemorySpec{Limit: tc.limit}}
			e, refusal := Resolve(&spec, tc.record)
			if tc.reason != "" {
				if refusal == nil || refusal.Reason != tc.reason {
					t.Fatalf("got %v, want %s", refusal, tc.reason)
				}
				return
			}
			if refusal != nil || e.Context != tc.want {
				t.Fatalf("got %+v, %v", e.Context, refusal)
			}
			need, _ := e.Estimate()
			reserved, err := e.ReservedBytes()
			if err != nil || reserved < need || tc.limit != nil && reserved != tc.limit.Value() {
				t.Errorf("reserved %d of %d (%v)", reserved, need, err)
			}
		})
	}
}

// The write queue for the disk is part of the reservation; the size on disk is not part of
// the engine, so that changing it replaces no replica.
func TestACacheOnDiskIsPromisedItsMemory(t *testing.T) {
	q := func(s string) *resource.Quantity { x := resource.MustParse(s); return &x }
	resolve := func(diskLimit *resource.Quantity, r model.Record) (Engine, *Refusal) {
		return Resolve(&v1alpha1.ModelDeploymentSpec{PrefixCache: v1alpha1.PrefixCacheSpec{DiskLimit: diskLimit}}, r)
	}
	hash := func(e Engine) string {
		h, err := e.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	without, refusal := resolve(nil, record)
	if refusal != nil || without.CacheQueueBytes != 0 || without.Cache(v1alpha1.PrefixCacheSpec{DiskLimit: q("1Gi")}) != (v1alpha1.PrefixCacheLimits{}) {
		t.Errorf("without one: %+v, %v", without, refusal)
	}
	with, refusal := resolve(q("50Gi"), record)
	if refusal != nil {
		t.Fatal(refusal)
	}
	need, _ := with.Estimate()
	bare, _ := without.Estimate()
	if with.CacheQueueBytes < 32<<20 || need < bare+with.CacheQueueBytes {
		t.Errorf("%d bytes may wait, %d are promised, %d without", with.CacheQueueBytes, need, bare)
	}
	more, _ := resolve(q("80Gi"), record)
	if hash(more) != hash(with) || hash(with) == hash(without) {
		t.Error("another size is another engine, or a cache is none")
	}
	given := with.Cache(v1alpha1.PrefixCacheSpec{DiskLimit: q("50Gi")})
	if given.DiskBytes != 50<<30 || given.QueueBytes != with.CacheQueueBytes {
		t.Errorf("a replica is given %+v", given)
	}
	if followed := Cache(v1alpha1.PrefixCacheSpec{DiskLimit: q("80Gi")}, given); followed.DiskBytes != 80<<30 || followed.QueueBytes != given.QueueBytes {
		t.Errorf("it follows to %+v", followed)
	}
	if followed := Cache(v1alpha1.PrefixCacheSpec{}, given); followed != given {
		t.Errorf("a replica that is to be replaced follows to %+v", followed)
	}
	reads := record
	reads.Facts.Task = model.Embed
	if _, refusal := resolve(q("50Gi"), reads); refusal == nil || refusal.Reason != v1alpha1.ReasonCacheUseless {
		t.Errorf("a model that remembers nothing: %v", refusal)
	}
}

// With a hand-written list of hashed fields, edits of some fields had no effect. Here every
// field of the engine changes the hash.
func TestEveryFieldOfTheEngineChangesItsHash(t *testing.T) {
	base := Engine{Source: "file://m", Model: record, Context: v1alpha1.ContextLimits{MaxTokens: 1, MaxConcurrentRequests: 1, KVCacheTokens: 1}}
	seen := map[string]string{}
	note := func(what string, e Engine) {
		h, err := e.Hash()
		if err != nil {
			t.Fatal(err)
		}
		if other, has := seen[h]; has {
			t.Errorf("%s has the hash of %s", what, other)
		}
		seen[h] = what
	}
	note("base", base)
	var walk func(path string, v reflect.Value)
	whole := base
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice:
			if path == "engine.Model.VouchedBy" || path == "engine.Model.Features" { // which another version of the same Macs reports
				return
			}
			old := v.Interface()
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			note(path, whole)
			walk(path+"[0]", v.Index(0))
			v.Set(reflect.ValueOf(old))
		case reflect.String:
			old := v.String()
			v.SetString(old + "x")
			note(path, whole)
			v.SetString(old)
		case reflect.Pointer:
			old := v.Interface()
			v.Set(reflect.ValueOf(&metav1.Time{Time: time.Unix(1_800_000_000, 0)}))
			note(path, whole)
			v.Set(reflect.ValueOf(old))
		case reflect.Int32, reflect.Int64:
			old := v.Int()
			v.SetInt(old + 1)
			note(path, whole)
			v.SetInt(old)
		default:
			t.Fatalf("%s: a kind this test does not know", path)
		}
	}
	walk("engine", reflect.ValueOf(&whole).Elem())
	if len(seen) < 20 {
		t.Errorf("only %d fields were tried", len(seen))
	}
}

// An upgrade of the Macs' software replaces no engine.
func TestWhoInspectedAModelIsNoPartOfItsEngine(t *testing.T) {
	one := Engine{Source: "file://m", Model: record, LimitBytes: 1}
	two := one
	two.Model.VouchedBy, two.Model.Features = []string{"a"}, []model.Feature{model.Chat, model.Tools}
	a, errA := one.Hash()
	b, errB := two.Hash()
	if a != b || errA != nil || errB != nil {
		t.Errorf("hashes %s and %s, %v, %v", a, b, errA, errB)
	}
	if two.Model.Features == nil || two.Model.VouchedBy == nil {
		t.Error("the engine was changed")
	}
}

func TestInspectionIDsDiffer(t *testing.T) {
	seen := map[string]v1alpha1.ModelSource{}
	in := func(namespace string, s v1alpha1.ModelSource) {
		id := InspectionID(&v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: v1alpha1.ModelDeploymentSpec{Model: s}})
		if before, ok := seen[id]; ok || len(id) != 64 {
			t.Errorf("%+v and %+v in %s are one order, or %s is short", before, s, namespace, id)
		}
		seen[id] = s
	}
	mine := &v1alpha1.SecretReference{Name: "mine"}
	in("a", v1alpha1.ModelSource{Source: "hf://org/model", SecretRef: mine})
	in("b", v1alpha1.ModelSource{Source: "hf://org/model", SecretRef: mine})
	in("a", v1alpha1.ModelSource{Source: "hf://org/model", SecretRef: &v1alpha1.SecretReference{Name: "other"}})
	in("a", v1alpha1.ModelSource{Source: "hf://org/model", Revision: "v1", SecretRef: mine})
	for _, s := range []v1alpha1.ModelSource{
		{Source: "hf://org/model"}, {Source: "hf://org/model", Revision: "v1"}, {Source: "hf://org/model", Files: []string{"v1"}},
		{Source: "hf://org/model", Revision: "v1", Files: []string{"a"}}, {Source: "hf://org/model", Files: []string{"v1", "a"}}, {Source: "hf://org/model", SHA256: "v1"},
		// No content of one entry makes it equal to another list.
		{Source: "hf://org/model", Files: []string{"a", "b"}}, {Source: "hf://org/model", Files: []string{"a\x00b"}}, {Source: "hf://org/model", Files: []string{"a1:b"}},
	} {
		in("a", s)
	}
}

// Sampling and the chat template are part of the engine, of what an undo restores, of the
// assignment, and of its size.
func TestSamplingAndTemplateReachTheMac(t *testing.T) {
	spec := v1alpha1.ModelDeploymentSpec{Sampling: v1alpha1.SamplingSpec{Temperature: "0.7"}, ChatTemplate: "{{ messages }}"}
	e, refusal := Resolve(&spec, fleettest.Model("file://m.gguf", "a", 98_000_000))
	if refusal != nil || e.Sampling != spec.Sampling || e.ChatTemplate != spec.ChatTemplate {
		t.Errorf("the engine has %+v and %q (%v)", e.Sampling, e.ChatTemplate, refusal)
	}
	text, err := SpecOf(&spec, nil).Encode()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := DecodeSpec(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var restored v1alpha1.ModelDeploymentSpec
	if stored.WriteTo(&restored); restored.Sampling != spec.Sampling || restored.ChatTemplate != spec.ChatTemplate {
		t.Errorf("an undo restores %+v and %q", restored.Sampling, restored.ChatTemplate)
	}
	r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{Sampling: spec.Sampling, ChatTemplate: spec.ChatTemplate}}
	if a := assignment(r, nil); a.Sampling != spec.Sampling || a.ChatTemplate != spec.ChatTemplate {
		t.Errorf("the Mac is assigned %+v and %q", a.Sampling, a.ChatTemplate)
	}
	small := OrderBytes(r)
	if r.Spec.ChatTemplate = strings.Repeat("x", 9000); OrderBytes(r) < small+8000 {
		t.Errorf("an assignment with a template of 9000 bytes counts as %d", OrderBytes(r))
	}
	for _, metadata := range []*map[string]string{&r.Labels, &r.Annotations} {
		before := ReplicaBytes(r)
		if *metadata = map[string]string{"team": strings.Repeat("x", 5000)}; ReplicaBytes(r) < before+5000 {
			t.Errorf("a replica with 5000 bytes of metadata more counts %d bytes more", ReplicaBytes(r)-before)
		}
	}
}

// Shared prefixes are part of the engine, and of its assignment.
func TestSharedPrefixesReachTheMac(t *testing.T) {
	record := fleettest.Model("file://m.gguf", "a", 98_000_000)
	hash := func(prefixes ...string) string {
		e, refusal := Resolve(&v1alpha1.ModelDeploymentSpec{PrefixCache: v1alpha1.PrefixCacheSpec{SharedPrefixes: prefixes}}, record)
		if refusal != nil || !slices.Equal(e.SharedPrefixes, prefixes) {
			t.Fatalf("%q: %v", e.SharedPrefixes, refusal)
		}
		h, err := e.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	if a, b, none := hash("a"), hash("b"), hash(); a == b || a == none {
		t.Error("other prefixes make no other engine")
	}
	r := &v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{SharedPrefixes: []string{"a"}}}
	if a := assignment(r, nil); !slices.Equal(a.SharedPrefixes, []string{"a"}) {
		t.Errorf("the Mac is assigned %q", a.SharedPrefixes)
	}
}

// TestClaimedByAgreesWithClaims: names of adapters too, also where a name has a colon itself.
func TestClaimedByAgreesWithClaims(t *testing.T) {
	names := []string{"d", "n/d", "a", "a:b", "a:b:c", "n/d:b", "n/d:b:c", "d:b", "d:c", "n/e:b", "a:", ":b", "ab", ""}
	for i, served := range [][]string{nil, {"a"}, {"a:b"}, {"a", "n/d"}, {"n/d:b"}} {
		for _, adapters := range [][]string{nil, {"b"}, {"b", "c"}} {
			d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "d"}}
			d.Spec.ServedNames = served
			for _, a := range adapters {
				d.Spec.Adapters = append(d.Spec.Adapters, v1alpha1.AdapterSpec{Name: a})
			}
			for _, name := range names {
				set := NamesOf([]string{"x", name})
				if got, want := set.ClaimedBy(d), slices.Contains(Claims(d), name); got != want {
					t.Errorf("row %d with the adapters %v: %q is claimed: %t, want %t", i, adapters, name, got, want)
				}
			}
		}
	}
}
