package cli

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

const gib = int64(1) << 30

const source = "hf://org/small-4bit"

var small = fleettest.Accepted(fleettest.Model(source, "small", 9*gib))

// is a condition that began some time before the plugin's now.
func (p *person) is(kind string, s metav1.ConditionStatus, reason, message string, ago time.Duration) metav1.Condition {
	return metav1.Condition{Type: kind, Status: s, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(p.now.Add(-ago))}
}

// mac makes a Mac as its agent and the operator would report it.
func (p *person) mac(name string, memory int64, change func(*v1alpha1.MacNode)) *v1alpha1.MacNode {
	p.t.Helper()
	m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Status = v1alpha1.MacNodeStatus{
		AgentVersion: "v1.2.0", Chip: "M2Ultra", Conditions: []metav1.Condition{p.is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReporting, "heard from lately", time.Hour)},
		Memory: v1alpha1.MacMemory{TotalBytes: memory, CeilingBytes: memory - 6*gib, CapacityBytes: memory - 10*gib, PressureLevel: v1alpha1.PressureNormal},
		Disk:   v1alpha1.MacDisk{FreeBytes: 1 << 40},
	}
	if change != nil {
		change(m)
	}
	p.make(m)
	return m
}

// deployment makes one of the small model, accepted.
func (p *person) deployment(namespace, name string, change func(*v1alpha1.ModelDeployment)) *v1alpha1.ModelDeployment {
	p.t.Helper()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Model.Source = source
	d.Status.ObservedGeneration = 1
	d.Status.ServedNames = []string{name, namespace + "/" + name}
	d.Status.Conditions = []metav1.Condition{p.is(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "llama Q4_1", time.Hour)}
	if change != nil {
		change(d)
	}
	p.make(d)
	return d
}

// replica makes one of a deployment, with what its Mac reports.
func (p *person) replica(d *v1alpha1.ModelDeployment, name, mac string, change func(*v1alpha1.ModelReplica)) *v1alpha1.ModelReplica {
	p.t.Helper()
	r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: name, Labels: map[string]string{v1alpha1.LabelDeployment: d.Name}}}
	r.Spec = v1alpha1.ModelReplicaSpec{
		DeploymentRef: v1alpha1.DeploymentReference{Name: d.Name, UID: string(d.UID)}, Revision: d.Name + "-1", Epoch: 1, Model: small,
		Context: v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}, ReservedBytes: 12 * gib, NodeName: mac, Desired: v1alpha1.DesiredRunning,
	}
	if change != nil {
		change(r)
	}
	p.make(r)
	return r
}

// serving is what the status of a replica says while it answers requests.
func (p *person) serving(r *v1alpha1.ModelReplica) {
	yes := func(kind string) metav1.Condition {
		return p.is(kind, metav1.ConditionTrue, kind, "", time.Hour)
	}
	r.Status.Conditions = []metav1.Condition{yes(v1alpha1.ConditionPlaced), yes(v1alpha1.ConditionDownloaded), yes(v1alpha1.ConditionAdmitted),
		yes(v1alpha1.ConditionLoaded), yes(v1alpha1.ConditionServing), yes(v1alpha1.ConditionReady)}
	r.Status.Progress.Stage = v1alpha1.StageServing
	r.Status.Summary.Progress = "Serving"
	r.Status.Memory = v1alpha1.EngineMemory{ReservedBytes: 12 * gib, LimitBytes: 12*gib + 600<<20, FootprintBytes: 10*gib + 200<<20}
}

// office is the fleet of the examples: one Mac that serves, one that is full,
// one that is cordoned and one that never reported.
func (p *person) office() {
	p.t.Helper()
	// Objects are made within seconds, and ages of minutes do not show them: 15m
	// until the last of them is made.
	p.now = time.Now().Add(15*time.Minute + 55*time.Second)
	ns := p.namespace("team-a")
	p.mac("mac-studio-1", 192*gib, func(m *v1alpha1.MacNode) {
		m.Status.Memory.ReservedBytes, m.Status.Memory.FootprintBytes, m.Status.Memory.FreedBytesTotal = 12*gib, 10*gib+200<<20, 31*gib
	})
	p.mac("mac-mini-1", 24*gib, func(m *v1alpha1.MacNode) {
		m.Status.Chip = "M4Pro"
		m.Status.Memory.ReservedBytes, m.Status.Memory.FootprintBytes, m.Status.Memory.PressureLevel = 12*gib, 4*gib+300<<20, v1alpha1.PressureSoft
	})
	p.mac("mac-mini-2", 24*gib, func(m *v1alpha1.MacNode) { m.Status.Chip, m.Spec.Unschedulable = "M4Pro", true })
	p.mac("mac-new", 0, func(m *v1alpha1.MacNode) {
		m.Status = v1alpha1.MacNodeStatus{Conditions: []metav1.Condition{
			p.is(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported, "its agent has not joined yet", time.Minute)}}
	})
	ready := p.deployment(ns, "chat", func(d *v1alpha1.ModelDeployment) {
		d.Status.Conditions = append(d.Status.Conditions, p.is(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "1 of 1 replicas are ready", time.Hour))
	})
	p.replica(ready, "chat-0a1b2c3d", "mac-studio-1", p.serving)
	loading := p.deployment(ns, "coder", func(d *v1alpha1.ModelDeployment) {
		d.Spec.Replicas = ptr.To[int32](2)
		d.Status.Conditions = append(d.Status.Conditions, p.is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoRoom, "0 of 2 replicas are ready", 3*time.Minute))
	})
	p.replica(loading, "coder-11112222", "mac-mini-1", func(r *v1alpha1.ModelReplica) {
		p.serving(r)
		r.Status.Conditions = r.Status.Conditions[:3]
		r.Status.Conditions = append(r.Status.Conditions, p.is(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoading, "the engine reads the weights", 40*time.Second))
		r.Status.Progress = v1alpha1.Progress{Stage: v1alpha1.StageLoading, BytesDone: 4 * gib, BytesTotal: 9 * gib}
		r.Status.Summary.Progress, r.Status.Memory.FootprintBytes = "Loading 44% (4.0 GiB of 9.0 GiB, 6 s)", 4*gib+300<<20
	})
	p.replica(loading, "coder-33334444", "", func(r *v1alpha1.ModelReplica) {
		r.Spec.Slot, r.Spec.ReservedBytes = 1, 180*gib
		r.Status.Conditions = []metav1.Condition{p.is(v1alpha1.ConditionPlaced, metav1.ConditionFalse, v1alpha1.ReasonNoRoom,
			"4 Macs: 2 too small even if empty (need 180.0 GiB, largest capacity 14.0 GiB), 1 short of memory (need 180.0 GiB, largest free 170.0 GiB), 1 not ready", 200*time.Second)}
	})
}

// agentReads waits until a Mac's spec is as wished.
func (p *person) macNow(name string) (*v1alpha1.MacNode, error) {
	var m v1alpha1.MacNode
	err := p.c.Get(context.Background(), client.ObjectKey{Name: name}, &m)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return &m, nil
}
