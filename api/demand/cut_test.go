//go:build !race

package demand

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestAttackAReportOfManyModels: it stays within its bounds, and one tenant with many
// deployments leaves those of others in it.
func TestAttackAReportOfManyModels(t *testing.T) {
	for name, length := range map[string]int{"short names": 1, "long names": 240} {
		r := &Report{Gateway: "g", Replicas: map[string]int{"a": 3, "b": 30}}
		for i := range 2 * maxModels {
			m := Model{Namespace: "evil", Name: fmt.Sprint(strings.Repeat("n", length), i), Begun: 1}
			if i == maxModels {
				m.Running = 30
			}
			r.Models = append(r.Models, m)
		}
		r.Models = append(r.Models, Model{Namespace: "good", Name: "busy", Running: 3}, Model{Namespace: "good", Name: "idle"})
		r.Cut()
		if err := r.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if body, err := json.Marshal(r); err != nil || len(body) > MaxBytes {
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
		kept := map[string]int{}
		for _, m := range r.Models {
			kept[m.Namespace] += 1 + m.Running
		}
		if kept["good"] != 2+3 || kept["evil"] < 10_000+30 {
			t.Errorf("%s: models and requests are %v", name, kept)
		}
	}
}

// Requests of models that are left out still run at replicas.
func TestACutReportCountsTheRequestsThatItLeavesOut(t *testing.T) {
	r := &Report{Gateway: "g", Replicas: map[string]int{"a": maxModels + 1}}
	for i := range maxModels + 1 {
		r.Models = append(r.Models, Model{Namespace: "ns", Name: fmt.Sprint(i), Running: 1})
	}
	r.Cut()
	if err := r.Check(); err != nil || r.CutRunning != 1 || len(r.Models) != maxModels {
		t.Errorf("%d models, %d requests left out, %v", len(r.Models), r.CutRunning, err)
	}
	r.CutRunning = -1
	if r.Check() == nil {
		t.Error("fewer than no requests are left out")
	}
}
