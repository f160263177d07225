//go:build !race

package fleet

import (
	"testing"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/bench/scenario/boundtest"
)

func TestWritesAreRequestsThatChangeSomething(t *testing.T) {
	w, err := parseWrites([]byte(`# TYPE apiserver_request_total counter
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
	if _, err := parseWrites([]byte("# TYPE x counter\nx 1\n")); err == nil {
		t.Error("an API server that counts nothing was accepted")
	}
}

func TestBoundsOfTheFleet(t *testing.T) {
	boundtest.Check(t, figures, boundtest.Values{"fleet/writes": {1.2, 1}, "fleet/peak": {400e6}}, map[string]boundtest.Values{
		"writes per idle Mac": {"fleet/writes": {1, 1, 1.3}},
		"100 replicas of 20":  {"fleet/placed": {5}},
		"peak memory":         {"fleet/peak": {400e6, 400e6, 500e6}},
	})
	boundtest.Check(t, enrolmentFigures, boundtest.Values{"enrolment/ready": {119}}, map[string]boundtest.Values{"50 Macs join": {"enrolment/ready": {120}}})
}

func TestAMacReportsItsOrdersAsDone(t *testing.T) {
	m := newMac(3)
	s := m.obey(journal.Desired{Generation: 7, Inspections: []v1alpha1.Inspection{{ID: "i", Source: "hf://bench/a"}}, Assignments: []v1alpha1.Assignment{
		{ReplicaUID: "a", Epoch: 1, ReservedBytes: 5, Desired: v1alpha1.DesiredRunning}, {ReplicaUID: "b", Epoch: 2, ReservedBytes: 9, Desired: v1alpha1.DesiredDrained}}})
	if s.ObservedGeneration != 7 || s.Memory.ReservedBytes != 5 || len(s.Inspections) != 1 || s.Inspections[0].Model.Source != "hf://bench/a" {
		t.Errorf("%+v", s)
	}
	if s.Assignments[0].Progress.Stage != v1alpha1.StageServing || s.Assignments[1].Progress.Stage != v1alpha1.StageReleased {
		t.Errorf("%+v", s.Assignments)
	}
}
