package plan

import (
	"fmt"
	"slices"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ChangeResidency gives a bound replica another residency policy, or returns why it keeps its own:
// the rules of its namespace and the room on its Mac are those for a new replica.
func (s *Snapshot) ChangeResidency(r *v1alpha1.ModelReplica, residency v1alpha1.Residency) (why string) {
	asked := *r
	asked.Spec.Residency = residency
	if _, message := s.rules.refuse(&asked, s.reserved[r.Namespace]); message != "" {
		return message
	}
	i, has := s.index[r.Spec.NodeName]
	if !has {
		return "MacNode " + r.Spec.NodeName + " does not exist"
	}
	if residency.OnDemand() {
		return s.share(s.macs[i], r, &asked)
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

// share counts an Always replica as OnDemand, or returns why it stays Always. Its memory is only
// available to others in the next pass: this one may not write the change.
func (s *Snapshot) share(st *state, r, asked *v1alpha1.ModelReplica) (why string) {
	v, need, full := &view{s: s, r: asked}, r.Spec.ReservedBytes, open
	switch {
	case v.crowdsDisk(st):
		full = crowdedDisk
	case v.overcommits(st, st.free()+st.shared+need):
		full = overcommitted
	}
	if full != open {
		return fmt.Sprintf("%s is %s; delete another OnDemand model there, or ask an administrator for more", r.Spec.NodeName, rejection{kind: full}.words())
	}
	s.version++
	st.promise.Add(asked)
	st.onDemand += need
	st.shared += need
	if at := slices.Index(st.bound, r); at >= 0 {
		st.bound[at] = asked
	}
	return ""
}
