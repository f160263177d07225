package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// found is a record with a number of files and with paths of that many characters.
func found(files, path int) model.Record {
	r := model.Record{Source: "hf://org/m", Digest: "sha256:" + strings.Repeat("a", 64)}
	for i := range files {
		r.Files = append(r.Files, model.File{Path: fmt.Sprintf("%03d", i) + strings.Repeat("<", path-3), Bytes: 1 << 40, SHA256: strings.Repeat("b", 64)})
	}
	return r
}

// TestReportsStayWithinTheBudget: a MacNode that is too large for etcd cannot be
// written, and nothing of that Mac is known any more.
func TestReportsStayWithinTheBudget(t *testing.T) {
	i := &Inspector{jobs: map[string]*job{}}
	put := func(id, namespace string, s v1alpha1.InspectionStatus) {
		s.ID = id
		i.jobs[id] = &job{order: v1alpha1.Inspection{ID: id, Namespace: namespace}, status: s}
	}
	resolved := func(files, path int) v1alpha1.InspectionStatus {
		r := found(files, path)
		return v1alpha1.InspectionStatus{State: v1alpha1.InspectionResolved, Model: &r}
	}
	for n := range 60 {
		put(fmt.Sprintf("a%02d", n), "greedy", resolved(40, 40))
	}
	put("failed", "greedy", v1alpha1.InspectionStatus{State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonInvalidModel, Message: strings.Repeat("<", 1000)})
	put("large", "modest", resolved(150, 30))
	put("small", "modest", resolved(1, 30))
	out := i.Snapshot()
	b, err := json.Marshal(out)
	keys := 0 // managedFields name each file once more
	for _, s := range out {
		if s.Model != nil {
			k, _ := json.Marshal(s.Model.Files)
			keys += len(k)
		}
	}
	if err != nil || len(out) != 63 || len(b)+keys > maxReportBytes {
		t.Errorf("%d reports take %d and %d bytes, %v", len(out), len(b), keys, err)
	}
	states := map[v1alpha1.InspectionState]int{}
	for _, s := range out {
		if s.ID == "large" || s.ID == "small" {
			if s.State != v1alpha1.InspectionResolved {
				t.Errorf("%s of the other namespace is %s: %s", s.ID, s.State, s.Message)
			}
			continue
		}
		states[s.State]++
		if s.ID == "failed" && s.Reason != v1alpha1.ReasonInvalidModel || s.State == v1alpha1.InspectionFailed && (s.Message == "" || s.Model != nil) {
			t.Errorf("report %+v", s)
		}
	}
	if states[v1alpha1.InspectionResolved] == 0 || states[v1alpha1.InspectionFailed] < 10 {
		t.Errorf("states %v, want the budget to be used and no more", states)
	}
}

func TestARecordThatIsTooLargeIsAFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		record model.Record
		want   v1alpha1.InspectionState
	}{
		"a large model":   {record: found(200, 12), want: v1alpha1.InspectionResolved},
		"a list of files": {record: found(250, 500), want: v1alpha1.InspectionFailed},
	} {
		var j job
		j.settle(tc.record, nil, time.Unix(0, 0))
		if s := j.status; s.State != tc.want || s.State == v1alpha1.InspectionFailed && (s.Reason != v1alpha1.ReasonUnsupportedModel || s.Model != nil || !strings.Contains(s.Message, "spec.model.files")) {
			t.Errorf("%s: %s, %s, %s; want %s", name, s.State, s.Reason, s.Message, tc.want)
		}
	}
}
