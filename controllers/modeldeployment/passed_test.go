//go:build !race

package modeldeployment

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

type values = map[string]v1alpha1.MetadataValue

// A history of what a deployment states, and what its replica has after each step.
func TestMetadataFollowsAndLeavesWhatIsOfOthers(t *testing.T) {
	meta := metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelDeployment: "d", "person": "x"}, Annotations: map[string]string{v1alpha1.AnnotationEvict: "true"}}
	step := func(m v1alpha1.ReplicaMetadata, changes bool, labels, annotations map[string]string) {
		t.Helper()
		before := meta.DeepCopy()
		l, a, changed := passOn(m, &meta)
		if !maps.Equal(meta.Labels, before.Labels) || !maps.Equal(meta.Annotations, before.Annotations) {
			t.Error("it changed the replica")
		}
		meta.Labels, meta.Annotations = l, a
		rest := maps.Clone(a)
		delete(rest, v1alpha1.AnnotationPassed)
		labels[v1alpha1.LabelDeployment], labels["person"], annotations[v1alpha1.AnnotationEvict] = "d", "x", "true"
		if changed != changes || !maps.Equal(l, labels) || !maps.Equal(rest, annotations) {
			t.Errorf("changed %t, labels %v, annotations %v, want %t, %v, %v", changed, l, rest, changes, labels, annotations)
		}
	}
	type texts = map[string]string
	step(v1alpha1.ReplicaMetadata{}, false, texts{}, texts{})
	first := v1alpha1.ReplicaMetadata{Labels: values{"team": "a", "tier": "b"}, Annotations: values{"note": "c"}}
	step(first, true, texts{"team": "a", "tier": "b"}, texts{"note": "c"})
	step(first, false, texts{"team": "a", "tier": "b"}, texts{"note": "c"})
	step(v1alpha1.ReplicaMetadata{Labels: values{"team": "z"}}, true, texts{"team": "z"}, texts{})
	step(v1alpha1.ReplicaMetadata{Annotations: values{"team": "z"}}, true, texts{}, texts{"team": "z"})
	step(v1alpha1.ReplicaMetadata{}, true, texts{}, texts{})
	if _, has := meta.Annotations[v1alpha1.AnnotationPassed]; has {
		t.Error("the list of keys stays")
	}
}
