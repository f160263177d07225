package fleet

import (
	"strconv"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// annotationSpecBytes is the size of a deployment's spec, in bytes of JSON. Only the operator's
// cache has it: no object is written with it, and one that a tenant sets is dropped.
const annotationSpecBytes = "metalfleet.dev/spec-bytes"

// Compact prepares a deployment for the operator's cache: it drops its metadata, records the size
// of its spec, and drops the parts of a spec that is too large: a tenant may store a MiB in each
// of many objects. Such a spec is refused by OversizedDeployment, so that nothing reads them.
func Compact(d *v1alpha1.ModelDeployment) {
	n := jsonBytes(&d.Spec)
	d.ManagedFields, d.Labels, d.OwnerReferences = nil, nil, nil
	d.Annotations = map[string]string{annotationSpecBytes: strconv.Itoa(n)}
	if oversized(n) != nil {
		d.Spec.Placement, d.Spec.ReplicaMetadata = v1alpha1.PlacementSpec{}, v1alpha1.ReplicaMetadata{}
		d.Spec.ChatTemplate, d.Spec.PrefixCache.SharedPrefixes = "", nil
	}
}

// OversizedDeployment is Oversized for a deployment and its spec with the settings of its
// profile. It takes the size that Compact recorded, if there is one.
func OversizedDeployment(d *v1alpha1.ModelDeployment, effective *v1alpha1.ModelDeploymentSpec) *Refusal {
	n, err := strconv.Atoi(d.Annotations[annotationSpecBytes])
	if err != nil {
		return Oversized(effective)
	}
	if refusal := oversized(n); refusal != nil || d.Spec.ProfileName == "" {
		return refusal
	}
	return Oversized(effective)
}
