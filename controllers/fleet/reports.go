package fleet

import (
	"reflect"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// report is what decisions read of a Mac's report on a source. The message of a failure is no
// part of it: the server of a tenant's source writes it. That of an inspection that runs is the
// zero value, as that of one that was not reported.
type report struct {
	state  v1alpha1.InspectionState
	source string
	reason string
	model  *model.Record
}

// reportsOf returns a Mac's reports by inspection; of several about one, the first counts.
func reportsOf(mac *v1alpha1.MacNode) map[string]report {
	out := make(map[string]report, len(mac.Status.Inspections))
	for i := range mac.Status.Inspections {
		in := &mac.Status.Inspections[i]
		if _, known := out[in.ID]; known {
			continue
		}
		var r report
		if in.State != v1alpha1.InspectionRunning {
			r = report{in.State, in.Source, in.Reason, in.Model}
		}
		out[in.ID] = r
	}
	return out
}

func (r report) same(other report) bool {
	return r.state == other.state && r.source == other.source && r.reason == other.reason &&
		(r.model == other.model || reflect.DeepEqual(r.model, other.model))
}

// differing returns the inspections about which the reports differ, each once.
func differing(before, now map[string]report) (ids []string) {
	for id, r := range now {
		if !r.same(before[id]) {
			ids = append(ids, id)
		}
	}
	for id, r := range before {
		if _, still := now[id]; !still && !r.same(report{}) {
			ids = append(ids, id)
		}
	}
	return ids
}

// ChangedReports returns the ids of the inspections on which a Mac reports another result than
// before. Another message of the same failure is none.
func ChangedReports(before, now *v1alpha1.MacNode) []string {
	return differing(reportsOf(before), reportsOf(now))
}
