package main

import (
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestWritesAreWhatChangesSomething(t *testing.T) {
	w, err := readWrites([]byte(`# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="macnodes",verb="GET"} 100
apiserver_request_total{code="200",resource="macnodes",verb="WATCH"} 50
apiserver_request_total{code="200",resource="macnodes",subresource="status",verb="APPLY"} 3
apiserver_request_total{code="200",resource="leases",verb="PATCH"} 20
apiserver_request_total{code="200",resource="leases",verb="PUT"} 2
apiserver_request_total{code="409",resource="modelreplicas",verb="POST"} 1
`))
	if err != nil || w.all != 26 || w.leases != 22 {
		t.Error(w, err)
	}
	before := written{kinds: map[string]float64{"PATCH leases 200": 20, "PUT leases 200": 1}}
	if got := w.since(before); !slices.Equal(got, []string{"3 APPLY macnodes/status 200", "1 POST modelreplicas 409", "1 PUT leases 200"}) {
		t.Error(got)
	}
	if _, err := readWrites([]byte("# TYPE x counter\nx 1\n")); err == nil {
		t.Error("an API server that counts nothing passed")
	}
}

func TestThePeakIsRead(t *testing.T) {
	got, err := readPeak("VmPeak:\t 9 kB\nVmHWM:\t  2000 kB\nVmRSS:\t 1 kB\n")
	if err != nil || got != 2.048 {
		t.Error(got, err)
	}
	if _, err := readPeak("VmRSS:\t 1 kB\n"); err == nil {
		t.Error("no peak passed")
	}
}

// TestAMacDoesAsItIsTold and promises what it was told to.
func TestAMacDoesAsItIsTold(t *testing.T) {
	m := newMac(3)
	s := m.obey(journal.Orders{Generation: 7, Inspections: []v1alpha1.Inspection{{ID: "i", Source: "hf://bench/a"}}, Assignments: []v1alpha1.Assignment{
		{ReplicaUID: "a", Epoch: 1, ReservedBytes: 5, Desired: v1alpha1.DesiredRunning}, {ReplicaUID: "b", Epoch: 2, ReservedBytes: 9, Desired: v1alpha1.DesiredDrained}}})
	if s.ObservedGeneration != 7 || s.Memory.ReservedBytes != 5 || len(s.Inspections) != 1 || s.Inspections[0].Model.Source != "hf://bench/a" {
		t.Errorf("%+v", s)
	}
	if s.Assignments[0].Progress.Stage != v1alpha1.StageServing || s.Assignments[1].Progress.Stage != v1alpha1.StageReleased {
		t.Errorf("%+v", s.Assignments)
	}
}
