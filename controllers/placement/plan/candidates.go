package plan

import (
	"fmt"
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Candidate is the result for one Mac and one replica, to explain placement.
type Candidate struct {
	// Mac by its name.
	Mac string
	// Fits reports whether the replica could be placed there.
	Fits bool
	// Why not, or if it fits, how much is reserved there already.
	Why string
	// FreeBytes are left there after what stays in memory; 0 if the capacity is unknown.
	FreeBytes int64
}

// Candidates returns for every Mac, sorted by name, whether Pick may choose it for a
// replica, by the same filter. A Mac that Pick waits for does not fit yet.
func (s *Snapshot) Candidates(r *v1alpha1.ModelReplica) []Candidate {
	out := make([]Candidate, 0, len(s.macs))
	v := s.view(r)
	for i, st := range s.macs {
		c := Candidate{Mac: st.mac.Name, FreeBytes: max(0, st.capacity-st.promise.Always)}
		rejected, ok := v.filter(i)
		if ok {
			c.Fits = true
			c.Why = fmt.Sprintf("%s of %s reserved", v1alpha1.FormatBytes(st.promise.Always), v1alpha1.FormatBytes(st.capacity))
		} else {
			c.Why = rejected.alone(r)
		}
		out = append(out, c)
	}
	return out
}

// alone explains why one Mac was rejected, as a complete sentence.
func (r rejection) alone(replica *v1alpha1.ModelReplica) string {
	need := v1alpha1.FormatBytes(replica.Spec.ReservedBytes)
	switch r.kind {
	case tooSmall:
		return fmt.Sprintf("too small even if empty (need %s, capacity %s)", need, v1alpha1.FormatBytes(r.bytes))
	case short:
		return fmt.Sprintf("short of memory (need %s, free %s)", need, v1alpha1.FormatBytes(r.bytes))
	case noDisk:
		return fmt.Sprintf("without disk space for the model (need %s, free %s)", v1alpha1.FormatBytes(replica.Spec.Model.DiskBytes()), v1alpha1.FormatBytes(r.bytes))
	case avoided:
		why := fmt.Sprintf("avoided for another %s after a refusal", r.left.Round(time.Second))
		for _, a := range replica.Spec.Avoid {
			if a.Name == r.mac && a.Reason != "" {
				why += ": " + a.Reason
			}
		}
		return why
	default:
		return r.words()
	}
}
