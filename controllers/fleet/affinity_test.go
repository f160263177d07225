//go:build !race

package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// randomRequirement is one of few keys and values, some of which the schema of today refuses.
func randomRequirement(r *rand.Rand) v1alpha1.NodeSelectorRequirement {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	keys := []string{"room", "example.com/age", "none"}
	if r.IntN(8) == 0 {
		keys = append(keys, "a..b/x", "/x", "x/", "a/b/c", "-a", "A.com/x", "-a/x", "", strings.Repeat("k", 64), strings.Repeat("p", 254)+"/x", strings.Repeat("p.", 126)+"p/x", "a_b/x", "a.b-/x")
	}
	values := []string{"lab", "2", "07", "", "a-1", "X_y.z"}
	if r.IntN(8) == 0 {
		values = append(values, "-", "a b", "x-", ".x", "+5", "ü", strings.Repeat("v", 64), strings.Repeat("v", 63))
	}
	out := v1alpha1.NodeSelectorRequirement{Key: one(keys...)}
	count := 0
	switch out.Operator = corev1.NodeSelectorOperator(one("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")); out.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		count = 1 + r.IntN(3)
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		count, values = 1, append(values, "1", "3", "9223372036854775807", "9223372036854775808")
		if r.IntN(4) > 0 {
			values = []string{"1", "2", "3", "07"}
		}
	}
	if r.IntN(40) == 0 {
		count = r.IntN(3)
	}
	for range count {
		out.Values = append(out.Values, one(values...))
	}
	return out
}

func randomTerm(r *rand.Rand) (out v1alpha1.NodeSelectorTerm) {
	for range r.IntN(3) {
		out.MatchExpressions = append(out.MatchExpressions, randomRequirement(r))
	}
	if r.IntN(3) == 0 {
		out.MatchFields = append(out.MatchFields, v1alpha1.NodeSelectorRequirement{Key: "metadata.name",
			Operator: corev1.NodeSelectorOperator([]string{"In", "NotIn"}[r.IntN(2)]), Values: []string{[]string{"studio", "mini"}[r.IntN(2)]}})
	}
	return out
}

// schedulers converts terms for the scheduler's own evaluation.
func schedulers(t *testing.T, from, to any) {
	t.Helper()
	b, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(b, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestAffinitiesMatchAsInTheScheduler compares random affinities with Kubernetes' evaluation.
func TestAffinitiesMatchAsInTheScheduler(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	mac := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio", Labels: map[string]string{"room": "lab", "example.com/age": "2"}}}
	node := &corev1.Node{ObjectMeta: mac.ObjectMeta}
	count := map[string]int{}
	for range 20_000 {
		a := v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{}}
		for range 1 + r.IntN(3) {
			terms := &a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			*terms = append(*terms, randomTerm(r))
		}
		for range r.IntN(3) {
			a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
				v1alpha1.PreferredSchedulingTerm{Weight: 1 + r.Int32N(100), Preference: randomTerm(r)})
		}
		var theirs corev1.NodeAffinity
		schedulers(t, a, &theirs)
		required, failed := nodeaffinity.NewNodeSelector(theirs.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred, also := nodeaffinity.NewPreferredSchedulingTerms(theirs.PreferredDuringSchedulingIgnoredDuringExecution)
		e := NewEligibility(v1alpha1.PlacementSpec{Affinity: &v1alpha1.Affinity{NodeAffinity: &a}})
		why, ok := e.Of(&mac)
		if invalid := failed != nil || also != nil; invalid != (e.invalid != "") || invalid && ok {
			t.Fatalf("seed %d: %+v: %q, the scheduler reports %v, %v", seed, a, e.invalid, failed, also)
		} else if invalid {
			count["invalid"]++
			continue
		}
		count[fmt.Sprint(ok)]++
		if want := required.Match(node); ok != want {
			t.Fatalf("seed %d: %+v matches: %v (%s), want %v", seed, a, ok, why, want)
		}
		want := 0.0
		if e.weights > 0 {
			want = float64(preferred.Score(node)) / float64(e.weights)
		}
		if got := e.Preferred(&mac); got != want {
			t.Fatalf("seed %d: %+v has the share %v, want %v", seed, a, got, want)
		}
	}
	if len(count) != 3 || count["invalid"] < 1000 || count["true"] < 1000 || count["false"] < 1000 {
		t.Errorf("seed %d: the histories are one-sided: %v", seed, count)
	}
}

// TestANegativeBound: the scheduler refuses it, although the operators compare integers.
func TestANegativeBound(t *testing.T) {
	mac := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"age": "0"}}}
	for operator, want := range map[corev1.NodeSelectorOperator]bool{corev1.NodeSelectorOpGt: true, corev1.NodeSelectorOpLt: false} {
		p := expressions(v1alpha1.NodeSelectorRequirement{Key: "age", Operator: operator, Values: []string{"-1"}})
		if why, ok := Eligible(&mac, p); ok != want || InvalidPlacement(&p) != nil {
			t.Errorf("%s -1: %v %q, want %v", operator, ok, why, want)
		}
	}
}

// expressions is a placement with one required term.
func expressions(all ...v1alpha1.NodeSelectorRequirement) v1alpha1.PlacementSpec {
	return v1alpha1.PlacementSpec{Affinity: &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: all}}}}}}
}

// TestAttackAnAffinityOfThousandsOfErrors: an affinity that a cluster has stored may have an
// error in each value; each Mac and each message costs the first alone.
func TestAttackAnAffinityOfThousandsOfErrors(t *testing.T) {
	for name, bad := range map[string]v1alpha1.NodeSelectorRequirement{
		"values":    {Key: "room", Operator: corev1.NodeSelectorOpIn, Values: []string{"-1"}},
		"keys":      {Key: "a..b/" + strings.Repeat("x", 1000), Operator: corev1.NodeSelectorOpExists},
		"operators": {Key: "room", Operator: corev1.NodeSelectorOperator(strings.Repeat("ü", 1000))},
	} {
		for len(bad.Values) > 0 && len(bad.Values) < 4400 {
			bad.Values = append(bad.Values, fmt.Sprint("-", len(bad.Values)))
		}
		all := make([]v1alpha1.NodeSelectorRequirement, 200)
		for i := range all {
			all[i] = bad
		}
		p := expressions(all...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		why, ok := "", false
		for range 100 {
			e := NewEligibility(p)
			for range 100 {
				why, ok = e.Of(&v1alpha1.MacNode{})
			}
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / 100; each > 16<<10 {
			t.Errorf("%s: %d bytes are allocated for 100 Macs, want at most 16 KiB", name, each)
		}
		if refusal := InvalidPlacement(&p); ok || len(why) > 400 || refusal == nil || len(refusal.Message) > 400 {
			t.Errorf("%s: eligible: %v, %d bytes: %s", name, ok, len(why), why)
		}
	}
}
