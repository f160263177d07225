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
	text := keysOf(m)
	if to.Annotations[v1alpha1.AnnotationPassed] == text && contains(to.Labels, m.Labels) && contains(to.Annotations, m.Annotations) {
		return to.Labels, to.Annotations, false // nearly always: a deployment may have a thousand replicas
	}
	var before passed
	_ = json.Unmarshal([]byte(to.Annotations[v1alpha1.AnnotationPassed]), &before) // keys that cannot be read are not removed
	labels, annotations = replaced(to.Labels, before.Labels, m.Labels), replaced(to.Annotations, before.Annotations, m.Annotations)
	delete(annotations, v1alpha1.AnnotationPassed)
	if text != "" {
		annotations[v1alpha1.AnnotationPassed] = text
	}
	return labels, annotations, !maps.Equal(labels, to.Labels) || !maps.Equal(annotations, to.Annotations)
}

// keysOf returns the value of AnnotationPassed; empty if there is nothing to pass on.
func keysOf(m v1alpha1.ReplicaMetadata) string {
	if len(m.Labels)+len(m.Annotations) == 0 {
		return ""
	}
	text, _ := json.Marshal(passed{Labels: slices.Sorted(maps.Keys(m.Labels)), Annotations: slices.Sorted(maps.Keys(m.Annotations))}) // strings can be encoded
	return string(text)
}

// contains reports whether a map has all the values of another.
func contains(all map[string]string, some map[string]v1alpha1.MetadataValue) bool {
	for k, v := range some {
		if have, has := all[k]; !has || have != string(v) {
			return false
		}
	}
	return true
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
