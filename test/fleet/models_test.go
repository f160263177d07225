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
		"two residents":            {[]v1alpha1.AssignmentStatus{resident("a", 1, 10), resident("b", 2, 20)}, 30, []int{1, 2}, []string{"a/1/1", "a/1/2"}, ""},
		"one that sleeps":          {[]v1alpha1.AssignmentStatus{resident("a", 0, 0)}, 0, nil, nil, ""},
		"one that will be loaded":  {[]v1alpha1.AssignmentStatus{resident("a", 0, 10)}, 10, nil, nil, ""},
		"reserved for none":        {[]v1alpha1.AssignmentStatus{resident("a", 1, 10)}, 15, []int{1}, nil, "15 bytes are reserved"},
		"a process that ended":     {[]v1alpha1.AssignmentStatus{resident("a", 1, 10)}, 10, nil, nil, "does not live"},
		"a process without one":    {[]v1alpha1.AssignmentStatus{resident("a", 1, 10)}, 10, []int{1, 2}, nil, "no assignment reports"},
		"an engine without one":    {[]v1alpha1.AssignmentStatus{resident("a", 1, 0)}, 0, []int{1}, nil, "no reservation"},
		"an end that counts twice": {nil, 0, nil, []string{"a/1/1", "a/1/1"}, "reported twice"},
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
	md := Model{Name: "m", File: "m.gguf", OnDemand: true, IdleSeconds: 5, Tokens: 512, DrainSeconds: 7, Chips: []string{"M4"}, Served: "chat"}.Deployment()
	if s := md.Spec; s.Residency.Policy != v1alpha1.ResidencyOnDemand || *s.Residency.IdleSeconds != 5 || s.Context.Tokens != 512 || s.Context.Sequences != 2 ||
		*s.Rollout.DrainSeconds != 7 || len(s.Placement.Chips) != 1 || s.Model.Source != "file://m.gguf" || s.ServedNames[0] != "chat" {
		t.Errorf("%+v", s)
	}
	if s := (Model{Name: "m", File: "m.gguf"}).Deployment().Spec; s.Residency.Policy != "" || s.Residency.IdleSeconds != nil || s.ServedNames != nil {
		t.Errorf("%+v", s)
	}
}
