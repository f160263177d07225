//go:build !race

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// keeps makes a replica keep its weights, on a Mac if there is one.
func keeps(mac string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Desired, r.Spec.PrefetchNodeName = v1alpha1.DesiredDownloaded, mac
	}
}

// freeDisk is a change of a Mac that has this many bytes free.
func freeDisk(bytes int64) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) { m.Status.Disk.FreeBytes = bytes }
}

func goneMac(m *v1alpha1.MacNode) {
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMacGone}}
}

func leavingMac(m *v1alpha1.MacNode) {
	m.DeletionTimestamp, m.Finalizers = &metav1.Time{Time: now}, []string{v1alpha1.FinalizerDrain}
}

// rulesOf are rules of one kind for all namespaces.
func rulesOf(r v1alpha1.NamespaceRule) Rules {
	return NewRules(&v1alpha1.NamespaceRules{Spec: v1alpha1.NamespaceRulesSpec{Default: r}}, true)
}

// It needs disk space and no memory, on a Mac that could serve the model.
func TestWeightsAreKeptWhereTheyCanBeServed(t *testing.T) {
	type macs = []v1alpha1.MacNode
	type replicas = []v1alpha1.ModelReplica
	const yes, noRoom, none, quota = v1alpha1.ReasonPrefetching, v1alpha1.ReasonNoRoom, v1alpha1.ReasonNoCandidates, v1alpha1.ReasonOverQuota
	limit := func(text string) *resource.Quantity { return ptr.To(resource.MustParse(text)) }
	for name, tc := range map[string]struct {
		macs     macs
		existing replicas
		rules    Rules
		mac      string // that keeps them so far
		reason   string
		keeps    string
		says     string
	}{
		"a Mac whose memory is reserved":    {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", 10*gib, on("a"))}, reason: yes, keeps: "a"},
		"a Mac that is too small":           {macs: macs{mac("a", 4*gib)}, reason: v1alpha1.ReasonTooLarge, says: "too small even if empty"},
		"a full disk":                       {macs: macs{mac("a", 10*gib, freeDisk(3*gib))}, reason: noRoom, says: "without disk space"},
		"the one with a disk":               {macs: macs{mac("a", 10*gib, freeDisk(3*gib)), mac("b", 10*gib)}, reason: yes, keeps: "b"},
		"the one that has the weights":      {macs: macs{mac("a", 10*gib), mac("b", 10*gib, has("w", 4*gib, 1))}, reason: yes, keeps: "b"},
		"a Mac that serves it":              {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", gib, on("a"), of("d"))}, reason: none, says: "with the weights for another replica of the deployment"},
		"a Mac that keeps it":               {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", gib, keeps("a"), of("d"))}, reason: none, says: "with the weights for another replica"},
		"a Mac that keeps another":          {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", gib, keeps("a"), of("e"))}, reason: yes, keeps: "a"},
		"another download fills the disk":   {macs: macs{mac("a", 10*gib, freeDisk(7*gib))}, existing: replicas{replica("s", gib, keeps("a"), carries("x", 4*gib))}, reason: noRoom},
		"a tainted Mac":                     {macs: macs{mac("a", 10*gib, taintedMac(corev1.TaintEffectNoSchedule))}, reason: none},
		"a Mac that was tainted since":      {macs: macs{mac("a", 10*gib, taintedMac(corev1.TaintEffectNoSchedule)), mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "b"},
		"it stays on a cordoned Mac":        {macs: macs{mac("a", 10*gib, cordonedMac), mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "a"},
		"it begins on none":                 {macs: macs{mac("a", 10*gib, cordonedMac)}, reason: none},
		"it stays while its Mac is silent":  {macs: macs{mac("a", 10*gib, silentMac), mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "a"},
		"it moves if its Mac is gone":       {macs: macs{mac("a", 10*gib, goneMac), mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "b"},
		"and if it leaves":                  {macs: macs{mac("a", 10*gib, leavingMac), mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "b"},
		"and if it is deleted":              {macs: macs{mac("b", 10*gib)}, mac: "a", reason: yes, keeps: "b"},
		"without Macs":                      {reason: none},
		"rules that allow none":             {macs: macs{mac("a", 10*gib)}, rules: rulesOf(v1alpha1.NamespaceRule{}), reason: quota, says: "namespace ns may prefetch 0 "},
		"rules that allow it":               {macs: macs{mac("a", 10*gib)}, rules: rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: limit("4Gi")}), reason: yes, keeps: "a"},
		"others of the namespace use it up": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)}, existing: replicas{replica("s", gib, keeps("b"), carries("x", gib))}, rules: rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: limit("4Gi")}), reason: quota, says: "has prefetched 1.0 GiB"},
		"what is kept already stays":        {macs: macs{mac("a", 10*gib)}, mac: "a", rules: rulesOf(v1alpha1.NamespaceRule{}), reason: yes, keeps: "a"},
		"rules that are missing":            {macs: macs{mac("a", 10*gib)}, rules: NewRules(nil, true), reason: v1alpha1.ReasonRulesMissing},
		"Macs of others":                    {macs: macs{mac("a", 10*gib)}, rules: rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: limit("1Ti"), MacSelector: &v1alpha1.MacSelector{MatchLabels: map[string]string{"room": "b"}}}), reason: none, says: "macSelector"},
		"the namespace's share of a Mac":    {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", gib, keeps("a"), of("e"))}, rules: rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: limit("1Ti"), ReplicasPerMac: 1}), reason: none, says: "replicasPerMac"},
		"its share of serving ones":         {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", gib, on("a"))}, rules: rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: limit("1Ti"), ReplicasPerMac: 1}), reason: none, says: "replicasPerMac"},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica("r", 5*gib, of("d"), keeps(tc.mac), carries("w", 4*gib))
			all := append(replicas{r}, tc.existing...)
			d := NewSnapshot(tc.macs, all, now).Under(tc.rules).PickPrefetch(&r)
			if d.Reason != tc.reason || d.Mac != "" || d.FetchesOn(&r) != tc.keeps || !strings.Contains(d.Message, tc.says) {
				t.Errorf("%s on %q: %s; want %s on %q", d.Reason, d.FetchesOn(&r), d.Message, tc.reason, tc.keeps)
			}
		})
	}
}

// Weights that are kept take no memory from what is to serve.
func TestKeptWeightsReserveNoMemory(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 10*gib)}
	r := replica("r", 10*gib)
	if d := NewSnapshot(macs, []v1alpha1.ModelReplica{replica("s", 10*gib, keeps("a")), r}, now).Pick(&r); d.Mac != "a" {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
}

// TestServingCountsWhatANamespaceOnlyKeeps: its share of a Mac is for both. Weights that the
// deployment itself keeps there do not stop it: they are for this.
func TestServingCountsWhatANamespaceOnlyKeeps(t *testing.T) {
	rules := rulesOf(v1alpha1.NamespaceRule{PrefetchLimit: ptr.To(resource.MustParse("1Ti")), ReplicasPerMac: 1})
	for kept, placed := range map[string]bool{"d": true, "e": false} {
		r := replica("r", gib, of("d"))
		all := []v1alpha1.ModelReplica{r, replica("k", gib, keeps("a"), of(kept))}
		d := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib)}, all, now).Under(rules).Pick(&r)
		if (d.Mac == "a") != placed || !placed && !strings.Contains(d.Message, "replicasPerMac") {
			t.Errorf("weights of deployment %s are kept: placed on %q, %s", kept, d.Mac, d.Message)
		}
	}
}

// TestASharePlacedAndTakenBack: what was only assumed does not count any more.
func TestASharePlacedAndTakenBack(t *testing.T) {
	first, second, other := replica("first", gib), replica("second", gib), replica("other", gib, on("a"))
	other.Namespace = "other"
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib)}, []v1alpha1.ModelReplica{first, second, other}, now).Under(rulesOf(v1alpha1.NamespaceRule{ReplicasPerMac: 1}))
	undo := s.Assume(&first, "a")
	if d := s.Pick(&second); d.Mac != "" {
		t.Errorf("beyond the share: %s", d.Message)
	}
	undo()
	if d := s.Pick(&second); d.Mac != "a" {
		t.Errorf("after it was taken back: %s", d.Message)
	}
}
