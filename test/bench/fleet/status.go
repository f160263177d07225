package fleet

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// status is what the Mac reports now. The caller holds the lock.
func (m *mac) status() *v1alpha1.MacNodeStatus {
	s := &v1alpha1.MacNodeStatus{
		ObservedGeneration: m.orders.Generation, AgentVersion: "bench", BootID: "bench", Chip: "M2Ultra", Backend: "ref", Simulated: true,
		Address: &v1alpha1.MacAddress{Host: "127.0.0.1", Port: 7443},
		Memory: v1alpha1.MacMemory{TotalBytes: m.size, CeilingBytes: m.size * 3 / 4, CapacityBytes: m.size * 3 / 4, ForeignBytes: m.foreign, FreeBytes: m.size - m.foreign,
			PressureLevel: v1alpha1.PressureNormal},
		Disk:       v1alpha1.MacDisk{FreeBytes: 2048 * gib},
		Conditions: []metav1.Condition{register.Accepting(true, m.since.Time)},
	}
	for _, order := range m.orders.Inspections {
		record := recordOf(order.Source)
		s.Inspections = append(s.Inspections, v1alpha1.InspectionStatus{ID: order.ID, State: v1alpha1.InspectionResolved, Model: &record})
	}
	for i := range m.orders.Assignments {
		s.Assignments = append(s.Assignments, m.assignment(&m.orders.Assignments[i]))
		if a := &m.orders.Assignments[i]; a.Desired != v1alpha1.DesiredDrained {
			s.Memory.ReservedBytes += a.ReservedBytes
		}
	}
	return s
}

// assignment is done at once: nothing is downloaded, loaded or freed.
func (m *mac) assignment(order *v1alpha1.Assignment) v1alpha1.AssignmentStatus {
	out := v1alpha1.AssignmentStatus{ReplicaUID: order.ReplicaUID, Epoch: order.Epoch}
	yes := func(kind string) {
		out.Conditions = append(out.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Bench", LastTransitionTime: m.since})
	}
	yes(v1alpha1.ConditionDownloaded)
	if order.Desired == v1alpha1.DesiredDrained {
		out.Progress.Stage = v1alpha1.StageReleased
		yes(v1alpha1.ConditionReleased)
		return out
	}
	out.Progress.Stage = v1alpha1.StageServing
	out.Memory.ReservedBytes = order.ReservedBytes
	yes(v1alpha1.ConditionAdmitted)
	yes(v1alpha1.ConditionLoaded)
	yes(v1alpha1.ConditionServing)
	return out
}

// recordOf describes a model of 8 GB with the dimensions of a small Llama.
func recordOf(source string) model.Record {
	sum := sha256.Sum256([]byte(source))
	r := model.Record{
		Source: source, Format: model.FormatGGUF,
		Files: []model.File{{Path: "model.gguf", Bytes: 8e9, SHA256: hex.EncodeToString(sum[:])}},
		Facts: model.Facts{
			Architecture: "llama", Quantization: "Q4_1", Layers: 30, GrowingLayers: 30, HiddenSize: 576, FeedForwardSize: 1536,
			QueryHeads: 9, KeyValueHeads: 3, HeadSize: 64, VocabularySize: 49152, ContextTokens: 8192,
			KeyValueElementBytes: 4, WeightBytes: 8e9,
		},
	}
	r.Digest = model.DigestOf(r.Files)
	return r
}
