//go:build !race

package modeldeployment

import (
	"slices"
	"strings"
	"testing"

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
)

// The first result for its source stays, until the source itself changes.
func TestABranchThatMovedOn(t *testing.T) {
	source := v1alpha1.ModelSource{Source: "hf://org/model", Revision: "main", Files: []string{"*Q8_0.gguf"}}
	chosen := model.Record{Source: source.Source, Commit: strings.Repeat("a", 40)}
	s := &scope{deployment: &v1alpha1.ModelDeployment{}, revisions: []revision{{engine: fleet.Engine{Source: source.Source, Revision: source.Revision, Files: source.Files, Model: chosen}}}}
	s.deployment.Spec.Model = source
	if r, _ := findRecord(s); r == nil || r.Commit != chosen.Commit {
		t.Errorf("record %+v, want the one that was chosen", r)
	}
	for name, change := range map[string]func(m *v1alpha1.ModelSource){
		"another revision": func(m *v1alpha1.ModelSource) { m.Revision = "v2" },
		"other files":      func(m *v1alpha1.ModelSource) { m.Files = []string{"*Q4_0.gguf"} },
		"another source":   func(m *v1alpha1.ModelSource) { m.Source = "hf://org/other" },
	} {
		s.deployment.Spec.Model = source
		change(&s.deployment.Spec.Model)
		if r, f := findRecord(s); r != nil || f.Waiting.Reason == "" {
			t.Errorf("%s: record %+v, %+v; want a new look", name, r, f)
		}
	}
}

// TestARevisionWithTheRecordOfAnotherSource: the operator did not write it, and it would
// serve another namespace's model.
func TestARevisionWithTheRecordOfAnotherSource(t *testing.T) {
	source := v1alpha1.ModelSource{Source: "hf://org/model"}
	s := &scope{deployment: &v1alpha1.ModelDeployment{}, revisions: []revision{{engine: fleet.Engine{Source: source.Source, Model: model.Record{Source: "file://team-a/private.gguf"}}}}}
	s.deployment.Spec.Model = source
	if r, f := findRecord(s); r != nil || f.Waiting.Reason == "" {
		t.Errorf("record %+v, %+v; want a new inspection", r, f)
	}
}

// TestAttackALargeSpec: it is refused before Macs inspect its source, and its placement does
// not replace that of existing replicas.
func TestAttackALargeSpec(t *testing.T) {
	s := &scope{deployment: &v1alpha1.ModelDeployment{}}
	s.deployment.Spec.Model.Source = "hf://org/model"
	s.deployment.Spec.Placement.NodeSelector = map[string]string{"room": strings.Repeat("x", 40<<10)}
	if v := accept(s); v.condition.Reason != v1alpha1.ReasonSpecTooLarge || v.engine != nil {
		t.Errorf("%+v", v.condition)
	}
	s.replicas = []v1alpha1.ModelReplica{{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "n", UID: "r"}}}
	s.replicas[0].Spec.DrainSeconds = drainSeconds(s.deployment)
	s.replicas[0].Spec.Residency = fleet.Residency(s.deployment.Spec.Residency)
	if err := (&Reconciler{}).follow(t.Context(), s, ""); err != nil || len(s.replicas[0].Spec.Placement.NodeSelector) > 0 {
		t.Errorf("the replica follows to %v, %v", s.replicas[0].Spec.Placement, err)
	}
}

// TestAnInvalidAffinityIsRefused: an earlier schema accepted it. It is refused before Macs
// inspect its source, although a record is known, and never becomes a replica's.
func TestAnInvalidAffinityIsRefused(t *testing.T) {
	s := &scope{deployment: &v1alpha1.ModelDeployment{}}
	s.deployment.Spec.Model.Source = "hf://org/model"
	terms := []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: "room", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"a", "-1"}}}}}
	s.deployment.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{NodeSelectorTerms: terms}}}
	v := accept(s)
	if v.condition.Reason != v1alpha1.ReasonInvalidAffinity || v.condition.Status != metav1.ConditionFalse || v.engine != nil ||
		!strings.Contains(v.condition.Message, "nodeSelectorTerms[0].matchExpressions[0].values[1]") {
		t.Errorf("%+v", v.condition)
	}
	if !slices.Contains(manual(), v.condition.Reason) || !slices.Contains(independent(), v.condition.Reason) {
		t.Error("a person has to correct it, for any content of the source")
	}
	terms[0].MatchExpressions[0].Values = []string{"a"}
	if v := accept(s); v.condition.Reason != v1alpha1.ReasonNoMacs {
		t.Errorf("corrected: %+v", v.condition)
	}
}

// TestAttackTheFullNameOfAnotherDeployment: it has served names of its own, so nothing but its
// namespace and name give it NAMESPACE/NAME.
func TestAttackTheFullNameOfAnotherDeployment(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	owner := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "chat", UID: "o"}}
	thief := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "d", UID: "d"}}
	owner.Spec.ServedNames, thief.Spec.ServedNames = []string{"assistant"}, []string{"team/chat"}
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(owner, thief, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	if err := fleet.AddIndexes(t.Context(), builderIndexer{b: b}); err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: b.Build(), Clock: clocktesting.NewFakePassiveClock(now)}
	s, err := r.read(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(thief)})
	if err != nil {
		t.Fatal(err)
	}
	if v := accept(s); v.condition.Reason != v1alpha1.ReasonNameConflict || slices.Contains(v.names, "team/chat") {
		t.Errorf("%+v with the names %v", v.condition, v.names)
	}
	if again := r.rivals(t.Context(), owner.UID, namesOf(owner)); len(again) != 1 || again[0].Name != "d" {
		t.Errorf("a change of the owner concerns %v", again)
	}
}
