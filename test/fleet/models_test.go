//go:build !race

package fleet

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestTheLedgerMatchesItsResidents(t *testing.T) {
	resident := func(uid string, pid, reserved int64) v1alpha1.AssignmentStatus {
		return v1alpha1.AssignmentStatus{ReplicaUID: uid, PID: pid, Memory: v1alpha1.EngineMemory{ReservedBytes: reserved}}
	}
	for name, test := range map[string]struct {
		assignments []v1alpha1.AssignmentStatus
		reserved    int64
		pids        []int
		reclaims    []string
		want        string // in the error; empty for none
	}{
		"two residents":            {assignments: []v1alpha1.AssignmentStatus{resident("a", 1, 10), resident("b", 2, 20)}, reserved: 30, pids: []int{1, 2}, reclaims: []string{"a/1/1", "a/1/2"}, want: ""},
		"one that sleeps":          {assignments: []v1alpha1.AssignmentStatus{resident("a", 0, 0)}, want: ""},
		"one that will be loaded":  {assignments: []v1alpha1.AssignmentStatus{resident("a", 0, 10)}, reserved: 10, want: ""},
		"reserved for none":        {assignments: []v1alpha1.AssignmentStatus{resident("a", 1, 10)}, reserved: 15, pids: []int{1}, want: "15 bytes are reserved"},
		"a process that ended":     {assignments: []v1alpha1.AssignmentStatus{resident("a", 1, 10)}, reserved: 10, want: "does not live"},
		"a process without one":    {assignments: []v1alpha1.AssignmentStatus{resident("a", 1, 10)}, reserved: 10, pids: []int{1, 2}, want: "no assignment reports"},
		"an engine without one":    {assignments: []v1alpha1.AssignmentStatus{resident("a", 1, 0)}, pids: []int{1}, want: "no reservation"},
		"an end that counts twice": {reclaims: []string{"a/1/1", "a/1/1"}, want: "reported twice"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1alpha1.MacNode{}
			node.Status.Assignments, node.Status.Memory.ReservedBytes = test.assignments, test.reserved
			for _, id := range test.reclaims {
				node.Status.Reclaims = append(node.Status.Reclaims, v1alpha1.Reclaim{ID: id})
			}
			var engines []Engine
			for _, pid := range test.pids {
				engines = append(engines, Engine{PID: pid})
			}
			err := checkLedger(node, engines)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestAModelIsWhatTheProgramSaid(t *testing.T) {
	md := Model{Name: "m", File: "m.gguf", OnDemand: true, IdleSeconds: 5, MaxTokens: 512, DrainSeconds: 7, Chips: []string{"M4"}, Served: "chat"}.Deployment()
	if s := md.Spec; s.Residency.Policy != v1alpha1.ResidencyOnDemand || *s.Residency.IdleSeconds != 5 || s.Context.MaxTokens != 512 || s.Context.MaxConcurrentRequests != 2 ||
		*s.Rollout.DrainSeconds != 7 || len(s.Placement.Chips) != 1 || s.Model.Source != "file://m.gguf" || s.ServedNames[0] != "chat" {
		t.Errorf("%+v", s)
	}
	if s := (Model{Name: "m", File: "m.gguf"}).Deployment().Spec; s.Residency.Policy != "" || s.Residency.IdleSeconds != nil || s.ServedNames != nil {
		t.Errorf("%+v", s)
	}
}
