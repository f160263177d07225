//go:build !race

package rehearse

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

const gib = int64(1) << 30

const source = "hf://org/small"

var (
	now   = time.Unix(1_800_000_000, 0)
	small = fleettest.Accepted(fleettest.Model(source, "small", 9*gib))
)

// mac of a capacity; the model needs about 11 GiB.
func mac(name string, capacity int64) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes = capacity, 1<<40
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	return m
}

func deployment(name string, replicas int32) *v1alpha1.ModelDeployment {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(now)}}
	d.Spec.Model.Source = source
	d.Spec.Replicas = &replicas
	return d
}

// revision holds the engine of a deployment with the small model.
func revision(t *testing.T, d *v1alpha1.ModelDeployment, name string) appsv1.ControllerRevision {
	t.Helper()
	e, refusal := fleet.Resolve(&d.Spec, small)
	if refusal != nil {
		t.Fatal(refusal)
	}
	raw, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelDeployment: d.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, v1alpha1.GroupVersion.WithKind("ModelDeployment"))}},
		Data: runtime.RawExtension{Raw: raw}, Revision: 1,
	}
}

// serves is a ready replica of a deployment.
func serves(d *v1alpha1.ModelDeployment, slot int32, revision, mac string) v1alpha1.ModelReplica {
	name := fmt.Sprintf("%s-%d", d.Name, slot)
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	r.Spec = v1alpha1.ModelReplicaSpec{DeploymentRef: v1alpha1.DeploymentReference{Name: d.Name, UID: string(d.UID)}, Slot: slot, Epoch: 1,
		Revision: revision, Model: small, ReservedBytes: 11 * gib, NodeName: mac}
	becomeReady(&r)
	return r
}

// brief is an answer in a line.
func brief(a Answer) string {
	var on []string
	for _, r := range a.Replicas {
		word := r.Mac
		if word == "" {
			word = "nowhere (" + r.Reason + ")"
		}
		if r.Stays {
			word += " stays"
		}
		on = append(on, word)
	}
	out := string(a.Verdict) + ": " + strings.Join(on, ", ")
	if len(a.Removed) > 0 {
		out += "; removes " + strings.Join(a.Removed, ", ")
	}
	return out
}

func TestWhatAManifestWouldBecome(t *testing.T) {
	two, five := deployment("m", 2), deployment("m", 5)
	known := revision(t, two, "m-1")
	// A longer cache is another engine.
	changed := deployment("m", 2)
	changed.Spec.Context.KVCacheTokens = 20000
	inPlace := changed.DeepCopy()
	inPlace.Spec.Rollout = v1alpha1.RolloutSpec{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	waits := changed.DeepCopy()
	waits.Spec.Rollout.OnInsufficientMemory = v1alpha1.InsufficientMemoryWait
	zero := deployment("m", 0)
	long := deployment("m", 1)
	long.Spec.Context.MaxTokens = 9000
	limit := deployment("m", 1)
	limit.Spec.Memory.Limit = ptr.To(resource.MustParse("40Gi"))
	running := []v1alpha1.ModelReplica{serves(two, 0, "m-1", "a"), serves(two, 1, "m-1", "b")}
	type macs = []v1alpha1.MacNode
	for name, tc := range map[string]struct {
		macs     macs
		replicas []v1alpha1.ModelReplica
		d        *v1alpha1.ModelDeployment
		want     string
	}{
		"a new one is spread":                       {macs: macs{mac("a", 30*gib), mac("b", 30*gib)}, replicas: nil, d: two, want: "Fits: a, b"},
		"reservations add up":                       {macs: macs{mac("a", 30*gib), mac("b", 15*gib)}, replicas: nil, d: five, want: "DoesNotFit: a, b, a, nowhere (NoRoom), nowhere (NoRoom)"},
		"too large for all":                         {macs: macs{mac("a", 8*gib)}, replicas: nil, d: two, want: "DoesNotFit: nowhere (TooLarge), nowhere (TooLarge)"},
		"no Mac at all":                             {macs: nil, replicas: nil, d: zero, want: "Fits: "},
		"nothing changes":                           {macs: macs{mac("a", 15*gib), mac("b", 15*gib)}, replicas: running, d: two, want: "Fits: a stays, b stays"},
		"more replicas in addition to the old":      {macs: macs{mac("a", 30*gib), mac("b", 15*gib)}, replicas: running, d: deployment("m", 3), want: "Fits: a stays, b stays, a"},
		"fewer replicas":                            {macs: macs{mac("a", 15*gib), mac("b", 15*gib)}, replicas: running, d: zero, want: "Fits: ; removes m-1, m-0"},
		"another engine, with room for both":        {macs: macs{mac("a", 30*gib), mac("b", 15*gib)}, replicas: running, d: changed, want: "Fits: a, b; removes m-1, m-0"},
		"another engine, and no room for both":      {macs: macs{mac("a", 15*gib), mac("b", 15*gib)}, replicas: running, d: changed, want: "Fits: a, b; removes m-0, m-1"},
		"no room for both, and it is waited for":    {macs: macs{mac("a", 15*gib), mac("b", 15*gib)}, replicas: running, d: waits, want: "DoesNotFit: a stays, nowhere (NoRoom), b stays"},
		"another engine in place":                   {macs: macs{mac("a", 15*gib), mac("b", 15*gib)}, replicas: running, d: inPlace, want: "Fits: b, a; removes m-1, m-0"},
		"a context that the model was not made for": {macs: macs{mac("a", 30*gib)}, replicas: nil, d: long, want: "DoesNotFit: "},
		"a limit is what is reserved":               {macs: macs{mac("a", 30*gib)}, replicas: nil, d: limit, want: "DoesNotFit: nowhere (TooLarge)"},
	} {
		t.Run(name, func(t *testing.T) {
			w := World{Now: now, Macs: tc.macs, Replicas: tc.replicas, Revisions: []appsv1.ControllerRevision{known}, Deployments: []v1alpha1.ModelDeployment{*tc.d}}
			a, err := Ask(w, Question{Deployment: tc.d, Exists: len(tc.replicas) > 0})
			if err != nil {
				t.Fatal(err)
			}
			if got := brief(a); got != tc.want {
				t.Errorf("got  %s\nwant %s\n%+v", got, tc.want, a)
			}
			if (a.Verdict == Fits) != (a.Reason == v1alpha1.ReasonAccepted) {
				t.Errorf("%s with the reason %s", a.Verdict, a.Reason)
			}
		})
	}
}

func TestASourceThatNobodyLookedAtIsNotGuessed(t *testing.T) {
	d := deployment("m", 1)
	w := World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 30*gib)}}
	a, err := Ask(w, Question{Deployment: d})
	if err != nil || a.Verdict != Unknown || a.Need != nil || a.Model != nil || len(a.Replicas) != 0 {
		t.Fatalf("got %+v, %v", a, err)
	}
	if len(a.Macs) != 1 || a.Macs[0].FreeBytes != 30*gib || !strings.Contains(strings.Join(a.Notes, "\n"), "inspected by a,") {
		t.Errorf("what can be said anyway is missing: %+v", a)
	}

	facts := small.Facts
	a, err = Ask(w, Question{Deployment: d, Facts: &facts, FactsDir: "./model"})
	if err != nil || brief(a) != "Fits: a" || a.Model.From != "the headers in ./model" || a.Need.TotalBytes <= small.Facts.WeightBytes || a.Model.Digest != "" {
		t.Errorf("with headers: %+v, %v", a, err)
	}
	d.Spec.Model.Source = "file://small.gguf"
	a, err = Ask(w, Question{Deployment: d, Facts: &facts, FactsDir: "./model"})
	if err != nil || brief(a) != "Fits: a" || !strings.Contains(strings.Join(a.Notes, "\n"), "which Macs have the files is unknown") {
		t.Errorf("files of Macs, with headers: %+v, %v", a, err)
	}
}

func TestTheRecordOfAnotherDeploymentIsUsed(t *testing.T) {
	other := deployment("other", 1)
	d := deployment("m", 1)
	w := World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 30*gib)}, Revisions: []appsv1.ControllerRevision{revision(t, other, "other-1")}}
	facts := small.Facts
	a, err := Ask(w, Question{Deployment: d, Facts: &facts, FactsDir: "./model"})
	if err != nil || brief(a) != "Fits: a" || a.Model.From != "deployment ns/other with the same source" || !slices.ContainsFunc(a.Notes, func(n string) bool { return strings.Contains(n, "--model was not needed") }) {
		t.Fatalf("got %+v, %v", a, err)
	}
	d.Spec.Model.Revision = "v2"
	if a, err = Ask(w, Question{Deployment: d}); err != nil || a.Verdict != Unknown {
		t.Errorf("another revision of the source is another source: %+v, %v", a, err)
	}
}

func TestATakenNameIsToldBeforeAllElse(t *testing.T) {
	older := deployment("older", 1)
	older.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	older.Spec.ServedNames, older.Status.ServedNames = []string{"m"}, []string{"m"}
	d := deployment("m", 1)
	w := World{Now: now, Macs: []v1alpha1.MacNode{mac("a", 30*gib)}, Deployments: []v1alpha1.ModelDeployment{*older}, Revisions: []appsv1.ControllerRevision{revision(t, older, "older-1")}}
	a, err := Ask(w, Question{Deployment: d})
	if err != nil || a.Verdict != DoesNotFit || a.Reason != v1alpha1.ReasonNameConflict || !strings.Contains(a.Message, "ns/older") {
		t.Errorf("got %+v, %v", a, err)
	}
}
