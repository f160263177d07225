package agent

import (
	"testing"

	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestFreedBytesAreCountedByReason(t *testing.T) {
	m := newMetrics()
	m.watch(func() *pool.Snapshot { return &pool.Snapshot{Memory: v1alpha1.MacMemory{ReservedBytes: 7}} })
	freed := int64(100)
	m.reclaimed(v1alpha1.Reclaim{Reason: v1alpha1.ReclaimDrained, HostCheck: v1alpha1.HostCheckVerified, FreedBytes: &freed})
	m.reclaimed(v1alpha1.Reclaim{Reason: v1alpha1.ReclaimDrained, HostCheck: v1alpha1.HostCheckIndeterminate})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			name := f.GetName()
			for _, l := range s.GetLabel() {
				name += "," + l.GetValue()
			}
			got[name] = s.GetCounter().GetValue() + s.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"metalfleet_agent_freed_bytes_total,Drained":            100,
		"metalfleet_agent_reclaims_total,Verified,Drained":      1,
		"metalfleet_agent_reclaims_total,Indeterminate,Drained": 1,
		"metalfleet_agent_memory_bytes,reserved":                7,
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
}
