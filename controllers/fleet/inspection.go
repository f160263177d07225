package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// FileScheme is the prefix of sources that are files on the Macs themselves.
const FileScheme = "file://"

// InspectionID identifies the inspection of a deployment's source: a SHA-256 of the
// credential reference and the source, each with its length. No input of a tenant makes it
// the id of another source, or of one with another credential.
func InspectionID(d *v1alpha1.ModelDeployment) string {
	s := d.Spec.Model.Resolved()
	parts := sized(append([]string{TokenRef(d), s.Source, s.SHA256, s.Revision}, s.Files...))
	if len(d.Spec.Adapters) > 0 {
		parts = append(parts, "adapters") // no file: each has its length
	}
	for _, a := range d.Spec.Adapters {
		parts = append(parts, sized([]string{a.Name, a.Source, a.Revision})...)
	}
	return wholeDigest(parts...)
}

// sized adds its length to each part, in place.
func sized(parts []string) []string {
	for i, p := range parts {
		parts[i] = strconv.Itoa(len(p)) + ":" + p
	}
	return parts
}

// Asked returns the Macs that are to inspect a deployment's source, sorted by name. For
// file:// that is every Mac the deployment may be placed on, because each has files of its
// own. A downloaded source is inspected by ready Macs in the order of a rendezvous hash,
// until two of them agree: usually two. If the first cannot reach it, the others take turns.
func Asked(d *v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) []*v1alpha1.MacNode {
	return (*Inspectors)(nil).Asked(d, macs)
}

// Asked is the function of that name.
func (s *Inspectors) Asked(d *v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) []*v1alpha1.MacNode {
	if s == nil {
		s = new(Inspectors)
	}
	_, asked := s.asked(d, s.list(macs), nil)
	return asked
}

// asked returns what is known of the Macs that are asked for a downloaded source, and the Macs
// that are asked, sorted by name.
func (s *Inspectors) asked(d *v1alpha1.ModelDeployment, l *listing, rules *v1alpha1.NamespaceRules) (*decision, []*v1alpha1.MacNode) {
	r, decision := s.decide(d, l, rules)
	var asked []*v1alpha1.MacNode
	switch {
	case r.local:
		asked = s.admitted(d, l.under(rules, d.Namespace))
	case decision != nil:
		for _, c := range l.macs {
			if decision.asks(c.mac.Name) {
				asked = append(asked, c.mac)
			}
		}
	}
	slices.SortFunc(asked, func(a, b *v1alpha1.MacNode) int { return cmp.Compare(a.Name, b.Name) })
	return decision, asked
}

// spreadFrom begins the hash of an inspection's id and a Mac.
func spreadFrom(id string) uint64 { return hashed(hashed(14695981039346656037, id), "\x00") }

// spread ends the hash, as in SplitMix64, so that Macs that differ in the last letter are far
// apart. It is of the Mac's UID, which the API server chooses: the owner of an enrolment token
// chooses the name, and could choose what its Mac inspects.
func spread(from uint64, mac *v1alpha1.MacNode) uint64 {
	h := hashed(from, cmp.Or(string(mac.UID), mac.Name))
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// hashed continues FNV-1a with a text.
func hashed(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

func inspectionOf(mac *v1alpha1.MacNode, id string) *v1alpha1.InspectionStatus {
	for i := range mac.Status.Inspections {
		if mac.Status.Inspections[i].ID == id {
			return &mac.Status.Inspections[i]
		}
	}
	return nil
}

// Finding is the combined result of the Macs' inspections of a source.
type Finding struct {
	// Record, once accepted; its vouchedBy names the Macs that found it.
	Record *model.Record
	// Refusal, if every ready Mac that inspected failed, or they disagree.
	Refusal *Refusal
	// Denied: enough Macs found that the source is missing, forbidden or unusable, and no two a record.
	Denied bool
	// Waiting names the Macs that are waited for, if there is neither.
	Waiting Refusal
}

// Inspect combines the Macs' reports on a deployment's source. Reports are verified: one
// that contradicts the deployment, or an inconsistent record, is a failure of that Mac.
//
// A file:// record is the one that most Macs found, of those that have files of their own: it is
// accepted once two found it, or one, and at most one other reports nothing, as it may never. If
// as many found another, they disagree. A record of a downloaded source is
// accepted once two Macs found the same. If only one can reach the source, its record is
// accepted with that Mac alone in vouchedBy, and no other Mac acts on it; not if two others found
// that it is missing, forbidden or unusable.
func Inspect(d *v1alpha1.ModelDeployment, macs []v1alpha1.MacNode) Finding {
	return (*Inspectors)(nil).Inspect(d, macs, nil)
}

// Inspect is the function of that name, under the rules, which may be nil.
func (s *Inspectors) Inspect(d *v1alpha1.ModelDeployment, macs []v1alpha1.MacNode, rules *v1alpha1.NamespaceRules) Finding {
	if s == nil {
		s = new(Inspectors)
	}
	var found testimony
	id := InspectionID(d)
	decision, asked := s.asked(d, s.list(macs), rules)
	for _, mac := range asked {
		if StateOf(mac) == MacReady {
			found.add(d, mac.Name, inspectionOf(mac, id))
		}
	}
	found.validate()
	source := d.Spec.Model.Resolved().Source
	best, local := found.best(), strings.HasPrefix(source, FileScheme)
	if best == nil && decision != nil && decision.rotates { // the same in every round
		found.waiting = nil
		found.failures = slices.DeleteFunc(found.failures, func(f macFailure) bool { return !slices.Contains(decision.kept, f.mac) })
	}
	switch {
	case best != nil && (!local || !found.tied()) && (len(best.macs) >= vouchersNeeded || local && found.settled()):
		return Finding{Record: best.accepted()}
	case !local && found.verdicts >= vouchersNeeded:
		return Finding{Refusal: worst(found.failures), Denied: true}
	case len(found.waiting) > 0 && best != nil:
		return Finding{Waiting: Refusal{v1alpha1.ReasonInspecting, "waiting for " + list(found.waiting) + " to confirm what " + list(best.macs) + " reported of " + source}}
	case len(found.waiting) > 0:
		return Finding{Waiting: Refusal{v1alpha1.ReasonInspecting, "waiting for " + list(found.waiting) + " to inspect " + source}}
	case len(found.groups) == 1:
		return Finding{Record: best.accepted()}
	case len(found.groups) > 1:
		return Finding{Refusal: found.disputed(source)}
	case len(found.failures) > 0:
		refusal := worst(found.failures)
		if decision != nil && decision.rotates {
			refusal.Message += "; the other Macs try in turns"
		}
		return Finding{Refusal: refusal}
	default:
		return Finding{Waiting: Refusal{v1alpha1.ReasonNoMacs,
			"no ready Mac that matches spec.placement and the rules of the namespace can inspect the source; `kubectl get mac` lists the Macs"}}
	}
}

// settled reports whether the Macs that are waited for can hardly change the largest group: none
// is left, or one that does not even report that it hashes its file, and there is a single group.
func (t *testimony) settled() bool {
	return len(t.waiting) == 0 || len(t.waiting) == 1 && t.running == 0 && len(t.groups) == 1
}

type macFailure struct {
	mac string
	Refusal
}

// bySeverity lists the reasons of a failed inspection. Later ones are more specific: a Mac
// with a damaged file reveals more than one without the file.
var bySeverity = []string{
	v1alpha1.ReasonInspectionFailed,
	v1alpha1.ReasonSourceNotFound,
	v1alpha1.ReasonSourceUnreachable,
	v1alpha1.ReasonSourceForbidden,
	v1alpha1.ReasonTokenRefused,
	v1alpha1.ReasonGatedModel,
	v1alpha1.ReasonUnsupportedModel,
	v1alpha1.ReasonInvalidModel,
	v1alpha1.ReasonDigestMismatch,
	v1alpha1.ReasonReportRefused,
}

func severity(reason string) int { return slices.Index(bySeverity, reason) }

// worst picks the most specific failure and names its Mac and the others.
func worst(failures []macFailure) *Refusal {
	f := slices.MaxFunc(failures, func(a, b macFailure) int {
		return cmp.Or(cmp.Compare(severity(a.Reason), severity(b.Reason)), cmp.Compare(b.mac, a.mac))
	})
	message := fmt.Sprintf("%s: %s", f.mac, cmp.Or(f.Message, "no message"))
	if n := len(failures) - 1; n > 0 {
		message += fmt.Sprintf(" (the inspection failed on %d Macs in total)", n+1)
	}
	return &Refusal{f.Reason, message}
}

// holdsSource reports whether a Mac has the files of a file:// record: only there can it be
// served.
func holdsSource(mac *v1alpha1.MacNode, m *model.Record, inspection string) bool {
	return reported(mac, m, inspection) || holdsParts(mac, m)
}

// holdsParts reports whether all weights of a record are in a Mac's store.
func holdsParts(mac *v1alpha1.MacNode, m *model.Record) bool {
	return !slices.ContainsFunc(m.Parts(), func(part model.Record) bool { return !HasWeights(mac, part.Digest) })
}

// StillLooks reports whether a Mac may yet find a record's source: it has reported neither
// success nor failure for it.
func StillLooks(mac *v1alpha1.MacNode, source string) bool {
	return !slices.ContainsFunc(mac.Status.Inspections, func(r v1alpha1.InspectionStatus) bool {
		return r.Source == source && r.State != v1alpha1.InspectionRunning
	})
}

// HasWeights reports whether the weights are in a Mac's store.
func HasWeights(mac *v1alpha1.MacNode, digest string) bool {
	return slices.ContainsFunc(mac.Status.Weights, func(w v1alpha1.StoredWeights) bool { return w.Digest == digest })
}

// list formats up to four names and the number of the rest.
func list(names []string) string {
	const shown = 4
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}
