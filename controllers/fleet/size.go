package fleet

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Bounds in bytes of JSON. etcd rejects an object of 1.5 MiB: the assignments of a Mac must
// stay smaller than that, with their peers and the rest of the MacNode.
const (
	maxSpecBytes        = 32 << 10  // of a deployment's spec, which its replicas repeat
	maxAssignmentsBytes = 512 << 10 // of a Mac's assignments, without peers
	maxInspectionsBytes = 128 << 10 // of a Mac's inspections
	maxPeersBytes       = 224 << 10 // of the peers of all assignments, each of which has the same share
	maxNamesBytes       = 8 << 10   // of a deployment's names, which its status and each of its assignments repeat
)

// Oversized rejects a spec that would make each of its replicas larger than an object may be;
// nil if it does not.
func Oversized(spec *v1alpha1.ModelDeploymentSpec) *Refusal {
	return oversized(jsonBytes(spec))
}

func oversized(bytes int) *Refusal {
	if bytes <= maxSpecBytes {
		return nil
	}
	return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the spec takes %d bytes as JSON, at most %d are allowed; shorten spec.prefixCache.sharedPrefixes, spec.chatTemplate or spec.placement", bytes, maxSpecBytes)}
}

// oversizedNames is Oversized for the names of a deployment: each of its names has one with each
// adapter, and those in the assignments of a Mac are not counted where replicas are placed.
func oversizedNames(d *v1alpha1.ModelDeployment) *Refusal {
	n := namesBytes(d)
	if n <= maxNamesBytes {
		return nil
	}
	return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the names of the deployment, alone and with each adapter, take %d bytes as JSON, at most %d are allowed; use fewer or shorter spec.servedNames or names of spec.adapters", n, maxNamesBytes)}
}

// namesBytes returns what the names of a deployment take as JSON.
func namesBytes(d *v1alpha1.ModelDeployment) (n int) {
	served := d.Spec.ServedNames
	if len(served) == 0 {
		served = []string{d.Name}
	}
	for _, name := range append(slices.Clone(served), fullName(d)) {
		n += len(name) + 3
		for _, a := range d.Spec.Adapters {
			n += len(name) + len(a.Name) + 4
		}
	}
	return n
}

// FitPeers returns the first peers of an assignment that fit into its share.
func FitPeers(peers []v1alpha1.Peer) []v1alpha1.Peer {
	n := 0
	for i, p := range peers {
		if n += peerBytes(p); n > maxPeersBytes/MaxAssignments {
			return peers[:i]
		}
	}
	return peers
}

// peerBytes estimates the size of a peer with its entry in managedFields, at least.
func peerBytes(p v1alpha1.Peer) int { return 256 + 2*len(p.Mac) + len(p.Address.Host) + len(p.Grant) }

// OversizedRecord is Oversized for the record of the source.
func OversizedRecord(record *model.Record) *Refusal {
	if n := jsonBytes(record); n > model.MaxRecordBytes {
		return &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf("the list of the model's files takes %d bytes as JSON, at most %d are allowed; choose fewer files with spec.model.files", n, model.MaxRecordBytes)}
	}
	return nil
}

// Add adds figures that Macs report: a negative one counts as 0, and a sum that is too large
// stays at the maximum, because the schema refuses what overflows.
func Add(sum, figure int64) int64 { return sum + max(0, min(figure, math.MaxInt64-sum)) }

func jsonBytes(v any) int { return len(jsonOf(v)) }

func jsonOf(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("fleet: API types can be encoded: " + err.Error())
	}
	return b
}

// ReplicaBytes estimates the size of a replica's spec, labels and annotations as JSON, within a
// few KiB. Short strings count as memory, where each takes more than its JSON.
func ReplicaBytes(r *v1alpha1.ModelReplica) int {
	n := OrderBytes(r) + len(r.Spec.Avoid)*128 + placementBytes(&r.Spec.Placement)
	for _, metadata := range []map[string]string{r.Labels, r.Annotations} {
		for k, v := range metadata {
			n += 2*stringBytes(k) + stringBytes(v) // the key also in managedFields
		}
	}
	return n
}

// perString is what a string takes in memory in addition to its bytes.
const perString = 24

func placementBytes(p *v1alpha1.PlacementSpec) (n int) {
	for k, v := range p.NodeSelector {
		n += 2*perString + 2*stringBytes(k) + stringBytes(v)
	}
	for _, t := range p.Tolerations {
		n += 96 + len(t.Key) + len(t.Value)
	}
	for _, t := range p.TopologySpreadConstraints {
		n += 96 + stringBytes(t.TopologyKey)
	}
	for _, chip := range p.Chips {
		n += perString + stringBytes(chip)
	}
	if p.Affinity == nil || p.Affinity.NodeAffinity == nil {
		return n
	}
	if required := p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for _, t := range required.NodeSelectorTerms {
			n += termBytes(t)
		}
	}
	for _, t := range p.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		n += termBytes(t.Preference)
	}
	return n
}

func termBytes(t v1alpha1.NodeSelectorTerm) int {
	n := 0
	for _, list := range [][]v1alpha1.NodeSelectorRequirement{t.MatchExpressions, t.MatchFields} {
		for _, r := range list {
			n += 96 + len(r.Key)
			for _, v := range r.Values {
				n += perString + len(v)
			}
		}
	}
	return n
}

// OrderBytes estimates the size of a replica's assignment as JSON, at least, without its
// served names.
func OrderBytes(r *v1alpha1.ModelReplica) int {
	n := 2 << 10
	for _, f := range r.Spec.Model.Files {
		n += fileBytes(f)
	}
	for _, a := range r.Spec.Model.Adapters {
		n += 512 + stringBytes(a.Name) + stringBytes(a.Source)
		for _, f := range a.Files {
			n += fileBytes(f)
		}
	}
	for _, p := range r.Spec.SharedPrefixes {
		n += stringBytes(p)
	}
	return n + stringBytes(r.Spec.Model.Source) + stringBytes(r.Spec.ChatTemplate)
}

// fileBytes estimates the size of a file with its entry in managedFields, at least. The key of that
// entry is the path as JSON, in a JSON string: its escapes are escaped again.
func fileBytes(f model.File) int {
	n := 224 + stringBytes(f.Path) + len(f.Path) + 3
	for i := range len(f.Path) {
		switch c := f.Path[i]; {
		case escaped(c):
			n += 6
		case c == '"', c == '\\':
			n += 3
		}
	}
	return n
}

// stringBytes returns the size of a JSON string, in which some characters are escaped as
// \u003c.
func stringBytes(s string) int {
	n := len(s) + 3
	for i := range len(s) {
		switch c := s[i]; {
		case escaped(c):
			n += 5
		case c == '"', c == '\\':
			n++
		}
	}
	return n
}

// escaped reports whether a byte begins a character that JSON may escape by its number.
func escaped(c byte) bool {
	return c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0xe2 // the first byte of U+2028
}

// FullOfOrders reports whether assignments of a number of bytes leave no room for more
// bytes, within a share of the MaxAssignments.
func FullOfOrders(bytes, more, share int) bool {
	return bytes+more > maxAssignmentsBytes*share/MaxAssignments
}
