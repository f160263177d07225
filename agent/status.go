package agent

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// diskEvery is how often disk usage is measured when nothing else changes.
const diskEvery = 30 * time.Second

// statusLoop offers a new status after every change.
func (a *Agent) statusLoop(ctx context.Context) error {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		a.Links.Reports.Offer(a.status())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.changes:
		case <-a.inspector.Changed():
		case <-a.Links.Identity.Changed():
		case <-tick.C:
		}
	}
}

// status collects the status of all components.
func (a *Agent) status() *v1alpha1.MacNodeStatus {
	p := a.pool.Snapshot()
	address := a.Address
	accepting := a.accepting.get()
	s := &v1alpha1.MacNodeStatus{
		ObservedGeneration: p.Generation, AgentVersion: clip(a.Version, 64), BootID: clip(a.BootID, 64), Address: &address,
		TrustedRoots: a.Links.Identity.TrustedRoots(),
		Chip:         clip(p.Host.Chip, 32), Backend: clip(p.Backend, 16), Simulated: p.Host.Simulated,
		Memory: p.Memory, Weights: a.store.List(), Assignments: p.Assignments,
		Inspections: a.inspector.Snapshot(), Reclaims: p.Reclaims,
		Conditions: append([]metav1.Condition{accepting.condition()}, p.Conditions...),
	}
	s.Settings = *a.settings.inForce.Load()
	s.CacheCleared = a.journal.Snapshot().CacheCleared
	s.AgentUpgrade = a.upgrader.Status()
	s.Disk = a.store.Status()
	s.Disk.Cache = a.cache.status()
	s.Summary = v1alpha1.MacSummary{
		Memory: v1alpha1.FormatBytes(s.Memory.TotalBytes), Ceiling: v1alpha1.FormatBytes(s.Memory.CeilingBytes),
		Reserved: v1alpha1.FormatBytes(s.Memory.ReservedBytes), Used: v1alpha1.FormatBytes(s.Memory.FootprintBytes),
		Freed: v1alpha1.FormatBytes(s.Memory.FreedBytesTotal),
	}
	return s
}
