package fleet

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func withAdapters(namespace, name string, served []string, adapters ...string) v1alpha1.ModelDeployment {
	d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	d.Spec.Model.Source, d.Spec.ServedNames = "hf://a/b", served
	for _, a := range adapters {
		d.Spec.Adapters = append(d.Spec.Adapters, v1alpha1.AdapterSpec{Name: a, Source: "hf://a/" + a, Revision: strings.Repeat("1", 40)})
	}
	return d
}

// Each name of a deployment has one with each adapter; NAMESPACE/NAME comes last, and its
// adapters' names are the deployment's in any case.
func TestAdaptersAreServedUnderEachName(t *testing.T) {
	all := []v1alpha1.ModelDeployment{withAdapters("ns", "m", []string{"x", "y"}, "one", "two"), withAdapters("other", "n", []string{"ns/m:one", "x:two"})}
	all[1].Status.ServedNames = []string{"x:two", "other/n"}
	owned, conflicts := Names(&all[0], Holders(all))
	if want := []string{"x", "y", "x:one", "y:one", "ns/m:one", "y:two", "ns/m:two", "ns/m"}; !slices.Equal(owned, want) {
		t.Errorf("it owns %q, want %q", owned, want)
	}
	if len(conflicts) != 1 || conflicts[0].Name != "x:two" {
		t.Errorf("conflicts %+v, want x:two, which the other has", conflicts)
	}
	if _, conflicts := Names(&all[1], Holders(all)); len(conflicts) != 1 || conflicts[0].Name != "ns/m:one" {
		t.Errorf("the other may take a name of the first's adapters: %+v", conflicts)
	}
}

// A Mac's report is of the adapters that the deployment names, and a change of them is
// inspected again.
func TestReportsAreOfTheDeploymentsAdapters(t *testing.T) {
	d := withAdapters("ns", "m", nil, "one", "two")
	record := model.Record{Source: "hf://a/b", Commit: strings.Repeat("2", 40), Files: []model.File{{Path: "model.safetensors"}}}
	for _, a := range d.Spec.Adapters {
		record.Adapters = append(record.Adapters, model.Adapter{Name: a.Name, Source: a.Source, Commit: a.Revision})
	}
	source := d.Spec.Model.Resolved()
	for name, c := range map[string]struct {
		change func(r *model.Record)
		fine   bool
	}{
		"the same":        {func(*model.Record) {}, true},
		"none":            {func(r *model.Record) { r.Adapters = nil }, false},
		"one less":        {func(r *model.Record) { r.Adapters = r.Adapters[:1] }, false},
		"another source":  {func(r *model.Record) { r.Adapters[1].Source = "hf://a/three" }, false},
		"another commit":  {func(r *model.Record) { r.Adapters[0].Commit = strings.Repeat("3", 40) }, false},
		"another's place": {func(r *model.Record) { slices.Reverse(r.Adapters) }, false},
	} {
		changed := *record.DeepCopy()
		c.change(&changed)
		_, refusal := recordOf(&source, d.Spec.Adapters, &v1alpha1.InspectionStatus{State: v1alpha1.InspectionResolved, Model: &changed})
		if (refusal == nil) != c.fine {
			t.Errorf("%s: %v", name, refusal)
		}
	}
	less := withAdapters("ns", "m", nil, "one")
	if InspectionID(&d) == InspectionID(&less) {
		t.Error("other adapters have the same inspection")
	}
}

// A replica is served under the names of the adapters that its revision has, also while a
// rollout adds or removes some.
func TestAReplicaIsServedUnderTheAdaptersItHas(t *testing.T) {
	d := withAdapters("ns", "m", []string{"x", "x:8b"}, "one", "two")
	d.Status.ServedNames = append(Claims(&d), "ns/m")
	d.Status.Adapters = Adapters(&d, d.Status.ServedNames)
	if want := []string{"one", "two"}; !slices.Equal(d.Status.Adapters, want) {
		t.Fatalf("its names select %q, want %q", d.Status.Adapters, want)
	}
	for name, c := range map[string]struct {
		has, want []string
	}{
		"both": {[]string{"one", "two"}, d.Status.ServedNames},
		"one":  {[]string{"one", "removed"}, []string{"x", "x:8b", "x:one", "x:8b:one", "ns/m:one", "ns/m"}},
		"none": {nil, []string{"x", "x:8b", "ns/m"}},
	} {
		r := v1alpha1.ModelReplica{Spec: v1alpha1.ModelReplicaSpec{NodeName: "mac"}}
		for _, a := range c.has {
			r.Spec.Model.Adapters = append(r.Spec.Model.Adapters, model.Adapter{Name: a})
		}
		if got := assignment(&r, &d).ServedNames; !slices.Equal(got, c.want) {
			t.Errorf("%s: served as %q, want %q", name, got, c.want)
		}
	}
	if got := Adapters(&d, []string{"x", "x:8b", "x:one", "ns/m"}); !slices.Equal(got, []string{"one"}) {
		t.Errorf("names of one adapter select %q", got)
	}
}

// A Mac that reports the model, with other adapters or with none, does not vouch for these.
func TestMacsVouchForAdaptersToo(t *testing.T) {
	record := model.Record{Source: "hf://a/b", Digest: "sha256:m", Adapters: []model.Adapter{{Name: "one", Source: "hf://a/one", Digest: "sha256:a"}}}
	mac := func(change func(*model.Record), weights ...string) *v1alpha1.MacNode {
		r := *record.DeepCopy()
		change(&r)
		m := &v1alpha1.MacNode{}
		m.Status.Inspections = []v1alpha1.InspectionStatus{{ID: "id", State: v1alpha1.InspectionResolved, Model: &r}}
		for _, digest := range weights {
			m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest})
		}
		return m
	}
	none := func(r *model.Record) { r.Adapters = nil }
	for name, c := range map[string]struct {
		mac     *v1alpha1.MacNode
		vouches bool
	}{
		"the same":          {mac(func(*model.Record) {}), true},
		"under other names": {mac(func(r *model.Record) { r.Adapters[0].Name = "other" }), true},
		"no adapter":        {mac(none), false},
		"other files":       {mac(func(r *model.Record) { r.Adapters[0].Digest = "sha256:b" }), false},
		"another source":    {mac(func(r *model.Record) { r.Adapters[0].Source = "hf://a/two" }), false},
		"it has the model":  {mac(none, "sha256:m"), false},
		"it has everything": {mac(none, "sha256:m", "sha256:a"), true},
	} {
		if got := VouchesItself(c.mac, &record, "id"); got != c.vouches {
			t.Errorf("%s: vouches %v", name, got)
		}
	}
}

// TestFilesAreNoAdapters: any namespace may choose the files of a public model, and its inspection
// must not replace that of an adapter.
func TestFilesAreNoAdapters(t *testing.T) {
	theirs := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "m", UID: "theirs"}}
	theirs.Spec.Model.Source = "hf://org/base"
	theirs.Spec.Adapters = []v1alpha1.AdapterSpec{{Name: "sql", Source: "hf://org/sql", Revision: "v1"}}
	for _, files := range [][]string{{"adapter", "sql", "hf://org/sql", "v1"}, {"adapters", "sql", "hf://org/sql", "v1"}, {"sql", "hf://org/sql", "v1"}, {"8:adapters", "3:sql", "12:hf://org/sql", "2:v1"}} {
		mine := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "mine", Name: "m", UID: "mine"}}
		mine.Spec.Model.Source, mine.Spec.Model.Files = "hf://org/base", files
		if InspectionID(theirs) == InspectionID(mine) {
			t.Errorf("the files %q have the inspection of the adapter", files)
		}
	}
	two := theirs.DeepCopy()
	two.Spec.Adapters = append(two.Spec.Adapters, v1alpha1.AdapterSpec{Name: "b", Source: "hf://org/b", Revision: "v1"})
	if InspectionID(theirs) == InspectionID(two) {
		t.Error("an adapter more has the same inspection")
	}
}
