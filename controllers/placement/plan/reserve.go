package plan

import (
	"fmt"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Reserve reserves the memory of a bound OnDemand replica that is to have another residency,
// or returns why it stays OnDemand: the rules of its namespace and the room on its Mac are those
// for a new replica.
func (s *Snapshot) Reserve(r *v1alpha1.ModelReplica, residency v1alpha1.Residency) (why string) {
	asked := *r
	asked.Spec.Residency = residency
	if _, message := s.rules.refuse(&asked, s.reserved[r.Namespace]); message != "" {
		return message
	}
	i, has := s.index[r.Spec.NodeName]
	if !has {
		return "MacNode " + r.Spec.NodeName + " does not exist"
	}
	st, need := s.macs[i], r.Spec.ReservedBytes
	if free := st.free(); free < need {
		return fmt.Sprintf("it needs %s, and %s has %s free; scale down another Always model there, or delete this replica so that another Mac is looked for",
			v1alpha1.FormatBytes(need), r.Spec.NodeName, v1alpha1.FormatBytes(max(0, free)))
	}
	s.version++
	st.promise.Remove(r)
	st.promise.Add(&asked)
	st.onDemand -= need
	s.reserved[r.Namespace] += need
	return ""
}
