// Package inventory lists the resources of a fleet: its Macs, how their memory is
// reserved and used, and the engines on them.
//
// It owns the rows of `nodes` and the bars of `top`, as pure functions over API
// objects. An unmeasured figure is never shown as zero: the memory of a Mac that
// never reported is absent, in JSON and in the picture.
//
// Start reading at Of.
package inventory

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Mac is one Mac. All figures are bytes.
type Mac struct {
	Name string `json:"name"`
	// Ready is True, False or Unknown.
	Ready         metav1.ConditionStatus `json:"ready"`
	Reason        string                 `json:"reason,omitempty"`
	Message       string                 `json:"message,omitempty"`
	Unschedulable bool                   `json:"unschedulable"`
	Chip          string                 `json:"chip,omitempty"`
	// Simulated: chip and memory were declared and not measured.
	Simulated    bool                   `json:"simulated,omitempty"`
	AgentVersion string                 `json:"agentVersion,omitempty"`
	Pressure     v1alpha1.PressureLevel `json:"pressure,omitempty"`
	CreatedAt    metav1.Time            `json:"createdAt"`
	// Memory is absent until the Mac has reported.
	Memory *Memory `json:"memory,omitempty"`
	// Engines are the replicas bound here, loaded or not.
	Engines []Engine `json:"engines"`
}

// Memory of a Mac, measured but for ReservedBytes, which is an estimate.
type Memory struct {
	TotalBytes     int64        `json:"totalBytes"`
	CeilingBytes   int64        `json:"ceilingBytes"`
	CapacityBytes  int64        `json:"capacityBytes"`
	ReservedBytes  int64        `json:"reservedBytes"`
	UsedBytes      int64        `json:"usedBytes"`
	FreedBytes     int64        `json:"freedBytesTotal"`
	MeasuredAt     *metav1.Time `json:"measuredAt,omitempty"`
	StrandedBytes  int64        `json:"strandedBytes,omitempty"`
	EffectiveBytes int64        `json:"effectiveCeilingBytes,omitempty"`
}

// Engine is one replica on a Mac.
type Engine struct {
	Namespace  string         `json:"namespace"`
	Deployment string         `json:"deployment"`
	Replica    string         `json:"replica"`
	Stage      v1alpha1.Stage `json:"stage,omitempty"`
	Progress   string         `json:"progress,omitempty"`
	Loaded     bool           `json:"loaded"`
	Draining   bool           `json:"draining,omitempty"`
	// ReservedBytes promised to it, an estimate.
	ReservedBytes int64 `json:"reservedBytes"`
	// FootprintBytes and LimitBytes of its process; absent while there is none.
	FootprintBytes int64 `json:"footprintBytes,omitempty"`
	LimitBytes     int64 `json:"limitBytes,omitempty"`
}

// Of lists the Macs by name, with what is on them.
func Of(macs []v1alpha1.MacNode, replicas []v1alpha1.ModelReplica) []Mac {
	out := make([]Mac, 0, len(macs))
	for i := range macs {
		out = append(out, of(&macs[i], replicas))
	}
	slices.SortFunc(out, func(a, b Mac) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func of(mac *v1alpha1.MacNode, replicas []v1alpha1.ModelReplica) Mac {
	s := &mac.Status
	m := Mac{
		Name: mac.Name, Ready: metav1.ConditionUnknown, Unschedulable: mac.Spec.Unschedulable, Chip: s.Chip, Simulated: s.Simulated,
		AgentVersion: s.AgentVersion, Pressure: s.Memory.PressureLevel, CreatedAt: mac.CreationTimestamp, Engines: []Engine{},
	}
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c != nil {
		m.Ready, m.Reason, m.Message = c.Status, c.Reason, c.Message
	}
	if s.Memory.TotalBytes > 0 {
		m.Memory = &Memory{
			TotalBytes: s.Memory.TotalBytes, CeilingBytes: s.Memory.CeilingBytes, CapacityBytes: s.Memory.CapacityBytes,
			ReservedBytes: s.Memory.ReservedBytes, UsedBytes: s.Memory.FootprintBytes, FreedBytes: s.Memory.FreedBytesTotal,
			MeasuredAt: s.Memory.MeasuredAt, StrandedBytes: s.Memory.StrandedBytes, EffectiveBytes: s.Memory.EffectiveCeilingBytes,
		}
	}
	for i := range replicas {
		if replicas[i].Spec.NodeName == mac.Name {
			m.Engines = append(m.Engines, engine(&replicas[i]))
		}
	}
	slices.SortFunc(m.Engines, func(a, b Engine) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Replica, b.Replica))
	})
	return m
}

func engine(r *v1alpha1.ModelReplica) Engine {
	return Engine{
		Namespace: r.Namespace, Deployment: r.Spec.DeploymentRef.Name, Replica: r.Name,
		Stage: r.Status.Progress.Stage, Progress: r.Status.Summary.Progress,
		Loaded: fleet.Loaded(r), Draining: !r.DeletionTimestamp.IsZero(), ReservedBytes: r.Spec.ReservedBytes,
		FootprintBytes: r.Status.Memory.FootprintBytes, LimitBytes: r.Status.Memory.LimitBytes,
	}
}

// loaded counts the engines that hold their model.
func (m *Mac) loaded() int {
	n := 0
	for _, e := range m.Engines {
		if e.Loaded {
			n++
		}
	}
	return n
}
