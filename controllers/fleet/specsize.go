package fleet

import (
	"bytes"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Annotations of deployments that only the operator's cache has: no object is written with them,
// and those that a tenant sets are dropped.
const (
	// annotationSpecBytes is the size of the spec, in bytes of JSON.
	annotationSpecBytes = "metalfleet.dev/spec-bytes"
	// annotationRoom is what the deployment takes of SpecsRoom, or would take, in bytes.
	annotationRoom = "metalfleet.dev/spec-room"
	// annotationCrowded marks a spec for which its namespace had no room.
	annotationCrowded = "metalfleet.dev/spec-crowded"
	// annotationCompact has the mark of the cache that compacted the deployment.
	annotationCompact = "metalfleet.dev/spec-compact"
)

// leastBytes is what a deployment takes at least, with its status: one of a few bytes may have long
// messages in four conditions. statusBytes is what one takes besides a larger spec.
const (
	leastBytes  = 8 << 10
	statusBytes = 5 << 10
)

// Compact prepares a deployment for the operator's cache: it drops its metadata, records the size
// of its spec, and drops the large parts of a spec that is too large, or that is not admitted
// with the bytes that it takes in memory: a tenant may store a MiB in each of many objects. Such
// a spec is refused by OversizedDeployment, so that nothing reads these parts.
//
// An object with the mark of the cache is unchanged: client-go transforms those of a list twice, and
// the size of what is left must not replace that of the spec. No tenant knows the mark.
func Compact(d *v1alpha1.ModelDeployment, mark string, admits func(bytes int) bool) {
	if mark != "" && d.Annotations[annotationCompact] == mark {
		return
	}
	text := jsonOf(&d.Spec)
	n := len(text)
	d.ManagedFields, d.Labels, d.OwnerReferences = nil, nil, nil
	d.Annotations = map[string]string{annotationCompact: mark, annotationSpecBytes: strconv.Itoa(n)}
	shareMessages(d.Status.Conditions)
	if oversized(n) != nil {
		n = 0 // without these parts it is small
	}
	room := max(leastBytes, n+bytes.Count(text[:n], []byte{'"'})/2*perString+namesBytes(d)+statusBytes)
	d.Annotations[annotationRoom] = strconv.Itoa(room)
	admitted := admits(room)
	if !admitted {
		d.Annotations[annotationCrowded] = "true"
	}
	if n == 0 || !admitted {
		d.Spec.Placement, d.Spec.ReplicaMetadata = v1alpha1.PlacementSpec{}, v1alpha1.ReplicaMetadata{}
		d.Spec.ChatTemplate, d.Spec.PrefixCache.SharedPrefixes = "", nil
	}
	if !admitted && d.Status.UpdateRevision == "" { // it was never accepted, and holds no names
		d.Spec.ServedNames, d.Spec.Adapters, d.Spec.Routing = nil, nil, v1alpha1.RoutingSpec{}
		d.Spec.Model.Files = nil
	}
}

// shareMessages has equal messages share their memory: several conditions repeat that of one.
func shareMessages(conditions []metav1.Condition) {
	for i := range conditions {
		for _, before := range conditions[:i] {
			if before.Message == conditions[i].Message {
				conditions[i].Message = before.Message
			}
		}
	}
}

// RoomAgain reports whether there is room for a crowded deployment by now, next to all others.
func RoomAgain(d *v1alpha1.ModelDeployment, all []v1alpha1.ModelDeployment) bool {
	room := func(d *v1alpha1.ModelDeployment) int {
		n, _ := strconv.Atoi(d.Annotations[annotationRoom])
		return n
	}
	own, others := 0, 0
	for i := range all {
		switch o := &all[i]; {
		case Crowded(o):
		case o.Namespace == d.Namespace:
			own += room(o)
		default:
			others += room(o)
		}
	}
	return own+room(d) <= SpecsRoom.Of(others)
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
		return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the operator has no room for this spec: those of the namespace %s may take %s together, each at least %s, and less while those of other namespaces take much; "+
			"delete deployments there, or shorten their spec.prefixCache.sharedPrefixes, spec.chatTemplate or spec.placement; the operator tries again every few minutes", d.Namespace, v1alpha1.FormatBytes(int64(SpecsRoom.Namespace)), v1alpha1.FormatBytes(leastBytes))}
	}
	if d.Spec.ProfileName == "" {
		return nil
	}
	return Oversized(effective)
}
