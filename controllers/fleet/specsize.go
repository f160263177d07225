package fleet

import (
	"bytes"
	"fmt"
	"strconv"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Annotations of deployments that only the operator's cache has: no object is written with them,
// and those that a tenant sets are dropped.
const (
	// annotationSpecBytes is the size of the spec, in bytes of JSON.
	annotationSpecBytes = "metalfleet.dev/spec-bytes"
	// annotationCrowded marks a spec for which its namespace had no room.
	annotationCrowded = "metalfleet.dev/spec-crowded"
)

// SpecsRoom is for the specs of deployments and their names, without those of up to SmallSpecBytes.
var SpecsRoom = Room{Namespace: 32 << 20, All: 64 << 20, Least: 4 << 20}

// SmallSpecBytes is the size of specs of which a namespace may have any number.
const SmallSpecBytes = 4 << 10

// Compact prepares a deployment for the operator's cache: it drops its metadata, records the size
// of its spec, and drops the large parts of a spec that is too large, or that is not admitted
// with the bytes that it takes in memory: a tenant may store a MiB in each of many objects. Such
// a spec is refused by OversizedDeployment, so that nothing reads these parts.
func Compact(d *v1alpha1.ModelDeployment, admits func(bytes int) bool) {
	text := jsonOf(&d.Spec)
	n := len(text)
	d.ManagedFields, d.Labels, d.OwnerReferences = nil, nil, nil
	d.Annotations = map[string]string{annotationSpecBytes: strconv.Itoa(n)}
	if oversized(n) != nil {
		n = 0 // without these parts it is small
	}
	admitted := admits(n + bytes.Count(text[:n], []byte{'"'})/2*perString + namesBytes(d))
	if !admitted {
		d.Annotations[annotationCrowded] = "true"
	}
	if n == 0 || !admitted {
		d.Spec.Placement, d.Spec.ReplicaMetadata = v1alpha1.PlacementSpec{}, v1alpha1.ReplicaMetadata{}
		d.Spec.ChatTemplate, d.Spec.PrefixCache.SharedPrefixes = "", nil
	}
}

// Crowded reports whether a deployment has no large parts in the cache for lack of room in its
// namespace.
func Crowded(d *v1alpha1.ModelDeployment) bool { return d.Annotations[annotationCrowded] != "" }

// OversizedDeployment is Oversized for a deployment and its spec with the settings of its
// profile. It takes what Compact recorded, if there is anything.
func OversizedDeployment(d *v1alpha1.ModelDeployment, effective *v1alpha1.ModelDeploymentSpec) *Refusal {
	if refusal := oversizedNames(d); refusal != nil {
		return refusal
	}
	n, err := strconv.Atoi(d.Annotations[annotationSpecBytes])
	if err != nil {
		return Oversized(effective)
	}
	if refusal := oversized(n); refusal != nil {
		return refusal
	}
	if Crowded(d) {
		return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the operator has no room for this spec: those of more than %s in the namespace %s may take %s together, and less while those of other namespaces take much; "+
			"shorten spec.prefixCache.sharedPrefixes, spec.chatTemplate or spec.placement here, or of others and then annotate this deployment", v1alpha1.FormatBytes(SmallSpecBytes), d.Namespace, v1alpha1.FormatBytes(int64(SpecsRoom.Namespace)))}
	}
	if d.Spec.ProfileName == "" {
		return nil
	}
	return Oversized(effective)
}
