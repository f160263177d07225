package fleet

import (
	"encoding/json"
	"fmt"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds in bytes of JSON. etcd refuses an object of 1.5 MiB: the orders of a Mac
// have to stay below that, with its neighbours and the rest of the MacNode.
const (
	maxSpecBytes        = 32 << 10  // of a deployment's spec, which its replicas repeat
	maxAssignmentsBytes = 512 << 10 // of a Mac's assignments, without neighbours
	maxInspectionsBytes = 128 << 10 // of what a Mac is asked to inspect
)

// Oversized refuses a deployment that would make each of its replicas larger
// than the objects of a cluster can be; nil: it does not.
func Oversized(spec *v1alpha1.ModelDeploymentSpec, record *model.Record) *Refusal {
	if n := jsonBytes(spec); n > maxSpecBytes {
		return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the spec takes %d bytes as JSON, at most %d are allowed; shorten spec.cache.sharedPrefixes or spec.placement", n, maxSpecBytes)}
	}
	if n := jsonBytes(record); n > model.MaxRecordBytes {
		return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the list of the model's files takes %d bytes as JSON, at most %d are allowed; choose fewer files with spec.model.files", n, model.MaxRecordBytes)}
	}
	return nil
}

func jsonBytes(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic("fleet: API types can be encoded: " + err.Error())
	}
	return len(b)
}

// OrderBytes is about what a replica's assignment takes as JSON, and at least
// that, without its served names.
func OrderBytes(r *v1alpha1.ModelReplica) int {
	n := 2 << 10
	for _, f := range r.Spec.Model.Files {
		n += 224 + 2*stringBytes(f.Path) // also a key in managedFields
	}
	for _, p := range r.Spec.SharedPrefixes {
		n += stringBytes(p)
	}
	return n + stringBytes(r.Spec.Model.Source)
}

// stringBytes of a JSON string, of which some characters are written as \u003c.
func stringBytes(s string) int {
	n := len(s) + 3
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20, c == '<', c == '>', c == '&', c == 0xe2: // U+2028 begins so
			n += 5
		case c == '"', c == '\\':
			n++
		}
	}
	return n
}

// FullOfOrders reports whether assignments of a number of bytes leave no room for
// another one of more bytes, where they may have the room of a share of the
// MaxAssignments.
func FullOfOrders(bytes, more, share int) bool {
	return bytes+more > maxAssignmentsBytes*share/MaxAssignments
}
