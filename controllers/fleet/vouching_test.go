//go:build !race

package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

// resolvedAs reports a record for a deployment's source.
func resolvedAs(d *v1alpha1.ModelDeployment, r model.Record) v1alpha1.InspectionStatus {
	return v1alpha1.InspectionStatus{ID: InspectionID(d), State: v1alpha1.InspectionResolved, Model: &r}
}

func failedWith(d *v1alpha1.ModelDeployment, reason string) v1alpha1.InspectionStatus {
	return v1alpha1.InspectionStatus{ID: InspectionID(d), State: v1alpha1.InspectionFailed, Reason: reason, Message: "as the test says"}
}

// TestAttackAReportOfOtherWeights: a compromised Mac reports other weights for a source
// than the deployment names.
func TestAttackAReportOfOtherWeights(t *testing.T) {
	pinned, commit := strings.Repeat("a", 64), strings.Repeat("c", 40)
	https := v1alpha1.ModelSource{Source: "https://models.example.com/good.gguf", SHA256: pinned}
	repository := v1alpha1.ModelSource{Source: "hf://org/model", Revision: commit, Files: []string{"*Q8_0.gguf"}}
	folder := v1alpha1.ModelSource{Source: "hf://org/model@" + commit + "/4bit"}
	good := func(m v1alpha1.ModelSource) model.Record {
		r := fleettest.Model(m.Source, "good", 1<<30)
		switch {
		case m.SHA256 != "":
			r.Files[0].SHA256 = m.SHA256
		case len(m.Files) > 0:
			r.Files[0].Path, r.Commit = "model-Q8_0.gguf", commit
		default:
			r.Files[0].Path, r.Commit = "4bit/model.gguf", commit
		}
		return r
	}
	for name, tc := range map[string]struct {
		source v1alpha1.ModelSource
		lie    func(*model.Record)
	}{
		"nothing, at an address":      {source: https},
		"nothing, of a repository":    {source: repository},
		"nothing, of a folder":        {source: folder},
		"another source":              {source: https, lie: func(r *model.Record) { r.Source = "https://evil.example.net/backdoored.gguf" }},
		"another digest":              {source: https, lie: func(r *model.Record) { r.Files[0].SHA256 = strings.Repeat("b", 64) }},
		"another file as well":        {source: https, lie: func(r *model.Record) { r.Files = append(r.Files, model.File{Path: "x", Bytes: 1, SHA256: pinned}) }},
		"a commit where none is":      {source: https, lie: func(r *model.Record) { r.Commit = commit }},
		"another commit":              {source: repository, lie: func(r *model.Record) { r.Commit = strings.Repeat("d", 40) }},
		"no commit":                   {source: repository, lie: func(r *model.Record) { r.Commit = "" }},
		"a file that is not selected": {source: repository, lie: func(r *model.Record) { r.Files[0].Path = "model-Q4_0.gguf" }},
		"another repository":          {source: repository, lie: func(r *model.Record) { r.Source = "hf://evil/model" }},
		"another commit than @":       {source: folder, lie: func(r *model.Record) { r.Commit = strings.Repeat("d", 40) }},
		"a file of another folder":    {source: folder, lie: func(r *model.Record) { r.Files[0].Path = "4bitter/model.gguf" }},
	} {
		t.Run(name, func(t *testing.T) {
			d := deployment("d", tc.source.Source, time.Hour)
			d.Spec.Model = tc.source
			r := good(tc.source)
			if tc.lie != nil {
				tc.lie(&r)
			}
			r.Digest = model.DigestOf(r.Files)
			mac := ready("a")
			mac.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(&d, r)}
			f := Inspect(&d, []v1alpha1.MacNode{mac})
			if tc.lie == nil {
				if f.Record == nil {
					t.Errorf("an honest report is refused: %+v", f)
				}
				return
			}
			if f.Record != nil || f.Refusal == nil || f.Refusal.Reason != v1alpha1.ReasonReportRefused || !strings.Contains(f.Refusal.Message, "a: ") {
				t.Errorf("%+v, want a refusal that names the Mac", f)
			}
		})
	}
}

// fleetOf returns ready Macs with their reports; an empty report is none. The first is
// asked first, and so on.
func fleetOf(d *v1alpha1.ModelDeployment, reports ...v1alpha1.InspectionStatus) []v1alpha1.MacNode {
	macs := make([]v1alpha1.MacNode, 0, len(reports))
	for _, name := range []string{"a", "b", "c", "d", "e"}[:len(reports)] {
		macs = append(macs, ready(name))
	}
	slices.SortFunc(macs, func(a, b v1alpha1.MacNode) int {
		if spread(spreadFrom(InspectionID(d)), &a) < spread(spreadFrom(InspectionID(d)), &b) {
			return -1
		}
		return 1
	})
	for i, r := range reports {
		if r.ID != "" {
			macs[i].Status.Inspections = []v1alpha1.InspectionStatus{r}
		}
	}
	return macs
}

// TestAttackAMacThatLiesAboutASource: two Macs must find the same before other Macs act on
// the record of a download.
func TestAttackAMacThatLiesAboutASource(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	honest, evil := fleettest.Model("hf://org/model", "good", 1<<30), fleettest.Model("hf://org/model", "evil", 1<<30)
	evil.VouchedBy = []string{"a", "b", model.VoucherPreview} // the operator must overwrite it
	smaller, moved := honest, honest
	smaller.Facts.Layers, smaller.Facts.GrowingLayers = 1, 1
	moved.Commit = strings.Repeat("e", 40)
	good, bad, none := resolvedAs(&d, honest), resolvedAs(&d, evil), v1alpha1.InspectionStatus{}
	unreachable, missing := failedWith(&d, v1alpha1.ReasonSourceUnreachable), failedWith(&d, v1alpha1.ReasonSourceNotFound)
	full := failedWith(&d, v1alpha1.ReasonInspectionFailed)
	running := v1alpha1.InspectionStatus{ID: InspectionID(&d), State: v1alpha1.InspectionRunning}
	for name, tc := range map[string]struct {
		reports  []v1alpha1.InspectionStatus
		asked    int
		digest   string // of the accepted record
		vouchers int
		reason   string // of the wait, or the refusal
	}{
		"no report yet":                          {reports: []v1alpha1.InspectionStatus{none, none, none}, asked: 2, reason: v1alpha1.ReasonInspecting},
		"one report":                             {reports: []v1alpha1.InspectionStatus{bad, none, none}, asked: 3, reason: v1alpha1.ReasonInspecting},
		"one never reports":                      {reports: []v1alpha1.InspectionStatus{none, good, good, none}, asked: 3, digest: honest.Digest, vouchers: 2},
		"one reports that it runs, for ever":     {reports: []v1alpha1.InspectionStatus{good, running, good, none}, asked: 3, digest: honest.Digest, vouchers: 2},
		"two of the same":                        {reports: []v1alpha1.InspectionStatus{good, good, none}, asked: 2, digest: honest.Digest, vouchers: 2},
		"two that differ":                        {reports: []v1alpha1.InspectionStatus{bad, good, none}, asked: 3, reason: v1alpha1.ReasonInspecting},
		"the third decides":                      {reports: []v1alpha1.InspectionStatus{bad, good, good}, asked: 3, digest: honest.Digest, vouchers: 2},
		"other dimensions are another record":    {reports: []v1alpha1.InspectionStatus{resolvedAs(&d, smaller), good, good}, asked: 3, digest: honest.Digest, vouchers: 2},
		"another commit is another record":       {reports: []v1alpha1.InspectionStatus{resolvedAs(&d, moved), good, none}, asked: 3, reason: v1alpha1.ReasonInspecting},
		"no third Mac":                           {reports: []v1alpha1.InspectionStatus{bad, good}, asked: 2, reason: v1alpha1.ReasonSourceDisputed},
		"all differ":                             {reports: []v1alpha1.InspectionStatus{bad, good, resolvedAs(&d, moved)}, asked: 3, reason: v1alpha1.ReasonSourceDisputed},
		"the only Mac":                           {reports: []v1alpha1.InspectionStatus{good}, asked: 1, digest: honest.Digest, vouchers: 1},
		"the only one that reaches the source":   {reports: []v1alpha1.InspectionStatus{unreachable, good, unreachable}, asked: 3, digest: honest.Digest, vouchers: 1},
		"unreachable for the first":              {reports: []v1alpha1.InspectionStatus{unreachable, good, good}, asked: 3, digest: honest.Digest, vouchers: 2},
		"two do not find it":                     {reports: []v1alpha1.InspectionStatus{missing, missing, none}, asked: 2, reason: v1alpha1.ReasonSourceNotFound},
		"one finds it, two do not":               {reports: []v1alpha1.InspectionStatus{good, missing, missing, none}, asked: 3, reason: v1alpha1.ReasonSourceNotFound},
		"two do not find it, one never reports":  {reports: []v1alpha1.InspectionStatus{good, none, missing, missing}, asked: 4, reason: v1alpha1.ReasonSourceNotFound},
		"one finds it, one does not":             {reports: []v1alpha1.InspectionStatus{good, missing, unreachable}, asked: 3, digest: honest.Digest, vouchers: 1},
		"one does not find it, two do":           {reports: []v1alpha1.InspectionStatus{missing, good, good}, asked: 3, digest: honest.Digest, vouchers: 2},
		"unreachable for all":                    {reports: []v1alpha1.InspectionStatus{unreachable, unreachable, unreachable}, asked: 3, reason: v1alpha1.ReasonSourceUnreachable},
		"no room in the reports of two":          {reports: []v1alpha1.InspectionStatus{full, good, full, good}, asked: 4, digest: honest.Digest, vouchers: 2},
		"what contradicts the spec is no report": {reports: []v1alpha1.InspectionStatus{resolvedAs(&d, fleettest.Model("hf://evil/model", "good", 1<<30)), good, good}, asked: 3, digest: honest.Digest, vouchers: 2},
	} {
		t.Run(name, func(t *testing.T) {
			macs := fleetOf(&d, tc.reports...)
			if n := len(Asked(&d, macs)); n != tc.asked {
				t.Errorf("%d Macs are asked, want %d", n, tc.asked)
			}
			f := Inspect(&d, macs)
			if tc.digest != "" {
				if f.Record == nil || f.Record.Digest != tc.digest || len(f.Record.VouchedBy) != tc.vouchers || f.Record.Facts != honest.Facts {
					t.Errorf("%+v, want %s with %d vouchers", f, tc.digest, tc.vouchers)
				}
				return
			}
			got := f.Waiting
			if f.Refusal != nil {
				got = *f.Refusal
			}
			if f.Record != nil || got.Reason != tc.reason {
				t.Errorf("%+v, want reason %s", f, tc.reason)
			}
		})
	}
}

func TestAnotherMacIsAskedForOneThatFellSilent(t *testing.T) {
	d := deployment("d", "https://host/m.gguf", time.Hour)
	macs := []v1alpha1.MacNode{ready("a"), ready("b"), ready("c"), ready("d")}
	first := Asked(&d, macs)
	if len(first) != 2 {
		t.Fatalf("%d Macs are asked, want 2", len(first))
	}
	kept := first[1].Name
	silent(first[0])
	next := Asked(&d, macs)
	if len(next) != 2 || next[0] == first[0] || next[1] == first[0] || next[0].Name != kept && next[1].Name != kept {
		t.Errorf("another pair than %s and one more is asked", kept)
	}
	d.Spec.Placement.Chips = []string{"M9"}
	if none := Asked(&d, macs); none != nil {
		t.Errorf("asked %v, but no Mac may hold it", none)
	}
}

// TestAWordCountsForItsMac: which Macs may act on a record.
func TestAWordCountsForItsMac(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	found := fleettest.Model("hf://org/model", "good", 1<<30)
	later := found
	later.Commit = strings.Repeat("e", 40) // the same files
	by := func(names ...string) model.Record {
		r := found
		r.VouchedBy = names
		return r
	}
	a, b, c := ready("a"), ready("b"), ready("c")
	b.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(&d, later)}
	c.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(&d, fleettest.Model("hf://org/model", "other", 1<<30))}
	other := d.DeepCopy()
	other.Namespace, other.Spec.Model.SecretRef = "other", &v1alpha1.SecretReference{Name: "gated"}
	x := ready("x")
	x.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(other, found)}
	smaller, renamed, safe := found, found, found
	smaller.Facts.WeightBytes, renamed.Facts.Name, safe.Format = 1<<20, "another", model.FormatSafetensors
	f, g, n := ready("f"), ready("g"), ready("n")
	for mac, r := range map[*v1alpha1.MacNode]model.Record{&f: smaller, &g: safe, &n: renamed} {
		mac.Status.Inspections = []v1alpha1.InspectionStatus{resolvedAs(&d, r)}
	}
	holds := ready("holds")
	holds.Status.Weights = []v1alpha1.StoredWeights{{Digest: found.Digest}}
	for name, tc := range map[string]struct {
		record model.Record
		macs   []*v1alpha1.MacNode
		all    bool
		alone  []string // those that may act on their own report
	}{
		"two vouched":                 {record: by("x", "y"), macs: []*v1alpha1.MacNode{&a, &c}, all: true},
		"a preview":                   {record: by(model.VoucherPreview), macs: []*v1alpha1.MacNode{&a, &c}, all: true},
		"one vouched":                 {record: by("a"), macs: []*v1alpha1.MacNode{&a, &c}, alone: []string{"a"}},
		"a second one finds the same": {record: by("a"), macs: []*v1alpha1.MacNode{&a, &b, &c}, all: true, alone: []string{"a", "b"}},
		"a second one finds it for another tenant":    {record: by("a"), macs: []*v1alpha1.MacNode{&a, &x, &c}, alone: []string{"a"}},
		"a second one finds other facts of the files": {record: by("a"), macs: []*v1alpha1.MacNode{&a, &f}, alone: []string{"a"}},
		"a second one finds another format":           {record: by("a"), macs: []*v1alpha1.MacNode{&a, &g}, alone: []string{"a"}},
		"a second one finds another display name":     {record: by("a"), macs: []*v1alpha1.MacNode{&a, &n}, all: true, alone: []string{"a", "n"}},
		"one that is gone, and a second":              {record: by("x"), macs: []*v1alpha1.MacNode{&a, &b, &c}, alone: []string{"b"}},
		"no one vouched":                              {record: by(), macs: []*v1alpha1.MacNode{&a, &c, &holds}, alone: []string{"holds"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Vouched(&tc.record, InspectionID(&d), tc.macs); got != tc.all {
				t.Errorf("counts for every Mac: %v, want %v", got, tc.all)
			}
			var alone []string
			for _, m := range tc.macs {
				if VouchesItself(m, &tc.record, InspectionID(&d)) {
					alone = append(alone, m.Name)
				}
			}
			if !slices.Equal(alone, tc.alone) {
				t.Errorf("counts for %v, want %v", alone, tc.alone)
			}
		})
	}
}

// TestAttackAMacThatClaimsAFile: it reports a file:// source at once, while the others still
// hash their files. Its record would be that of the deployment for good.
func TestAttackAMacThatClaimsAFile(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.Spec.Model.Source = "file://team/model.gguf"
	honest, lie := fleettest.Model(d.Spec.Model.Source, "good", 1<<30), fleettest.Model(d.Spec.Model.Source, "evil", 1<<30)
	good, bad, missing := resolvedAs(d, honest), resolvedAs(d, lie), failedWith(d, v1alpha1.ReasonSourceNotFound)
	hashes := v1alpha1.InspectionStatus{ID: InspectionID(d), State: v1alpha1.InspectionRunning}
	for name, tc := range map[string]struct {
		reports []v1alpha1.InspectionStatus // of as many Macs; the others have none
		macs    int
		want    string // digest, or the reason of the wait or the refusal
	}{
		"one claim, two hash":                  {macs: 3, reports: []v1alpha1.InspectionStatus{bad}, want: v1alpha1.ReasonInspecting},
		"one claim, one other, one hashes":     {macs: 3, reports: []v1alpha1.InspectionStatus{bad, good}, want: v1alpha1.ReasonInspecting},
		"one claim, the owner hashes":          {macs: 4, reports: []v1alpha1.InspectionStatus{bad, missing, missing, hashes}, want: v1alpha1.ReasonInspecting},
		"one claim, the owner is done":         {macs: 4, reports: []v1alpha1.InspectionStatus{bad, missing, missing, good}, want: v1alpha1.ReasonSourceDisputed},
		"one claim, two others":                {macs: 3, reports: []v1alpha1.InspectionStatus{bad, good, good}, want: honest.Digest},
		"two claims, two others":               {macs: 4, reports: []v1alpha1.InspectionStatus{bad, good, bad, good}, want: v1alpha1.ReasonSourceDisputed},
		"two claims, two others of five":       {macs: 5, reports: []v1alpha1.InspectionStatus{bad, good, bad, good}, want: v1alpha1.ReasonInspecting},
		"two agree, two hash":                  {macs: 4, reports: []v1alpha1.InspectionStatus{good, good}, want: honest.Digest},
		"two agree, two report that they hash": {macs: 4, reports: []v1alpha1.InspectionStatus{good, good, hashes, hashes}, want: honest.Digest},
		"one has it, the others do not":        {macs: 3, reports: []v1alpha1.InspectionStatus{missing, good, missing}, want: honest.Digest},
		"one has it, one never reports":        {macs: 3, reports: []v1alpha1.InspectionStatus{missing, good}, want: honest.Digest},
		"a fleet of one Mac":                   {macs: 1, reports: []v1alpha1.InspectionStatus{good}, want: honest.Digest},
	} {
		var macs []v1alpha1.MacNode
		for i := range tc.macs {
			mac := ready(string(rune('a' + i)))
			if i < len(tc.reports) {
				mac.Status.Inspections = tc.reports[i : i+1]
			}
			macs = append(macs, mac)
		}
		f, got := Inspect(d, macs), ""
		switch {
		case f.Record != nil:
			got = f.Record.Digest
		case f.Refusal != nil:
			got = f.Refusal.Reason
		default:
			got = f.Waiting.Reason
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s: %+v", name, got, tc.want, f)
		}
	}
}

// TestAttackAMacOutsideTheRules: a Mac that the rules keep from a namespace gets neither its
// sources nor its credentials, and its word counts nothing.
func TestAttackAMacOutsideTheRules(t *testing.T) {
	rules := &v1alpha1.NamespaceRules{}
	rules.Spec.Namespaces = []v1alpha1.RulesOfNamespace{{Name: "team", NamespaceRule: v1alpha1.NamespaceRule{
		MacSelector: &v1alpha1.MacSelector{MatchLabels: map[string]string{"team": "team"}}}}}
	macs := []v1alpha1.MacNode{ready("a"), ready("b"), ready("c"), ready("d")}
	macs[0].Labels, macs[3].Labels = map[string]string{"team": "team"}, map[string]string{"team": "other"}
	names := func(macs []v1alpha1.MacNode) (out []string) {
		for i := range macs {
			out = append(out, macs[i].Name)
		}
		return out
	}
	for namespace, want := range map[string][]string{"team": {"a"}, "free": {"a", "b", "c", "d"}} {
		if got := names(Usable(rules, namespace, macs)); !slices.Equal(got, want) {
			t.Errorf("%s uses %v, want %v", namespace, got, want)
		}
	}
	d := deployment("d", "hf://org/private", time.Hour)
	d.Namespace, d.Spec.Model.SecretRef = "team", &v1alpha1.SecretReference{Name: "hub"}
	for i := range macs {
		in := Inspections(macs[i].Name, []v1alpha1.ModelDeployment{d}, macs, rules)
		if i == 0 && (len(in) != 1 || in[0].TokenRef == "") || i > 0 && len(in) != 0 {
			t.Errorf("%s is to inspect %v", macs[i].Name, in)
		}
	}
}

// A Mac with an older agent reports no features, and a Mac may lie: the record is the same,
// and has the features that all who found it report.
func TestFeaturesAreThoseThatAllMacsReport(t *testing.T) {
	d := deployment("d", "hf://org/model", time.Hour)
	with := func(features ...model.Feature) v1alpha1.InspectionStatus {
		r := fleettest.Model("hf://org/model", "good", 1<<30)
		r.Features = features
		return resolvedAs(&d, r)
	}
	for name, tc := range map[string]struct {
		reports []v1alpha1.InspectionStatus
		want    []model.Feature
	}{
		"the only Mac":    {reports: []v1alpha1.InspectionStatus{with(model.Chat)}, want: []model.Feature{model.Chat}},
		"both":            {reports: []v1alpha1.InspectionStatus{with(model.Chat, model.Tools), with(model.Chat, model.Tools)}, want: []model.Feature{model.Chat, model.Tools}},
		"one of them":     {reports: []v1alpha1.InspectionStatus{with(model.Chat, model.Tools), with(model.Chat)}, want: []model.Feature{model.Chat}},
		"an older second": {reports: []v1alpha1.InspectionStatus{with(model.Chat), with()}},
		"an older first":  {reports: []v1alpha1.InspectionStatus{with(), with(model.Chat)}},
	} {
		macs := fleetOf(&d, tc.reports...)
		before := fmt.Sprint(macs[0].Status.Inspections[0].Model.Features)
		f := Inspect(&d, macs)
		if f.Record == nil || len(f.Record.VouchedBy) != len(tc.reports) || !slices.Equal(f.Record.Features, tc.want) {
			t.Errorf("%s: %+v, want %q", name, f.Record, tc.want)
		}
		if after := fmt.Sprint(macs[0].Status.Inspections[0].Model.Features); after != before {
			t.Errorf("%s: the report changed from %s to %s", name, before, after)
		}
	}
}
