//go:build !race

package controllers_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// git applies a manifest, as a tool does that owns what it states and nothing else.
func (s *schema) git(owner, spec string) *unstructured.Unstructured {
	s.t.Helper()
	u := s.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec: " + spec)
	s.want(s.c.Apply(s.ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner)), "")
	live := u.DeepCopy()
	s.want(s.c.Get(s.ctx, client.ObjectKeyFromObject(u), live), "")
	return live
}

// The defaults of absent fields are in the object, except those that depend on the model, a
// profile or another field: status.context has these.
func TestDefaultsAreInTheObject(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ spec, want string }{
		"a model alone": {"{model: {source: 'file://a'}}", `{"model": {"source": "file://a"}, "replicas": 1, "revisionHistoryLimit": 10, "residency": {"policy": "Always"}, "placement": {"strategy": "Spread"},
			"rollout": {"maxSurge": 1, "maxUnavailable": 0, "onInsufficientMemory": "Swap", "drainSeconds": 600, "progressDeadlineSeconds": 600}}`},
		"nested objects": {"{model: {source: 'file://a'}, replicas: 2, rollout: {maxSurge: 25%}, residency: {policy: OnDemand}, placement: {topologySpreadConstraints: [{topologyKey: rack}]}}",
			`{"model": {"source": "file://a"}, "replicas": 2, "revisionHistoryLimit": 10, "residency": {"policy": "OnDemand"},
			"placement": {"strategy": "Spread", "topologySpreadConstraints": [{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
			"rollout": {"maxSurge": "25%", "maxUnavailable": 0, "onInsufficientMemory": "Swap", "drainSeconds": 600, "progressDeadlineSeconds": 600}}`},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			live := sub.git("git", tc.spec)
			var want map[string]any
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(live.Object["spec"])
			if err != nil {
				t.Fatal(err)
			}
			var have map[string]any
			if err := json.Unmarshal(got, &have); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, have); diff != "" {
				t.Error(diff)
			}
			_ = s.c.Delete(s.ctx, live)
		})
	}
}

// The schema's defaults are those of the operator, which also reads objects without them.
func TestDefaultsOfTheSchemaAreTheOperators(t *testing.T) {
	s := newSchema(t)
	s.git("git", "{model: {source: 'file://a'}, autoscaling: {maxReplicas: 4}}")
	var live v1alpha1.ModelDeployment
	s.want(s.c.Get(s.ctx, client.ObjectKey{Namespace: s.ns, Name: "d"}, &live), "")
	bare := v1alpha1.ModelDeployment{Spec: v1alpha1.ModelDeploymentSpec{Autoscaling: &v1alpha1.AutoscalingSpec{MaxReplicas: 4}}}
	if got, want := autoscaler.Policy(&live), autoscaler.Policy(&bare); got != want || live.Spec.Autoscaling.MinReplicas == nil || live.Spec.Autoscaling.MaxQueueSeconds == nil || live.Spec.Autoscaling.ScaleDownDelaySeconds == nil {
		t.Errorf("autoscaling %+v means %+v, want %+v", live.Spec.Autoscaling, got, want)
	}
	if got, want := fleet.Residency(live.Spec.Residency), fleet.Residency(bare.Spec.Residency); got != want {
		t.Errorf("residency %+v, want %+v", got, want)
	}
	for wanted := range 5 {
		surge, unavailable := live.Spec.Rollout.Bounds(wanted)
		if s, u := bare.Spec.Rollout.Bounds(wanted); s != surge || u != unavailable {
			t.Errorf("of %d replicas, %d more and %d fewer; want %d and %d", wanted, surge, unavailable, s, u)
		}
	}
	r := live.Spec.Rollout
	if *r.DrainSeconds != v1alpha1.DefaultDrainSeconds || *r.ProgressDeadlineSeconds != v1alpha1.DefaultProgressDeadlineSeconds || *live.Spec.RevisionHistoryLimit != v1alpha1.DefaultRevisionHistoryLimit {
		t.Errorf("%+v and %d revisions", r, *live.Spec.RevisionHistoryLimit)
	}
}

// A tool that applies the same manifest again changes nothing and sees no difference, and
// others may set what it does not state.
func TestDefaultsFightNoOne(t *testing.T) {
	s := newSchema(t)
	const manifest = "{model: {source: 'file://a'}, rollout: {maxSurge: 2}}"
	first := s.git("git", manifest)
	second := s.git("git", manifest) // stores the default of status, which a creation cannot
	if third := s.git("git", manifest); third.GetResourceVersion() != second.GetResourceVersion() || third.GetGeneration() != first.GetGeneration() {
		t.Errorf("applied again, it changed from %s to %s, generation %d to %d", second.GetResourceVersion(), third.GetResourceVersion(), first.GetGeneration(), third.GetGeneration())
	}
	seconds := func(u *unstructured.Unstructured) int64 {
		n, _, _ := unstructured.NestedInt64(u.Object, "spec", "rollout", "drainSeconds")
		return n
	}
	// kubectl apply without --server-side merges what the manifest states.
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"model":{"source":"file://a"},"rollout":{"maxSurge":2}}}`))
	merged := first.DeepCopy()
	s.want(s.c.Patch(s.ctx, merged, patch), "")
	if merged.GetGeneration() != first.GetGeneration() {
		t.Errorf("merged again, it changed to generation %d of %d", merged.GetGeneration(), first.GetGeneration())
	}
	if n := seconds(s.git("tuner", "{rollout: {drainSeconds: 5}}")); n != 5 {
		t.Errorf("another owner set 5 s, and there are %d", n)
	}
	if n := seconds(s.git("git", manifest)); n != 5 {
		t.Errorf("the first owner applied again, and 5 s became %d", n)
	}
	if n := seconds(s.git("tuner", "{}")); n != v1alpha1.DefaultDrainSeconds {
		t.Errorf("no one sets it any more, and there are %d s", n)
	}
	// Fields that depend on a field with a default can be set and removed with it.
	s.git("git", "{model: {source: 'file://a'}, residency: {policy: OnDemand, idleSeconds: 5}}")
	if live := s.git("git", "{model: {source: 'file://a'}, rollout: {maxUnavailable: 1}}"); live.GetName() != "d" {
		t.Error("it is not applied")
	}
}
