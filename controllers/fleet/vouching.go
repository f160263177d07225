package fleet

import (
	"cmp"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// vouchersNeeded is how many Macs must find the same record before a Mac that did not find
// it acts on it. A Mac may be compromised: its report counts for itself, and needs a second
// one to count for others.
const vouchersNeeded = 2

// Vouched reports whether every Mac may act on a record: enough Macs vouched for it when it
// was accepted, or report the same now of the inspection with that id.
func Vouched(m *model.Record, inspection string, macs []*v1alpha1.MacNode) bool {
	if strings.HasPrefix(m.Source, FileScheme) {
		return false // each Mac has files of its own
	}
	if Confirmed(m) {
		return true
	}
	n := 0
	for _, mac := range macs {
		if StateOf(mac) == MacReady && (slices.Contains(m.VouchedBy, mac.Name) || reported(mac, m, inspection)) {
			n++
		}
	}
	return n >= vouchersNeeded
}

// Confirmed reports whether a record stays, regardless of what Macs report later: enough of them vouched for it
// when it was accepted.
func Confirmed(m *model.Record) bool {
	return len(m.VouchedBy) >= vouchersNeeded || slices.Contains(m.VouchedBy, model.VoucherPreview)
}

// Superseded reports whether an accepted record of a deployment that is not confirmed gives way to what
// was found now. It does if enough Macs found a record that contradicts it: the same files have the same
// facts, and the same commit, SHA-256 or file:// source the same files. Of a download it does as well
// if enough Macs found any other record, or were denied the source, unless a second Mac reports the accepted
// one: a Mac that invents a commit looks like one that saw an earlier commit.
// If one Mac alone found the other record, the accepted one stays while the MacNode that vouched for it
// exists, also one that is silent, or a Mac reports it or holds the weights.
func Superseded(d *v1alpha1.ModelDeployment, accepted *model.Record, now Finding, macs []v1alpha1.MacNode) bool {
	found := now.Record
	if Confirmed(accepted) || !now.Denied && (found == nil || sameRecord(accepted, found)) {
		return false
	}
	id, backed, held := InspectionID(d), 0, false
	for i := range macs {
		r := inspectionOf(&macs[i], id)
		backs := slices.Contains(accepted.VouchedBy, macs[i].Name) || r != nil && r.Model != nil && sameRecord(r.Model, accepted)
		if backs && StateOf(&macs[i]) == MacReady {
			backed++
		}
		held = held || backs || holdsParts(&macs[i], accepted)
	}
	if now.Denied {
		return backed < vouchersNeeded
	}
	enough, same := len(found.VouchedBy) >= vouchersNeeded, accepted.Digest == found.Digest
	local := strings.HasPrefix(accepted.Source, FileScheme)
	fixed := local || d.Spec.Model.SHA256 != "" || accepted.Commit != "" && accepted.Commit == found.Commit
	contradicts := same && !sameKind(accepted, found) || !same && fixed
	switch {
	case enough && contradicts:
		return true
	case enough && !local:
		return backed < vouchersNeeded
	}
	return !held
}

// VouchesItself reports whether a Mac may act on a record on its own: it found the record
// itself, or holds the weights.
func VouchesItself(mac *v1alpha1.MacNode, m *model.Record, inspection string) bool {
	return holdsSource(mac, m, inspection) || !strings.HasPrefix(m.Source, FileScheme) && slices.Contains(m.VouchedBy, mac.Name)
}

// reported reports whether a Mac currently reports these contents of a record's source and
// of those of its adapters, of the inspection with that id: another one may have used the
// credential of another tenant. A later commit with the same files is the same. Other facts of the
// same files of a download are not: memory is reserved for them on the Mac. A file:// source
// has no credential, and is served only where its files are.
func reported(mac *v1alpha1.MacNode, m *model.Record, inspection string) bool {
	local := strings.HasPrefix(m.Source, FileScheme)
	lacks := func(r *model.Record, a model.Adapter) bool { return !slices.ContainsFunc(r.Adapters, a.SameFiles) }
	return slices.ContainsFunc(mac.Status.Inspections, func(r v1alpha1.InspectionStatus) bool {
		asked := local || r.ID == inspection && inspection != ""
		return asked && r.State == v1alpha1.InspectionResolved && r.Model != nil && r.Model.Digest == m.Digest && r.Model.Source == m.Source && (local || sameKind(r.Model, m)) &&
			!slices.ContainsFunc(m.Adapters, func(a model.Adapter) bool { return lacks(r.Model, a) })
	})
}

// testimony holds the reports of the inspecting Macs on one source.
type testimony struct {
	// groups of Macs that found the same.
	groups []*agreement
	// waiting are the Macs without a result; running counts those that report that they inspect.
	waiting []string
	running int
	// failures of all others; verdicts counts those about the source itself, rather than
	// about reaching it or the report.
	failures []macFailure
	verdicts int
}

// agreement is a record with the Macs that found it, sorted by name, and the features that
// all of them report: an older agent reports none.
type agreement struct {
	record   *model.Record
	macs     []string
	features []model.Feature
}

// add adds the report of a Mac; nil if there is none.
func (t *testimony) add(d *v1alpha1.ModelDeployment, mac string, r *v1alpha1.InspectionStatus) {
	if r == nil || r.State == v1alpha1.InspectionRunning {
		t.waiting = append(t.waiting, mac)
		if r != nil {
			t.running++
		}
		return
	}
	source := d.Spec.Model.Resolved()
	record, refusal := recordOf(&source, d.Spec.Adapters, r)
	if refusal != nil {
		t.failures = append(t.failures, macFailure{mac, *refusal})
		switch refusal.Reason {
		case v1alpha1.ReasonSourceUnreachable, v1alpha1.ReasonReportRefused, v1alpha1.ReasonInspectionFailed:
		default:
			t.verdicts++
		}
		return
	}
	for _, g := range t.groups {
		if sameRecord(g.record, record) {
			g.macs = append(g.macs, mac)
			slices.Sort(g.macs)
			g.features = slices.DeleteFunc(g.features, func(f model.Feature) bool { return !slices.Contains(record.Features, f) })
			return
		}
	}
	t.groups = append(t.groups, &agreement{record, []string{mac}, slices.Clone(record.Features)})
}

// unable counts the Macs that could not reach the source, or report on it.
func (t *testimony) unable() int { return len(t.failures) - t.verdicts }

// mayAgree reports whether enough Macs were asked: including those without a report, enough
// of them may come to one result. One of these may never
// report, as a Mac that was taken over: it is not waited for alone.
func (t *testimony) mayAgree() bool {
	most, waiting := t.verdicts, len(t.waiting)
	if best := t.best(); best != nil {
		most = max(most, len(best.macs))
	}
	if most > 0 && waiting > 0 {
		waiting--
	}
	return most+waiting >= vouchersNeeded
}

// decided reports whether no other Mac is to be asked: enough of them were, or mostDisputing disagree:
// the source returns something else each time.
func (t *testimony) decided() bool { return t.mayAgree() || len(t.groups) >= mostDisputing }

// validate turns inconsistent records into failures. Macs of one group have the same files,
// so they fail together.
func (t *testimony) validate() {
	t.groups = slices.DeleteFunc(t.groups, func(g *agreement) bool {
		err := g.record.Validate()
		if err != nil {
			for _, mac := range g.macs {
				t.failures = append(t.failures, macFailure{mac, Refusal{v1alpha1.ReasonInvalidModel, err.Error()}})
			}
		}
		return err != nil
	})
}

// best returns the largest group, of equals the one with the first Mac by name; nil if
// there is none.
func (t *testimony) best() *agreement {
	if len(t.groups) == 0 {
		return nil
	}
	return slices.MinFunc(t.groups, func(a, b *agreement) int {
		return cmp.Or(len(b.macs)-len(a.macs), cmp.Compare(a.macs[0], b.macs[0]))
	})
}

// tied reports whether another group is as large as the largest one.
func (t *testimony) tied() bool {
	best := t.best()
	return slices.ContainsFunc(t.groups, func(g *agreement) bool { return g != best && len(g.macs) == len(best.macs) })
}

// accepted returns the record with the Macs that vouch for it, and none that a Mac named.
func (g *agreement) accepted() *model.Record {
	out := g.record.DeepCopy()
	out.Features = g.features
	out.VouchedBy = slices.Clone(g.macs[:min(len(g.macs), model.MaxVouchers)])
	return out
}

// disputed names the Macs that disagree, with what each found.
func (t *testimony) disputed(source string) *Refusal {
	var says []string
	for _, g := range t.groups {
		found := g.record.Digest
		if g.record.Commit != "" {
			found += " of commit " + g.record.Commit
		}
		says = append(says, list(g.macs)+" found "+found)
	}
	slices.Sort(says)
	return &Refusal{v1alpha1.ReasonSourceDisputed, fmt.Sprintf(
		"the Macs do not agree on the contents of %s: %s; if the source changed in between, name a commit (model.revision) or a digest, else find out which Mac is wrong and delete its MacNode", source, list(says))}
}

// sameRecord reports whether two Macs found the same. The model's display name and its
// features do not count.
func sameRecord(a, b *model.Record) bool {
	return a.Source == b.Source && a.Commit == b.Commit && a.Digest == b.Digest && sameKind(a, b) && slices.Equal(a.Files, b.Files) && reflect.DeepEqual(a.Adapters, b.Adapters)
}

// sameKind reports whether two records have the same format and dimensions.
func sameKind(a, b *model.Record) bool {
	x, y := a.Facts, b.Facts
	x.Name, y.Name = "", ""
	return a.Format == b.Format && x == y
}

// recordOf returns the record of a finished inspection, after comparing it with the
// deployment.
func recordOf(m *v1alpha1.ModelSource, adapters []v1alpha1.AdapterSpec, r *v1alpha1.InspectionStatus) (*model.Record, *Refusal) {
	if r.State == v1alpha1.InspectionResolved {
		if r.Model == nil {
			return nil, &Refusal{v1alpha1.ReasonInvalidModel, "the report contains no model record"}
		}
		if n := comparisons(r.Model.Files, m.Files); n > maxComparisons {
			return nil, &Refusal{v1alpha1.ReasonSpecTooLarge, fmt.Sprintf(
				"comparing the patterns of model.files with the paths of the source's files takes %d steps, at most %d are allowed; use fewer or shorter patterns with *", n, maxComparisons)}
		}
		if len(adapters) > 0 && len(r.Model.Adapters) == 0 {
			return nil, &Refusal{v1alpha1.ReasonReportRefused, "the report of this Mac contains no adapters; upgrade its agent, which does not know them"}
		}
		why := contradiction(m, r.Model)
		if why == "" && !slices.EqualFunc(adapters, r.Model.Adapters, finds) {
			why = "its adapters are others"
		}
		if why != "" {
			return nil, &Refusal{v1alpha1.ReasonReportRefused, "the report of this Mac contradicts the deployment: " + why + "; check that no one else controls the Mac"}
		}
		return r.Model, nil
	}
	reason := r.Reason
	if severity(reason) < 0 {
		reason = v1alpha1.ReasonInspectionFailed
	}
	return nil, &Refusal{reason, r.Message}
}

// finds reports whether a record of an adapter is of the one that a deployment names.
func finds(want v1alpha1.AdapterSpec, a model.Adapter) bool {
	return a.Name == want.Name && a.Source == want.Source && strings.HasPrefix(a.Source, hubScheme) == (a.Commit != "") &&
		(!commitID.MatchString(want.Revision) || a.Commit == want.Revision)
}

var commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// contradiction returns how a record differs from the deployment; empty if it does not.
func contradiction(m *v1alpha1.ModelSource, r *model.Record) string {
	repository, folder, revision := hubParts(m)
	switch {
	case r.Source != m.Source:
		return fmt.Sprintf("its source is %.200q", r.Source)
	case strings.HasPrefix(m.Source, "https://") && (m.SHA256 == "" || len(r.Files) != 1):
		return "an https:// source is one file with the digest model.sha256"
	case m.SHA256 != "" && len(r.Files) != 1:
		return fmt.Sprintf("it has %d files, but model.sha256 is the digest of one", len(r.Files))
	case m.SHA256 != "" && r.Files[0].SHA256 != m.SHA256:
		return "the SHA-256 of its file is " + r.Files[0].SHA256
	case repository == (r.Commit == ""):
		return "it has no commit, or one where there are none"
	case commitID.MatchString(revision) && r.Commit != revision:
		return "its commit is " + r.Commit
	}
	for _, f := range r.Files {
		if !strings.HasSuffix(f.Path, ".gguf") && !strings.HasSuffix(f.Path, ".safetensors") {
			continue // part of the weights: their folder is compared
		}
		if folder != "" && f.Path != folder && !strings.HasPrefix(f.Path, folder+"/") || !selected(f.Path, m.Files) {
			return fmt.Sprintf("its file %.200q is none that the deployment selects", f.Path)
		}
	}
	return ""
}

// hubParts parses an hf:// source, as hf://OWNER/NAME[@REVISION][/PATH]; Macs check the
// rest of it.
func hubParts(m *v1alpha1.ModelSource) (is bool, folder, revision string) {
	rest, is := strings.CutPrefix(m.Source, hubScheme)
	if !is {
		return false, "", ""
	}
	parts := strings.SplitN(rest, "/", 3)
	revision = m.Revision
	if len(parts) > 1 {
		if _, at, ok := strings.Cut(parts[1], "@"); ok {
			revision = at
		}
	}
	if len(parts) > 2 {
		folder = strings.Trim(parts[2], "/")
	}
	return true, folder, revision
}

// maxComparisons bounds the steps of selected for all files of a record: they are repeated
// whenever a Mac changes, and take some milliseconds.
const maxComparisons = 1 << 20

// comparisons returns how many steps selected takes at most for all files: what follows a * is
// compared at each position of a path.
func comparisons(files []model.File, globs []string) int {
	paths, patterns := 0, 0
	for _, f := range files {
		paths += len(f.Path)
	}
	for _, g := range globs {
		if _, after, star := strings.Cut(g, "*"); star {
			patterns += len(after)
		}
	}
	return paths * patterns
}

// selected reports whether model.files selects a path: a pattern matches the whole path or
// its last element.
func selected(p string, globs []string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(g string) bool {
		whole, _ := path.Match(g, p)
		last, _ := path.Match(g, path.Base(p))
		return whole || last
	})
}
