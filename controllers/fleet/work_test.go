//go:build !race

package fleet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// largeAffinity has terms of 8 expressions with 32 values each; the schema allows 16 of 16.
func largeAffinity(terms int) v1alpha1.PlacementSpec {
	var values []string
	for i := range 32 {
		values = append(values, fmt.Sprint(strings.Repeat("v", 60), i))
	}
	expression := v1alpha1.NodeSelectorRequirement{Key: "room", Operator: corev1.NodeSelectorOpNotIn, Values: values}
	selector := &v1alpha1.NodeSelector{}
	for range terms {
		term := v1alpha1.NodeSelectorTerm{}
		for range 8 {
			term.MatchExpressions = append(term.MatchExpressions, expression)
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	return v1alpha1.PlacementSpec{Affinity: &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}}
}

// TestAttackALargeAffinity: which Macs inspect a source is decided for every deployment
// whenever a Mac changes, so one deployment must not take seconds of it.
func TestAttackALargeAffinity(t *testing.T) {
	d := &v1alpha1.ModelDeployment{}
	d.Spec.Model.Source = "hf://org/model"
	var macs []v1alpha1.MacNode
	for i := range 100 {
		macs = append(macs, ready(fmt.Sprint("m", i)))
	}
	d.Spec.Placement = largeAffinity(1)
	if d.Spec.Placement.Affinity == nil || len(Asked(d, macs)) != 2 {
		t.Fatalf("%d Macs are asked, want 2", len(Asked(d, macs)))
	}
	allocations := func(n int) float64 { return testing.AllocsPerRun(3, func() { Asked(d, macs[:n]) }) }
	if one, all := allocations(1), allocations(100); all > 2*one+100*10 {
		t.Errorf("%.0f allocations for one Mac and %.0f for 100: the affinity is parsed for each", one, all)
	}
	d.Spec.Placement = largeAffinity(16)
	if Oversized(&d.Spec) == nil || len(Asked(d, macs)) != 0 || len(Inspections("m1", []v1alpha1.ModelDeployment{*d}, macs, nil)) != 0 {
		t.Errorf("Macs are asked for a deployment that is refused: %+v", Oversized(&d.Spec))
	}
	d.Spec.Placement = v1alpha1.PlacementSpec{NodeSelector: map[string]string{"key": strings.Repeat("x", 40<<10)}}
	if Compact(d, "", func(int) bool { return true }); d.Spec.Placement.NodeSelector != nil || len(Asked(d, macs)) != 0 {
		t.Errorf("Macs are asked for a deployment whose refused placement was dropped: %v", Asked(d, macs))
	}
}

// TestAttackPatternsThatTakeLong: each pattern nearly matches at each position of each path.
func TestAttackPatternsThatTakeLong(t *testing.T) {
	source := v1alpha1.ModelSource{Source: "hf://org/model", Files: []string{"*"}}
	record := model.Record{Source: source.Source, Commit: strings.Repeat("c", 40)}
	for i := range 40 {
		record.Files = append(record.Files, model.File{Path: fmt.Sprint("model", strings.Repeat("a", 400), i, ".safetensors")})
	}
	for i := range 15 {
		source.Files = append(source.Files, "*"+strings.Repeat("?", i)+strings.Repeat("a", 240-i)+"b")
	}
	report := &v1alpha1.InspectionStatus{State: v1alpha1.InspectionResolved, Model: &record}
	if _, refusal := recordOf(&source, nil, report); refusal == nil || refusal.Reason != v1alpha1.ReasonSpecTooLarge {
		t.Errorf("%+v", refusal)
	}
	source.Files, record.Files = []string{"model-*-of-00256.safetensors", "*.json", "tokenizer*"}, filesOf(256, "model-of-00256.safetensors")
	for i := range record.Files {
		record.Files[i].Path = fmt.Sprintf("model-%05d-of-00256.safetensors", i)
	}
	if _, refusal := recordOf(&source, nil, report); refusal != nil {
		t.Errorf("a large model with usual patterns: %+v", refusal)
	}
}
