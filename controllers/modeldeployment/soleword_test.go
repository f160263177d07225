//go:build !race

package modeldeployment

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// reporting returns a ready Mac that reports a record for a deployment's source; nil: the source
// is unreachable.
func reporting(d *v1alpha1.ModelDeployment, name string, r *model.Record) v1alpha1.MacNode {
	mac := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mac.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	in := v1alpha1.InspectionStatus{ID: fleet.InspectionID(d), Source: d.Spec.Model.Source, State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceUnreachable}
	if r != nil {
		in.State, in.Reason, in.Model = v1alpha1.InspectionResolved, "", r
	}
	mac.Status.Inspections = []v1alpha1.InspectionStatus{in}
	return mac
}

const hub, store, local = "hf://org/model", "https://host/m.gguf", "file://team/m.gguf"

func commitOf(letter string) string { return strings.Repeat(letter, 40) }

// found returns the record of a source that these Macs vouched for.
func found(source, name, commit string, change func(*model.Record), by ...string) *model.Record {
	r := fleettest.Model(source, name, 1<<30)
	if source == store {
		r.Files[0].SHA256 = strings.Repeat("a", 64)
	}
	r.Commit, r.VouchedBy = commit, by
	if change != nil {
		change(&r)
	}
	r.Digest = model.DigestOf(r.Files)
	return &r
}

// reportedLater is what Macs report after a record was accepted.
type reportedLater struct {
	have *model.Record
	now  map[string]*model.Record // by Mac; nil: its inspection fails
	fail string                   // why; empty: unreachable
	edit func(*v1alpha1.MacNode)  // of the Mac b
	want *model.Record            // nil: a refusal, as fail says
}

func laterReports() map[string]reportedLater {
	smaller := func(r *model.Record) { r.Facts.WeightBytes = 1 << 20 }
	shorter := func(r *model.Record) { r.Files[0].Bytes, r.Facts.WeightBytes = 1<<20, 1<<20 }
	stores := func(r *model.Record) func(*v1alpha1.MacNode) {
		return func(m *v1alpha1.MacNode) { m.Status.Weights = []v1alpha1.StoredWeights{{Digest: r.Digest}} }
	}
	old, moved := found(hub, "old", commitOf("a"), nil, "a"), found(hub, "new", commitOf("b"), nil)
	later := found(hub, "old", commitOf("b"), nil)
	file, other := found(local, "file", "", nil, "a"), found(local, "other", "", nil)
	return map[string]reportedLater{
		"no Mac":                     {have: old, want: old},
		"it alone":                   {have: old, now: map[string]*model.Record{"a": old}, want: old},
		"it alone, the branch moved": {have: old, now: map[string]*model.Record{"a": moved}, want: old},
		"others fail":                {have: old, now: map[string]*model.Record{"a": old, "b": nil, "c": nil}, want: old},
		"others agree with it":       {have: old, now: map[string]*model.Record{"b": old, "c": old}, want: old},
		"one finds another":          {have: old, now: map[string]*model.Record{"a": nil, "b": moved, "c": nil}, want: old},
		"the branch moved":           {have: old, now: map[string]*model.Record{"a": old, "b": moved, "c": moved}, want: moved},
		"the branch moved, it is replaced under its name": {have: old, now: map[string]*model.Record{"a": moved, "b": moved, "c": moved}, want: moved},
		"the branch moved, it is gone":                    {have: old, now: map[string]*model.Record{"b": moved, "c": moved}, want: moved},
		"the branch moved, another reports it":            {have: old, now: map[string]*model.Record{"a": nil, "b": old, "c": moved, "d": moved}, want: old},
		"the branch moved, another has the weights":       {have: old, now: map[string]*model.Record{"a": old, "b": moved, "c": moved}, edit: stores(old), want: moved},
		"a commit that none has, of the same files":       {have: old, now: map[string]*model.Record{"a": old, "b": later, "c": later}, want: later},
		"two do not find it":                              {have: old, now: map[string]*model.Record{"a": old, "b": nil, "c": nil}, fail: v1alpha1.ReasonSourceNotFound},
		"two may not read it, it is gone":                 {have: old, now: map[string]*model.Record{"b": nil, "c": nil}, fail: v1alpha1.ReasonGatedModel},
		"one may not read it":                             {have: old, now: map[string]*model.Record{"a": old, "b": nil}, fail: v1alpha1.ReasonGatedModel, want: old},
		"two may not read it, another reports it":         {have: old, now: map[string]*model.Record{"a": old, "b": nil, "c": nil, "d": old}, fail: v1alpha1.ReasonGatedModel, want: old},
		"two reported it, both are gone":                  {have: found(hub, "old", commitOf("a"), nil, "x", "y"), now: map[string]*model.Record{"b": moved, "c": moved}, want: old},
		"a preview":                                       {have: found(hub, "old", commitOf("a"), nil, model.VoucherPreview), now: map[string]*model.Record{"b": moved, "c": moved}, want: old},
		"other files of the same commit": {have: found(hub, "evil", commitOf("b"), nil, "a"),
			now: map[string]*model.Record{"a": found(hub, "evil", commitOf("b"), nil), "b": moved, "c": moved}, want: moved},
		"other facts of the same files": {have: found(hub, "new", commitOf("a"), smaller, "a"),
			now: map[string]*model.Record{"a": found(hub, "new", commitOf("a"), smaller), "b": moved, "c": moved}, want: moved},
		"other facts of the same files, one Mac is left":       {have: found(hub, "new", commitOf("b"), smaller, "a"), now: map[string]*model.Record{"b": moved}, want: moved},
		"other facts of the same files, the one left has them": {have: found(hub, "new", commitOf("b"), smaller, "a"), now: map[string]*model.Record{"b": moved}, edit: stores(moved), want: found(hub, "new", commitOf("b"), smaller)},
		"other facts of the same files, for one other alone":   {have: found(hub, "new", commitOf("b"), smaller, "a"), now: map[string]*model.Record{"a": nil, "b": moved}, want: found(hub, "new", commitOf("b"), smaller)},
		"the branch moved, it is gone, and one Mac is left":    {have: old, now: map[string]*model.Record{"b": moved}, want: moved},
		"another size of the same digest": {have: found(store, "m", "", shorter, "a"),
			now: map[string]*model.Record{"a": found(store, "m", "", shorter), "b": found(store, "m", "", nil), "c": found(store, "m", "", nil)}, want: found(store, "m", "", nil)},
		"a file, it alone":                                 {have: file, now: map[string]*model.Record{"a": file, "b": nil}, want: file},
		"a file, it is replaced under its name":            {have: file, now: map[string]*model.Record{"a": other, "b": nil}, want: file},
		"a file, one other finds another":                  {have: file, now: map[string]*model.Record{"a": file, "b": other}, want: file},
		"a file, two others agree on another":              {have: file, now: map[string]*model.Record{"a": file, "b": other, "c": other}, want: other},
		"a file, as many agree with it":                    {have: file, now: map[string]*model.Record{"a": file, "b": other, "c": other, "d": file}, want: file},
		"a file, two do not find it":                       {have: file, now: map[string]*model.Record{"a": file, "b": nil, "c": nil}, fail: v1alpha1.ReasonSourceNotFound, want: file},
		"a file, it is gone":                               {have: file, now: map[string]*model.Record{"b": nil, "c": nil}, want: file},
		"a file, it is gone, one finds another":            {have: file, now: map[string]*model.Record{"b": other, "c": nil}, want: other},
		"a file, it is gone, another reports it":           {have: file, now: map[string]*model.Record{"b": other, "c": file}, want: file},
		"a file, it is gone, the one left has its weights": {have: file, now: map[string]*model.Record{"b": other}, edit: stores(file), want: file},
		"a file, two reported it":                          {have: found(local, "file", "", nil, "x", "y"), now: map[string]*model.Record{"b": other, "c": other}, want: found(local, "file", "", nil)},
		"a commit that none has, it is gone":               {have: found(hub, "new", commitOf("e"), nil, "a"), now: map[string]*model.Record{"b": moved, "c": moved}, want: moved},
	}
}

// TestARecordThatOneMacAloneReported: it was accepted while the source was unreachable for the
// others. It gives way to one that two Macs agree on, if it is wrong, or none can serve it any more.
func TestARecordThatOneMacAloneReported(t *testing.T) {
	for name, tc := range laterReports() {
		t.Run(name, func(t *testing.T) {
			d := &v1alpha1.ModelDeployment{}
			if d.Spec.Model.Source = tc.have.Source; d.Spec.Model.Source == store {
				d.Spec.Model.SHA256 = tc.have.Files[0].SHA256
			}
			s := &scope{deployment: d, revisions: []revision{{engine: fleet.Engine{Source: tc.have.Source, SHA256: d.Spec.Model.SHA256, Model: *tc.have}}}}
			for _, mac := range slices.Sorted(maps.Keys(tc.now)) {
				s.macs = append(s.macs, reporting(d, mac, tc.now[mac]))
				if in := s.macs[len(s.macs)-1].Status.Inspections; tc.now[mac] == nil && tc.fail != "" {
					in[0].Reason = tc.fail
				}
				if mac == "b" && tc.edit != nil {
					tc.edit(&s.macs[len(s.macs)-1])
				}
			}
			r, f := findRecord(s)
			if tc.want == nil {
				if r != nil || f.Refusal == nil || f.Refusal.Reason != tc.fail {
					t.Errorf("record %+v, %+v; want a refusal: %s", r, f, tc.fail)
				}
				return
			}
			if r == nil || r.Digest != tc.want.Digest || r.Commit != tc.want.Commit || r.Facts != tc.want.Facts || f.Refusal != nil {
				t.Errorf("record %+v, %+v; want %s of commit %s", r, f, tc.want.Digest, tc.want.Commit)
			}
		})
	}
}

// TestADeploymentThatWasAcceptedInAnOutage: a pass finds that two Macs agree on another commit than the one
// that a Mac alone reported, which is silent since: no watch reports it for a deployment that is accepted.
func TestADeploymentThatWasAcceptedInAnOutage(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "d", UID: "d"}}
	d.Spec.Model.Source = "hf://org/model"
	evil, good := fleettest.Model(d.Spec.Model.Source, "evil", 1<<30), fleettest.Model(d.Spec.Model.Source, "good", 1<<30)
	evil.Commit, good.Commit = commitOf("e"), commitOf("a")
	a, b, c := reporting(d, "a", &evil), reporting(d, "b", nil), reporting(d, "c", nil)
	build := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, d, &a, &b, &c).
		WithStatusSubresource(&v1alpha1.ModelReplica{}, &v1alpha1.ModelDeployment{})
	if err := fleet.AddIndexes(t.Context(), builderIndexer{b: build}); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: build.Build(), Clock: clocktesting.NewFakePassiveClock(now)}
	pass := func(want *model.Record, again time.Duration, by ...string) {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)})
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)})
		if err != nil {
			t.Fatal(err)
		}
		got := s.revisions[len(s.revisions)-1].engine.Model
		if got.Digest != want.Digest || !slices.Equal(got.VouchedBy, by) || again > 0 && result.RequeueAfter != again {
			t.Errorf("record %s of %v, next pass after %v; want %s of %v after %v", got.Digest, got.VouchedBy, result.RequeueAfter, want.Digest, by, again)
		}
	}
	pass(&evil, repeatInspected, "a")
	b.Status.Inspections, c.Status.Inspections = reporting(d, "b", &good).Status.Inspections, reporting(d, "c", &good).Status.Inspections
	a.Status.Inspections, a.Status.Conditions[0].Status, a.Status.Conditions[0].Reason = nil, metav1.ConditionFalse, v1alpha1.ReasonMacGone
	for _, err := range []error{r.Client.Update(t.Context(), &b), r.Client.Update(t.Context(), &c), r.Client.Update(t.Context(), &a)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pass(&good, 0, "b", "c")
	pass(&good, 0, "b", "c")
}
