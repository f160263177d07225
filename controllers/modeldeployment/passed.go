package modeldeployment

import (
	"encoding/json"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// passed are the keys that a replica has from its deployment, as AnnotationPassed stores them.
type passed struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// passOn returns the labels and annotations of a replica with those of spec.replicaMetadata,
// and without those that it had from there before. All others stay, for example those that a
// person set. changed is false if the replica has them already.
func passOn(m v1alpha1.ReplicaMetadata, to *metav1.ObjectMeta) (labels, annotations map[string]string, changed bool) {
	var before passed
	_ = json.Unmarshal([]byte(to.Annotations[v1alpha1.AnnotationPassed]), &before) // keys that cannot be read are not removed
	now := passed{Labels: slices.Sorted(maps.Keys(m.Labels)), Annotations: slices.Sorted(maps.Keys(m.Annotations))}
	labels, annotations = replaced(to.Labels, before.Labels, m.Labels), replaced(to.Annotations, before.Annotations, m.Annotations)
	delete(annotations, v1alpha1.AnnotationPassed)
	if len(now.Labels)+len(now.Annotations) > 0 {
		text, _ := json.Marshal(now) // strings can be encoded
		annotations[v1alpha1.AnnotationPassed] = string(text)
	}
	return labels, annotations, !maps.Equal(labels, to.Labels) || !maps.Equal(annotations, to.Annotations)
}

// replaced returns a copy of a map without the old keys and with the new ones.
func replaced(of map[string]string, old []string, by map[string]v1alpha1.MetadataValue) map[string]string {
	out := maps.Clone(of)
	if out == nil {
		out = map[string]string{}
	}
	for _, k := range old {
		delete(out, k)
	}
	for k, v := range by {
		out[k] = string(v)
	}
	return out
}
