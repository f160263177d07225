//go:build !race

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func in(room string) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) { m.Labels = map[string]string{"room": room} }
}

func disk(free int64) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) { m.Status.Disk.FreeBytes = free }
}

// unwantedThere puts deletable weights on a Mac's disk.
func unwantedThere(digest string, bytes int64) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) {
		m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest, Bytes: bytes, ReclaimableBytes: bytes})
	}
}

// weighs sets the size of a replica's model files.
func weighs(digest string, bytes int64) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Model.Digest, r.Spec.Model.Files = digest, []model.File{{Path: "m.gguf", Bytes: bytes}}
	}
}

func priority(value int32) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.Priority.Value = value }
}

func revision(name string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.Revision = name }
}

func leaving(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &metav1.Time{Time: now} }

func drainsFor(seconds int32) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.DrainSeconds = seconds }
}

func preempted(r *v1alpha1.ModelReplica) {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPreempted})
}

func spreadOver(key string, skew int32, action corev1.UnsatisfiableConstraintAction) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Placement.TopologySpreadConstraints = append(r.Spec.Placement.TopologySpreadConstraints, v1alpha1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: action})
	}
}

func expression(key string, op corev1.NodeSelectorOperator, values ...string) v1alpha1.NodeSelectorTerm {
	return v1alpha1.NodeSelectorTerm{MatchExpressions: []v1alpha1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func requires(terms ...v1alpha1.NodeSelectorTerm) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func prefers(weight int32, term v1alpha1.NodeSelectorTerm) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		r.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1alpha1.PreferredSchedulingTerm{{Weight: weight, Preference: term}}}}
	}
}

func packs(r *v1alpha1.ModelReplica) { r.Spec.Placement.Strategy = v1alpha1.PlacementBinPack }

func TestWhatAPlacementAsks(t *testing.T) {
	const hard, soft = corev1.DoNotSchedule, corev1.ScheduleAnyway
	type macs = []v1alpha1.MacNode
	type replicas = []v1alpha1.ModelReplica
	rooms := macs{mac("a1", 100*gib, in("a")), mac("a2", 100*gib, in("a")), mac("b1", 10*gib, in("b"))}
	oneInA := replicas{replica("s", gib, on("a1"), of("d"), revision("v2"))}
	for name, tc := range map[string]struct {
		macs     macs
		existing replicas
		replica  v1alpha1.ModelReplica
		mac      string
		reason   string
		message  string
	}{
		"an affinity chooses": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, in("b"))}, existing: nil,
			replica: replica("r", gib, requires(expression("room", "In", "b", "c"))), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"any of its terms": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, in("b"))}, existing: nil,
			replica: replica("r", gib, requires(expression("nowhere", "Exists"), expression("room", "NotIn", "a"))), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"by its name": {macs: macs{mac("a", 9*gib), mac("b", 9*gib)}, existing: nil,
			replica: replica("r", gib, requires(v1alpha1.NodeSelectorTerm{MatchFields: []v1alpha1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"b"}}}})),
			mac:     "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"an affinity that matches no Mac": {macs: macs{mac("a", 9*gib)}, existing: nil,
			replica: replica("r", gib, requires(expression("room", "In", "b"))), mac: "", reason: v1alpha1.ReasonNoCandidates, message: "1 not matching the affinity"},
		"an invalid affinity matches no Mac": {macs: macs{mac("a", 9*gib)}, existing: nil,
			replica: replica("r", gib, requires(expression("room", "Is", "a"))), mac: "", reason: v1alpha1.ReasonNoCandidates, message: "the affinity is invalid"},
		"a preference outweighs weights on disk": {macs: macs{mac("a", 9*gib, withWeights), mac("b", 9*gib, in("b"))}, existing: nil,
			replica: replica("r", gib, prefers(1, expression("room", "In", "b"))), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"but no sibling": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, in("b"))}, existing: replicas{replica("s", gib, on("b"), of("d"))},
			replica: replica("r", gib, of("d"), prefers(100, expression("room", "In", "b"))), mac: "a", reason: v1alpha1.ReasonPlaced, message: ""},

		"the fullest that has room, where memory is packed": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)}, existing: replicas{replica("s", 4*gib, on("b"))},
			replica: replica("r", 4*gib, packs), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"packed, and siblings still apart": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)}, existing: replicas{replica("s", 4*gib, on("b"), of("d"))},
			replica: replica("r", 4*gib, packs, of("d")), mac: "a", reason: v1alpha1.ReasonPlaced, message: ""},

		"the disk must take the model": {macs: macs{mac("a", 90*gib, disk(4*gib)), mac("b", 9*gib)}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"a margin stays free": {macs: macs{mac("a", 9*gib, disk(4*gib+diskMargin-1))}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "1 Mac: 1 without disk space for the model (need 4.0 GiB, largest free 4.0 GiB); free disk space on these Macs"},
		"an exact fit on disk fits": {macs: macs{mac("a", 9*gib, disk(4*gib+diskMargin))}, replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"an unknown disk holds nothing": {macs: macs{mac("a", 9*gib, disk(0))}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 1)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "without disk space"},
		"what lies there needs no disk": {macs: macs{mac("a", 9*gib, disk(0), withWeights)}, replica: replica("r", gib, weighs("sha256:d", 4*gib)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"downloads add up": {macs: macs{mac("a", 9*gib, disk(7*gib))}, existing: replicas{replica("s", gib, on("a"), weighs("sha256:x", 4*gib))},
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "largest free 2.9 GiB"},
		"what was fetched of one is on the disk already": {macs: macs{mac("a", 9*gib, disk(7*gib))}, existing: replicas{replica("s", gib, on("a"), weighs("sha256:x", 4*gib), func(r *v1alpha1.ModelReplica) {
			r.Status.Progress = v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: 2 * gib, BytesTotal: 4 * gib}
		})}, replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "a", reason: v1alpha1.ReasonPlaced, message: ""},
		"the same files are fetched once": {macs: macs{mac("a", 9*gib, disk(5*gib))}, existing: replicas{replica("s", gib, on("a"), weighs("sha256:w", 4*gib))},
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "a", reason: v1alpha1.ReasonPlaced, message: ""},

		"unwanted weights make room": {macs: macs{mac("a", 9*gib, disk(gib+diskMargin), unwantedThere("sha256:x", 3*gib))}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "a", reason: v1alpha1.ReasonPlaced, message: ""},
		"no more than they have": {macs: macs{mac("a", 9*gib, disk(gib+diskMargin-1), unwantedThere("sha256:x", 3*gib))}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "without disk space"},
		"but not those of a replica that is to come": {macs: macs{mac("a", 9*gib, disk(gib+diskMargin), unwantedThere("sha256:x", 3*gib))}, existing: replicas{replica("s", gib, on("a"), weighs("sha256:x", 3*gib))},
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "largest free 1.0 GiB"},
		"nor those that are pinned": {macs: macs{mac("a", 9*gib, disk(gib+diskMargin), unwantedThere("sha256:x", 3*gib), func(m *v1alpha1.MacNode) { m.Spec.PinnedWeights = []string{"sha256:x"} })}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "largest free 1.0 GiB"},
		"nor on a disk of which nothing is known": {macs: macs{mac("a", 9*gib, disk(0), unwantedThere("sha256:x", 8*gib))}, existing: nil,
			replica: replica("r", gib, weighs("sha256:w", 4*gib)), mac: "", reason: v1alpha1.ReasonNoRoom, message: "without disk space"},

		"domains are kept even": {macs: rooms, existing: oneInA, replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, hard)), mac: "b1", reason: v1alpha1.ReasonPlaced},
		"an uneven domain is refused": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), cordonedMac)}, existing: oneInA,
			replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, hard)), mac: "", reason: v1alpha1.ReasonNoCandidates, message: "2 at the limit of topologySpreadConstraints for room, 1 cordoned; add a Mac to the domain"},
		"within its skew": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), cordonedMac)}, existing: oneInA,
			replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 2, hard)), mac: "a2", reason: v1alpha1.ReasonPlaced, message: ""},
		"an unusable domain blocks no other": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), taintedMac(corev1.TaintEffectNoSchedule))}, existing: oneInA,
			replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, hard)), mac: "a2", reason: v1alpha1.ReasonPlaced, message: ""},
		"nor does one whose Macs are gone": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), func(m *v1alpha1.MacNode) {
			m.Status.Conditions[0].Status, m.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonMacGone
		})}, existing: oneInA, replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, hard)), mac: "a2", reason: v1alpha1.ReasonPlaced, message: ""},
		"replicas of another revision do not count": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), cordonedMac)}, existing: replicas{replica("s", gib, on("a1"), of("d"), revision("v1"))},
			replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, hard)), mac: "a2", reason: v1alpha1.ReasonPlaced, message: ""},
		"a Mac without the label is in no domain": {macs: macs{mac("x", 90*gib, func(m *v1alpha1.MacNode) { m.Labels = nil })}, existing: nil,
			replica: replica("r", gib, spreadOver("room", 1, hard)), mac: "", reason: v1alpha1.ReasonNoCandidates, message: "1 without the label room of topologySpreadConstraints"},
		"softly, an uneven domain is only worse": {macs: rooms, existing: oneInA, replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, soft)), mac: "b1", reason: v1alpha1.ReasonPlaced},
		"softly, and weights do not outweigh three replicas": {macs: macs{rooms[0], mac("a2", 100*gib, in("a"), withWeights), mac("b1", 100*gib, in("b"))},
			existing: replicas{oneInA[0], replica("t", gib, on("a1"), of("d"), revision("v2")), replica("u", gib, on("a1"), of("d"), revision("v2"))},
			replica:  replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, soft)), mac: "b1", reason: v1alpha1.ReasonPlaced, message: ""},
		"softly, a Mac without the label is the last": {macs: macs{mac("a", 90*gib, func(m *v1alpha1.MacNode) { m.Labels = nil }), mac("b", 10*gib, in("b"))}, existing: nil,
			replica: replica("r", gib, spreadOver("room", 1, soft)), mac: "b", reason: v1alpha1.ReasonPlaced, message: ""},
		"softly, and better than a sibling": {macs: macs{rooms[0], rooms[1], mac("b1", 10*gib, in("b"), cordonedMac)}, existing: oneInA,
			replica: replica("r", gib, of("d"), revision("v2"), spreadOver("room", 1, soft)), mac: "a2", reason: v1alpha1.ReasonPlaced, message: ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewSnapshot(tc.macs, tc.existing, now).Pick(&tc.replica)
			if d.Mac != tc.mac || d.Reason != tc.reason || !strings.Contains(d.Message, tc.message) {
				t.Errorf("got %q, %s, %q", d.Mac, d.Reason, d.Message)
			}
		})
	}
}

func TestAFullDiskIsLookedAtAgain(t *testing.T) {
	r := replica("r", gib, weighs("sha256:w", 4*gib))
	if d := NewSnapshot([]v1alpha1.MacNode{mac("a", 9*gib, disk(gib))}, nil, now).Pick(&r); d.RetryAfter != diskAgain {
		t.Errorf("retry after %s", d.RetryAfter)
	}
}

func rules(t *testing.T, text string) Rules {
	t.Helper()
	if text == "" {
		return NewRules(nil, false)
	}
	n := &v1alpha1.NamespaceRules{}
	if err := yaml.UnmarshalStrict([]byte(text), &n.Spec); err != nil {
		t.Fatal(err)
	}
	return NewRules(n, true)
}

func TestRulesBoundANamespace(t *testing.T) {
	elsewhere := func(r *v1alpha1.ModelReplica) { r.Namespace = "other" }
	macs := []v1alpha1.MacNode{mac("a", 100*gib), mac("b", 100*gib, in("search"))}
	existing := []v1alpha1.ModelReplica{
		replica("s", 6*gib, on("a")), replica("t", 3*gib, on("gone")), replica("u", 50*gib, on("b"), elsewhere), replica("v", 40*gib, on("b"), onDemand),
	}
	for name, tc := range map[string]struct {
		rules   string
		replica v1alpha1.ModelReplica
		reason  string
		message string
		mac     string
	}{
		"no rules bound nothing":                 {replica: replica("r", 40*gib), reason: v1alpha1.ReasonPlaced},
		"memory up to the bound":                 {rules: "namespaces: [{name: ns, memoryLimit: 10Gi}]", replica: replica("r", gib), reason: v1alpha1.ReasonPlaced},
		"and no byte more":                       {rules: "namespaces: [{name: ns, memoryLimit: 10Gi}]", replica: replica("r", gib+1), reason: v1alpha1.ReasonOverQuota, message: "namespace ns may reserve 10.0 GiB, has reserved 9.0 GiB, and this replica needs 1.0 GiB"},
		"what is on demand reserves nothing":     {rules: "namespaces: [{name: ns, memoryLimit: 1Gi}]", replica: replica("r", 40*gib, onDemand), reason: v1alpha1.ReasonPlaced},
		"another namespace's bound":              {rules: "namespaces: [{name: other, memoryLimit: 10Gi}]", replica: replica("r", 40*gib), reason: v1alpha1.ReasonPlaced},
		"the default holds for those not listed": {rules: "{default: {memoryLimit: 10Gi}, namespaces: [{name: other}]}", replica: replica("r", 2*gib), reason: v1alpha1.ReasonOverQuota},
		"and for what an entry leaves out":       {rules: "{default: {memoryLimit: 10Gi}, namespaces: [{name: ns, replicasPerMac: 64}]}", replica: replica("r", 2*gib), reason: v1alpha1.ReasonOverQuota},
		"an entry comes before the default":      {rules: "{default: {memoryLimit: 10Gi}, namespaces: [{name: ns, memoryLimit: 1Ei}]}", replica: replica("r", 2*gib), reason: v1alpha1.ReasonPlaced},
		"a limit of 0 allows none":               {rules: "default: {memoryLimit: 0}", replica: replica("r", 1), reason: v1alpha1.ReasonOverQuota},
		"a Mac that may be used":                 {rules: "default: {macSelector: {matchLabels: {room: search}}}", replica: replica("r", gib), reason: v1alpha1.ReasonPlaced, mac: "b"},
		"no Mac that may be used":                {rules: "default: {macSelector: {matchLabels: {room: other}}}", replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "2 not among the Macs that the namespace may use"},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewSnapshot(macs, existing, now).Under(rules(t, tc.rules)).Pick(&tc.replica)
			if d.Reason != tc.reason || !strings.Contains(d.Message, tc.message) || tc.mac != "" && d.Mac != tc.mac {
				t.Errorf("got %q, %s, %q", d.Mac, d.Reason, d.Message)
			}
		})
	}
}

// On-demand replicas reserve no memory, so one namespace could otherwise use all
// assignments of a Mac.
func TestANamespaceHasAShareOfTheReplicasOfAMac(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 20*gib)}
	other := func(r *v1alpha1.ModelReplica) { r.Namespace = "other" }
	long := func(r *v1alpha1.ModelReplica) {
		for range 4 {
			r.Spec.SharedPrefixes = append(r.Spec.SharedPrefixes, strings.Repeat("x", 4096))
		}
	}
	many := func(n int, change ...func(*v1alpha1.ModelReplica)) (out []v1alpha1.ModelReplica) {
		for i := range n {
			out = append(out, replica(fmt.Sprint("r", i), 1, append(change, on("a"), onDemand)...))
		}
		return out
	}
	// A deployment whose status cannot be written keeps them.
	released := func(r *v1alpha1.ModelReplica) {
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
	}
	for name, tc := range map[string]struct {
		rules    string
		existing []v1alpha1.ModelReplica
		change   func(*v1alpha1.ModelReplica)
		reason   string
	}{
		"released ones at the share":       {rules: "default: {replicasPerMac: 32}", existing: many(32, released), change: onDemand, reason: v1alpha1.ReasonNoCandidates},
		"below the share":                  {rules: "default: {replicasPerMac: 32}", existing: many(31), change: onDemand, reason: v1alpha1.ReasonPlaced},
		"at the share":                     {rules: "default: {replicasPerMac: 32}", existing: many(32), change: onDemand, reason: v1alpha1.ReasonNoCandidates},
		"another namespace":                {rules: "default: {replicasPerMac: 32}", existing: many(32), change: other, reason: v1alpha1.ReasonPlaced},
		"a namespace with a larger share":  {rules: "{default: {replicasPerMac: 32}, namespaces: [{name: ns, replicasPerMac: 40}]}", existing: many(32), change: onDemand, reason: v1alpha1.ReasonPlaced},
		"no share":                         {existing: many(32), change: onDemand, reason: v1alpha1.ReasonPlaced},
		"few with long orders":             {rules: "default: {replicasPerMac: 32}", existing: many(25, long), change: long, reason: v1alpha1.ReasonNoCandidates},
		"another namespace with long ones": {rules: "default: {replicasPerMac: 32}", existing: many(20, long, other), change: long, reason: v1alpha1.ReasonPlaced},
		"those and no share":               {existing: many(25, long), change: long, reason: v1alpha1.ReasonPlaced},
	} {
		r := replica("new", 1, onDemand, tc.change)
		if d := NewSnapshot(macs, tc.existing, now).Under(rules(t, tc.rules)).Pick(&r); d.Reason != tc.reason {
			t.Errorf("%s: %s, %q, want %s", name, d.Reason, d.Message, tc.reason)
		}
	}
}

func TestOnDemandOvercommitIsAnExplicitFactor(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 20*gib)}
	existing := []v1alpha1.ModelReplica{replica("s", 10*gib, on("a")), replica("t", 9*gib, on("a"), onDemand), replica("u", 5*gib, on("a"), onDemand)}
	for text, want := range map[string]string{
		"":                               v1alpha1.ReasonPlaced,
		"onDemandOvercommitPercent: 200": v1alpha1.ReasonPlaced, // 14 + 6 of 2 x 10
		"onDemandOvercommitPercent: 190": v1alpha1.ReasonNoRoom,
		"onDemandOvercommitPercent: 100": v1alpha1.ReasonNoRoom,
	} {
		r := replica("r", 6*gib, onDemand)
		d := NewSnapshot(macs, existing, now).Under(rules(t, text)).Pick(&r)
		if d.Reason != want {
			t.Errorf("%q: %s, %s", text, d.Reason, d.Message)
		}
		stays := replica("stays", 6*gib)
		if want == v1alpha1.ReasonNoRoom && !strings.Contains(d.Message, "scale down or delete another deployment") {
			t.Errorf("%q: no next step: %s", text, d.Message)
		}
		if d := NewSnapshot(macs, existing, now).Under(rules(t, text)).Pick(&stays); d.Mac != "a" {
			t.Errorf("%q: what stays in memory shares nothing: %s", text, d.Message)
		}
	}
}

func TestNothingIsPlacedWhileRequiredRulesAreMissing(t *testing.T) {
	r, macs := replica("r", gib), []v1alpha1.MacNode{mac("a", 9*gib)}
	for required, want := range map[bool]string{true: v1alpha1.ReasonRulesMissing, false: v1alpha1.ReasonPlaced} {
		if d := NewSnapshot(macs, nil, now).Under(NewRules(nil, required)).Pick(&r); d.Reason != want {
			t.Errorf("required %t: %+v", required, d)
		}
	}
	if d := NewSnapshot(macs, nil, now).Under(NewRules(&v1alpha1.NamespaceRules{}, true)).Pick(&r); d.Mac != "a" {
		t.Errorf("rules without limits: %+v", d)
	}
}

func ready(r *v1alpha1.ModelReplica) {
	r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady})
}

func TestPreemption(t *testing.T) {
	aged := func(r *v1alpha1.ModelReplica) { r.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }
	young := func(r *v1alpha1.ModelReplica) { r.CreationTimestamp = metav1.NewTime(now) }
	never := func(r *v1alpha1.ModelReplica) { r.Spec.Priority.PreemptionPolicy = corev1.PreemptNever }
	type replicas = []v1alpha1.ModelReplica
	two := []v1alpha1.MacNode{mac("a", 10*gib), mac("b", 10*gib)}
	for name, tc := range map[string]struct {
		existing replicas
		replica  v1alpha1.ModelReplica
		awaits   string
		victims  string
		reason   string
	}{
		"no victim if there is room":         {existing: replicas{replica("s", 9*gib, on("a"))}, replica: replica("r", 9*gib, priority(5)), reason: v1alpha1.ReasonPlaced},
		"one of a lower priority is evicted": {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"), priority(9))}, replica: replica("r", 9*gib, priority(5)), awaits: "a", victims: "s", reason: v1alpha1.ReasonPreempting},
		"none of the same":                   {existing: replicas{replica("s", 9*gib, on("a"), priority(5)), replica("t", 9*gib, on("b"), priority(5))}, replica: replica("r", 9*gib, priority(5)), reason: v1alpha1.ReasonNoRoom},
		"none for one that never does":       {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"))}, replica: replica("r", 9*gib, priority(5), never), reason: v1alpha1.ReasonNoRoom},
		"none for one that only swaps":       {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"))}, replica: replica("r", 9*gib, priority(5), never, swaps), reason: v1alpha1.ReasonNoRoom},
		"the lowest first":                   {existing: replicas{replica("s", 9*gib, on("a"), priority(3)), replica("t", 9*gib, on("b"), priority(2))}, replica: replica("r", 9*gib, priority(5)), awaits: "b", victims: "t", reason: v1alpha1.ReasonPreempting},
		"the fewest": {existing: replicas{replica("s", 5*gib, on("a")), replica("t", 5*gib, on("a")), replica("u", 9*gib, on("b"))},
			replica: replica("r", 9*gib, priority(5)), awaits: "b", victims: "u", reason: v1alpha1.ReasonPreempting},
		"no more than it takes": {existing: replicas{replica("s", 5*gib, on("a")), replica("t", 5*gib, on("a"), priority(1)), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 5*gib, priority(5)), awaits: "a", victims: "s", reason: v1alpha1.ReasonPreempting},
		"one that serves is spared": {existing: replicas{replica("s", 5*gib, on("a"), ready), replica("t", 5*gib, on("a")), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 5*gib, priority(5)), awaits: "a", victims: "t", reason: v1alpha1.ReasonPreempting},
		"the fewest bytes": {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 7*gib, on("b")), replica("u", 2*gib, on("b"), priority(9))},
			replica: replica("r", 6*gib, priority(5)), awaits: "b", victims: "t", reason: v1alpha1.ReasonPreempting},
		"the younger, which is the last": {existing: replicas{replica("s", 5*gib, on("a"), aged), replica("t", 5*gib, on("a"), young), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 5*gib, priority(5)), awaits: "a", victims: "t", reason: v1alpha1.ReasonPreempting},
		"the younger, which is the first": {existing: replicas{replica("s", 5*gib, on("a"), young), replica("t", 5*gib, on("a"), aged), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 5*gib, priority(5)), awaits: "a", victims: "s", reason: v1alpha1.ReasonPreempting},
		"none from a Mac outside of the spread": {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"))},
			replica: replica("r", 9*gib, priority(5), spreadOver("rack", 1, corev1.DoNotSchedule)), awaits: "", victims: "", reason: v1alpha1.ReasonNoCandidates},
		"none if all are not enough": {existing: replicas{replica("s", 5*gib, on("a")), replica("t", 5*gib, on("a"), priority(9)), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 6*gib, priority(5)), awaits: "", victims: "", reason: v1alpha1.ReasonNoRoom},
		"who drains already is enough": {existing: replicas{replica("s", 9*gib, on("a"), leaving), replica("t", 9*gib, on("b"))},
			replica: replica("r", 9*gib, priority(5)), awaits: "a", victims: "", reason: v1alpha1.ReasonPreempting},
		"who drains for long is not waited for": {existing: replicas{replica("s", 9*gib, on("a"), leaving, drainsFor(3600)), replica("t", 9*gib, on("b"))},
			replica: replica("r", 9*gib, priority(5)), awaits: "b", victims: "t", reason: v1alpha1.ReasonPreempting},
		"nor on the same Mac": {existing: replicas{replica("s", 5*gib, on("a"), leaving, drainsFor(3600)), replica("t", 5*gib, on("a")), replica("u", 9*gib, on("b"), priority(9))},
			replica: replica("r", 5*gib, priority(5)), awaits: "a", victims: "t", reason: v1alpha1.ReasonPreempting},
		"unless no other can make room": {existing: replicas{replica("s", 9*gib, on("a"), leaving, drainsFor(3600)), replica("t", 9*gib, on("b"), priority(9))},
			replica: replica("r", 9*gib, priority(5)), awaits: "a", victims: "", reason: v1alpha1.ReasonPreempting},
		"or it was preempted already": {existing: replicas{replica("s", 9*gib, on("a"), leaving, drainsFor(3600), preempted), replica("t", 9*gib, on("b"))},
			replica: replica("r", 9*gib, priority(5)), awaits: "a", victims: "", reason: v1alpha1.ReasonPreempting},
		"models on demand block no other": {existing: replicas{replica("s", 9*gib, on("a"), onDemand), replica("t", 9*gib, on("b"), onDemand)},
			replica: replica("r", 9*gib, priority(5)), awaits: "", victims: "", reason: v1alpha1.ReasonPlaced},
		"none on an unusable Mac": {existing: replicas{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"), priority(9))},
			replica: replica("r", 9*gib, priority(5), requires(expression("room", "In", "z"))), awaits: "", victims: "", reason: v1alpha1.ReasonNoCandidates},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewSnapshot(two, tc.existing, now).Pick(&tc.replica)
			var victims []string
			for _, v := range d.Victims {
				victims = append(victims, v.Name)
			}
			if d.Awaits != tc.awaits || strings.Join(victims, " ") != tc.victims || d.Reason != tc.reason {
				t.Errorf("awaits %q, victims %v, %s: %s", d.Awaits, victims, d.Reason, d.Message)
			}
			if d.Reason == v1alpha1.ReasonPreempting && strings.HasPrefix(d.Message, "waiting for room") != (tc.victims == "") {
				t.Errorf("victims %q: %s", tc.victims, d.Message)
			}
			if again := NewSnapshot(two, tc.existing, now).Pick(&tc.replica); again.Message != d.Message || again.Awaits != d.Awaits {
				t.Errorf("the same fleet, another decision: %s", again.Message)
			}
		})
	}
}

// A smaller replica does not get what the first victim left, and the same room is not
// promised twice.
func TestNobodyGetsTheRoomThatIsBeingMade(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 10*gib)}
	first := replica("s", 5*gib, on("a"), leaving)
	first.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
	s := NewSnapshot(macs, []v1alpha1.ModelReplica{first, replica("t", 5*gib, on("a"), leaving)}, now)
	large := replica("large", 9*gib, priority(5))
	d := s.Pick(&large)
	if d.Awaits != "a" || len(d.Victims) != 0 {
		t.Fatalf("got %+v", d)
	}
	undo := s.Claim(&large, d)
	small, other := replica("small", gib), replica("other", 2*gib, priority(4))
	if got := s.Pick(&small); got.Mac != "a" {
		t.Errorf("the rest next to the claim is free: %s", got.Message)
	}
	s.Assume(&small, "a")
	if got := s.Pick(&other); got.Mac != "" || got.Awaits != "" {
		t.Errorf("promised twice: %+v", got)
	}
	undo()
	if got := s.Pick(&other); got.Mac != "a" {
		t.Errorf("after the claim was taken back: %s", got.Message)
	}
}

func TestTwoWhoPreemptShareNoVictim(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 10*gib), mac("b", 10*gib)}
	s := NewSnapshot(macs, []v1alpha1.ModelReplica{replica("s", 9*gib, on("a")), replica("t", 9*gib, on("b"))}, now)
	gone := map[types.UID]bool{}
	for i := range 3 {
		r := replica(fmt.Sprint("r", i), 9*gib, priority(5))
		d := s.Pick(&r)
		if i == 2 {
			if d.Awaits != "" {
				t.Errorf("the third has no victim left: %+v", d)
			}
			break
		}
		for _, v := range d.Victims {
			if gone[v.UID] {
				t.Errorf("%s is evicted twice", v.Name)
			}
			gone[v.UID] = true
		}
		s.Claim(&r, d)
	}
	if len(gone) != 2 {
		t.Errorf("%d victims", len(gone))
	}
}

func TestTheHighestPriorityIsPlacedFirst(t *testing.T) {
	all := []v1alpha1.ModelReplica{replica("c", 1), replica("b", 1, priority(1)), replica("a", 1), replica("d", 1, priority(-1)), replica("e", 1, priority(9))}
	for i := range all {
		all[i].CreationTimestamp = metav1.NewTime(now)
	}
	all[0].CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
	slices.SortFunc(all, func(a, b v1alpha1.ModelReplica) int { return Before(&a, &b) })
	var order string
	for _, r := range all {
		order += r.Name
	}
	if order != "ebcad" {
		t.Errorf("order %s", order)
	}
}

// The cached decision is only used while it holds, and only for replicas with the same
// permissions.
func TestWhatChangedMeanwhileIsSeenByASiblingThatWasStuck(t *testing.T) {
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib)}, []v1alpha1.ModelReplica{replica("s", 3*gib, on("a"))}, now)
	x := replica("x", 2*gib)
	undo := s.Assume(&x, "a")
	sibling := func(change ...func(*v1alpha1.ModelReplica)) Decision {
		r := replica("r", 8*gib, change...)
		return s.Pick(&r)
	}
	before, again := sibling(), sibling()
	if !strings.Contains(before.Message, "largest free 5.0 GiB") || again.Message != before.Message {
		t.Errorf("next to x: %q, then %q", before.Message, again.Message)
	}
	undo()
	if d := sibling(); !strings.Contains(d.Message, "largest free 7.0 GiB") {
		t.Errorf("without x: %q", d.Message)
	}
	if d := sibling(priority(5)); d.Awaits != "a" {
		t.Errorf("a sibling of a higher priority: %+v", d)
	}
}
