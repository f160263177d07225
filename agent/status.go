package agent

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// diskEvery is how often disk usage is measured when nothing else changes.
const diskEvery = 30 * time.Second

// pauseAfter returns the pause after a status that took this long to make, ten times
// as long, but not so long that a change is reported late.
func pauseAfter(took time.Duration) time.Duration { return min(10*took, time.Second) }

// statusLoop offers a new status after every change, and after several at once if
// they come faster than statuses are made.
func (a *Agent) statusLoop(ctx context.Context) error {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		began := time.Now()
		a.Links.Reports.Offer(a.status())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pauseAfter(time.Since(began))):
		}
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
	s.CacheCleared = a.journal.View().CacheCleared
	s.AgentUpgrade = a.upgrader.Status()
	s.Disk = a.store.Status()
	s.Disk.Cache = a.cache.status()
	s.Summary = v1alpha1.MacSummary{
		Memory: v1alpha1.FormatBytes(s.Memory.TotalBytes), Ceiling: v1alpha1.FormatBytes(s.Memory.CeilingBytes),
		Reserved: v1alpha1.FormatBytes(s.Memory.ReservedBytes), Used: v1alpha1.FormatBytes(s.Memory.FootprintBytes),
		Freed: v1alpha1.FormatBytes(s.Memory.FreedBytesTotal),
	}
	fitMessages(s, maxMessageBytes)
	return s
}

// maxMessageBytes is what all messages of conditions and failures may take, of which the
// API server accepts no more than 256 KiB, and shortMessage what each of too many keeps.
const (
	maxMessageBytes = 128 << 10
	shortMessage    = 96
)

// fitMessages shortens the messages of assignments if there are too many long ones.
func fitMessages(s *v1alpha1.MacNodeStatus, most int) {
	total := 0
	for _, a := range s.Assignments {
		if a.LastFailure != nil {
			total += len(a.LastFailure.Message)
		}
		for _, c := range a.Conditions {
			total += len(c.Message)
		}
	}
	if total <= most {
		return
	}
	s.Assignments = slices.Clone(s.Assignments)
	for i := range s.Assignments {
		a := &s.Assignments[i]
		if f := a.LastFailure; f != nil {
			short := *f
			short.Message = clip(f.Message, shortMessage)
			a.LastFailure = &short
		}
		a.Conditions = slices.Clone(a.Conditions)
		for k := range a.Conditions {
			a.Conditions[k].Message = clip(a.Conditions[k].Message, shortMessage)
		}
	}
}
