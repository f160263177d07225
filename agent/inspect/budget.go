package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// maxReportBytes bounds what all inspections take in the status of a MacNode: etcd
// refuses an object of 1.5 MiB, and the orders of the Mac and the rest of its status
// are in the same one.
const maxReportBytes = 256 << 10

// maxFilesBytes bounds the files of all inspections, as the policy metalfleet-agent-size counts
// them: it refuses a status with more as a whole.
const maxFilesBytes = 400 << 10

// cutBytes is what a report takes at most of which only the reason is left.
const cutBytes = 512

// fileBytes is what the API server adds for each file, besides its path: a map key
// in managedFields with the fields that the agent owns.
const fileBytes = 96

// result is the report of one inspection, charged to a namespace.
type result struct {
	namespace string
	status    v1alpha1.InspectionStatus
	bytes     int
	files     int // by filesBytes
}

// tooLarge refuses a record that no status or replica can hold.
func tooLarge(rec model.Record) error {
	n := jsonBytes(rec)
	if n <= model.MaxRecordBytes {
		return nil
	}
	return &download.Error{Reason: v1alpha1.ReasonUnsupportedModel, Message: fmt.Sprintf(
		"the list of the model's files takes %d bytes as JSON, at most %d are allowed; choose fewer files with spec.model.files", n, model.MaxRecordBytes)}
}

// withinBudget cuts reports down to their reason where all of them are larger than
// either budget, and sorts them by id. Namespaces take turns, each with its smallest
// report first, so that none can use up the budget for the others.
func withinBudget(results []result) []v1alpha1.InspectionStatus {
	bySize := func(a, b result) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.status.ID, b.status.ID))
	}
	slices.SortFunc(results, bySize)
	turns, turn := map[string]int{}, map[string]int{}
	for _, r := range results {
		turn[r.status.ID] = turns[r.namespace]
		turns[r.namespace]++
	}
	slices.SortFunc(results, func(a, b result) int { return cmp.Or(turn[a.status.ID]-turn[b.status.ID], bySize(a, b)) })
	left, leftFiles := maxReportBytes-len(results)*cutBytes, maxFilesBytes
	out := make([]v1alpha1.InspectionStatus, 0, len(results))
	for _, r := range results {
		if more := r.bytes - cutBytes; more > left || r.files > leftFiles {
			r.status = cut(r.status)
		} else {
			left -= max(0, more)
			leftFiles -= r.files
		}
		out = append(out, r.status)
	}
	slices.SortFunc(out, func(a, b v1alpha1.InspectionStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// cut leaves the reason of a failure. A model that was found is reported as a
// failure of this Mac; another Mac may have room for it.
func cut(s v1alpha1.InspectionStatus) v1alpha1.InspectionStatus {
	s.Message = "this Mac inspects too many models to report the whole result; delete deployments, or choose fewer files with spec.model.files"
	if s.State == v1alpha1.InspectionResolved {
		s.State, s.Reason, s.Model = v1alpha1.InspectionFailed, v1alpha1.ReasonInspectionFailed, nil
	}
	return s
}

// reportBytes is about what a report takes in the MacNode.
func reportBytes(s v1alpha1.InspectionStatus) int {
	n := jsonBytes(s)
	if s.Model != nil {
		for _, f := range s.Model.Files {
			n += fileBytes + 2*jsonBytes(f.Path) - len(f.Path) // the key is JSON within JSON
		}
	}
	return n
}

// filesBytes is what the policy counts for the files of a report and of its adapters, or more:
// they are in managedFields too.
func filesBytes(s v1alpha1.InspectionStatus) (n int) {
	if s.Model == nil {
		return 0
	}
	files := slices.Clone(s.Model.Files)
	for _, a := range s.Model.Adapters {
		n += 500
		files = append(files, a.Files...)
	}
	for _, f := range files {
		escapes := jsonBytes(f.Path) - len(f.Path) - 2
		n += 250 + 3*len(f.Path) + 12*escapes
	}
	return n
}

func jsonBytes(v any) int {
	b, err := json.Marshal(v)
	if err != nil {
		panic("inspect: API types can be encoded: " + err.Error())
	}
	return len(b)
}
