//go:build !race

package namespacerules

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func parsed(t *testing.T, text string) *v1alpha1.NamespaceRulesSpec {
	t.Helper()
	var s v1alpha1.NamespaceRulesSpec
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func mac(name, taint string, effect corev1.TaintEffect) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name, "fleet": "x"}}}
	if taint != "" {
		m.Spec.Taints = []v1alpha1.Taint{{Key: taint, Effect: effect}}
	}
	return m
}

func TestRulesThatCannotWorkAreNamed(t *testing.T) {
	fleet := []v1alpha1.MacNode{mac("free", "", ""), mac("own", "dedicated", corev1.TaintEffectNoSchedule), mac("soft", "noisy", corev1.TaintEffectPreferNoSchedule)}
	for name, tc := range map[string]struct {
		rules    string
		macs     []v1alpha1.MacNode
		reason   string
		sentence string
	}{
		"nothing":                            {rules: "{}"},
		"namespaces that exist":              {rules: "namespaces: [{name: a, servedNames: [p]}, {name: b, servedNames: [q]}]"},
		"one that does not":                  {rules: "namespaces: [{name: a}, {name: c}, {name: d}]", reason: v1alpha1.ReasonUnknownNamespace, sentence: "there is no namespace c, d;"},
		"a name for two":                     {rules: "namespaces: [{name: a, servedNames: [x]}, {name: b, servedNames: [x]}]", reason: v1alpha1.ReasonContradictingRules, sentence: "namespaces a and b may both serve the name x"},
		"the name of another namespace":      {rules: "namespaces: [{name: a, servedNames: [b/x]}, {name: b, servedNames: ['{namespace}/x']}]", reason: v1alpha1.ReasonContradictingRules, sentence: "may both serve the name b/x"},
		"a name twice for one":               {rules: "namespaces: [{name: a, servedNames: [x, x]}]"},
		"a pattern for two":                  {rules: "namespaces: [{name: a, servedNames: ['qwen*']}, {name: b, servedNames: ['qwen*']}]"},
		"both":                               {rules: "namespaces: [{name: a, servedNames: [x]}, {name: c, servedNames: [x]}]", reason: v1alpha1.ReasonUnknownNamespace, sentence: "may both serve"},
		"a selector of no Mac":               {rules: "namespaces: [{name: a, macSelector: {matchLabels: {name: gone}}}]", macs: fleet, reason: v1alpha1.ReasonContradictingRules, sentence: "namespace a has a macSelector that matches no Mac"},
		"in a fleet without Macs":            {rules: "namespaces: [{name: a, macSelector: {matchLabels: {name: gone}}}]"},
		"the default selects no Mac":         {rules: "default: {macSelector: {matchLabels: {name: gone}}}", macs: fleet, reason: v1alpha1.ReasonContradictingRules, sentence: "a namespace that is not listed has a macSelector"},
		"a Mac whose taint is not tolerable": {rules: "namespaces: [{name: a, macSelector: {matchLabels: {name: own}}}]", macs: fleet, reason: v1alpha1.ReasonContradictingRules, sentence: "such as dedicated, that it may not tolerate"},
		"one that is":                        {rules: "{default: {tolerations: ['dedi*']}, namespaces: [{name: a, macSelector: {matchLabels: {name: own}}}]}", macs: fleet},
		"a taint that only discourages":      {rules: "namespaces: [{name: a, macSelector: {matchLabels: {name: soft}}}]", macs: fleet},
		"memory below zero":                  {rules: "default: {memoryLimit: -1Gi}", reason: v1alpha1.ReasonContradictingRules, sentence: "has the memoryLimit -1Gi; set it to 0 or more"},
		"one free Mac of several":            {rules: "namespaces: [{name: a, macSelector: {matchLabels: {fleet: x}}}]", macs: fleet},
	} {
		got := judge(parsed(t, tc.rules), observed{namespaces: sets.New("a", "b"), macs: tc.macs})
		if got.reason != tc.reason || !strings.Contains(got.sentence, tc.sentence) || tc.reason == "" && got.sentence != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTheUseOfANamespaceIsWhatPlacementCounts(t *testing.T) {
	replica := func(namespace, mac string, change func(*v1alpha1.ModelReplica)) v1alpha1.ModelReplica {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		r.Spec.NodeName, r.Spec.ReservedBytes = mac, 30
		if change != nil {
			change(&r)
		}
		return r
	}
	onDemand := func(r *v1alpha1.ModelReplica) { r.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand }
	released := func(r *v1alpha1.ModelReplica) {
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
	}
	limit := resource.MustParse("80")
	rules := &v1alpha1.NamespaceRulesSpec{Default: v1alpha1.NamespaceRule{MemoryLimit: &limit}, Namespaces: []v1alpha1.RulesOfNamespace{{Name: "idle"}}}
	got := used(rules, []v1alpha1.ModelReplica{replica("b", "m", nil), replica("b", "m", onDemand), replica("b", "", nil), replica("a", "m", nil), replica("b", "n", nil), replica("b", "n", released)})
	var text []string
	for _, u := range got {
		if u.MemoryLimitBytes == nil || *u.MemoryLimitBytes != 80 {
			t.Errorf("%s: limit %v, want the default", u.Name, u.MemoryLimitBytes)
		}
		text = append(text, u.Name, resource.NewQuantity(u.ReservedBytes, resource.DecimalSI).String(), resource.NewQuantity(int64(u.Replicas), resource.DecimalSI).String())
	}
	if all := strings.Join(text, " "); all != "a 30 1 b 60 3 idle 0 0" {
		t.Errorf("names, bytes and replicas are %s", all)
	}
	if s := summary(got); s.Fullest != "b 75%" || s.Reserved != "90 B" {
		t.Errorf("summary %+v", s)
	}
}
