//go:build !race

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const gib = int64(1) << 30

var now = time.Unix(1_800_000_000, 0)

func mac(name string, capacity int64, change ...func(*v1alpha1.MacNode)) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"room": "a"}}}
	m.Status.Chip, m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes = "M2Ultra", capacity, 1<<40
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting}}
	for _, c := range change {
		c(&m)
	}
	return m
}

func replica(name string, need int64, change ...func(*v1alpha1.ModelReplica)) v1alpha1.ModelReplica {
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
	r.Spec.DeploymentRef.UID = "deployment of " + name
	r.Spec.ReservedBytes = need
	r.Spec.Model = model.Record{Source: "https://host/m.gguf", Digest: "sha256:d", VouchedBy: []string{"x", "y"}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func on(mac string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.NodeName = mac }
}

func of(deployment string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) { r.Spec.DeploymentRef.UID = deployment }
}

func onDemand(r *v1alpha1.ModelReplica) { r.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand }

func silentMac(m *v1alpha1.MacNode)   { m.Status.Conditions[0].Status = metav1.ConditionUnknown }
func cordonedMac(m *v1alpha1.MacNode) { m.Spec.Unschedulable = true }

func taintedMac(effect corev1.TaintEffect) func(*v1alpha1.MacNode) {
	return func(m *v1alpha1.MacNode) { m.Spec.Taints = []v1alpha1.Taint{{Key: "desk", Effect: effect}} }
}

func withWeights(m *v1alpha1.MacNode) {
	m.Status.Weights = []v1alpha1.StoredWeights{{Digest: "sha256:d", Bytes: 1}}
}

func TestPick(t *testing.T) {
	releasing := func(r *v1alpha1.ModelReplica) { r.DeletionTimestamp = &metav1.Time{Time: now} }
	released := func(r *v1alpha1.ModelReplica) {
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue}}
	}
	file := func(r *v1alpha1.ModelReplica) { r.Spec.Model.Source = "file://m.gguf" }
	holds := func(digest string) func(*v1alpha1.MacNode) {
		return func(m *v1alpha1.MacNode) {
			m.Status.Inspections = []v1alpha1.InspectionStatus{{ID: "i", Source: "file://m.gguf", State: v1alpha1.InspectionResolved,
				Model: &model.Record{Source: "file://m.gguf", Digest: digest}}}
		}
	}
	shutting := func(m *v1alpha1.MacNode) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepting, Status: metav1.ConditionFalse})
	}
	avoids := func(name string, left time.Duration) func(*v1alpha1.ModelReplica) {
		return func(r *v1alpha1.ModelReplica) {
			r.Spec.Avoid = append(r.Spec.Avoid, v1alpha1.AvoidedMac{Name: name, Until: metav1.NewTime(now.Add(left))})
		}
	}
	// looked returns a Mac that inspected the source and found nothing.
	looked := func(m *v1alpha1.MacNode) {
		m.Status.Inspections = []v1alpha1.InspectionStatus{{ID: "i", Source: "file://m.gguf", State: v1alpha1.InspectionFailed, Reason: v1alpha1.ReasonSourceNotFound}}
	}
	born := func(age time.Duration) func(*v1alpha1.ModelReplica) {
		return func(r *v1alpha1.ModelReplica) { r.CreationTimestamp = metav1.NewTime(now.Add(-age)) }
	}
	skewedMac := func(m *v1alpha1.MacNode) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAgentCurrent, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAgentTooOld})
	}
	oldMac := func(m *v1alpha1.MacNode) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAgentCurrent, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAgentOutdated})
	}
	strandedMac := func(m *v1alpha1.MacNode) {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionWiredStranded, Status: metav1.ConditionTrue})
	}
	vouchedBy := func(macs ...string) func(*v1alpha1.ModelReplica) {
		return func(r *v1alpha1.ModelReplica) { r.Spec.Model.VouchedBy = macs }
	}
	type macs = []v1alpha1.MacNode
	type replicas = []v1alpha1.ModelReplica
	for name, tc := range map[string]struct {
		macs     macs
		existing replicas
		replica  v1alpha1.ModelReplica
		mac      string
		reason   string
		message  string
	}{
		"the largest free share wins": {macs: macs{mac("a", 10*gib), mac("b", 20*gib)}, replica: replica("r", 5*gib), mac: "b", reason: v1alpha1.ReasonPlaced, message: "on b"},
		"equals are decided by name":  {macs: macs{mac("b", 10*gib), mac("a", 10*gib)}, replica: replica("r", 5*gib), mac: "a", reason: v1alpha1.ReasonPlaced},
		"siblings are spread even where weights lie": {macs: macs{mac("a", 10*gib, withWeights), mac("b", 10*gib)},
			existing: replicas{replica("s", gib, on("a"), of("d"))}, replica: replica("r", gib, of("d")), mac: "b", reason: v1alpha1.ReasonPlaced},
		"weights on disk outweigh balance":              {macs: macs{mac("a", 10*gib, withWeights), mac("b", 100*gib)}, replica: replica("r", 5*gib), mac: "a", reason: v1alpha1.ReasonPlaced},
		"a download that one Mac found is for that Mac": {macs: macs{mac("a", 9*gib), mac("b", 100*gib)}, replica: replica("r", 5*gib, vouchedBy("a")), mac: "a", reason: v1alpha1.ReasonPlaced},
		"no other Mac fetches it": {macs: macs{mac("a", 9*gib, silentMac), mac("b", 100*gib)}, replica: replica("r", 5*gib, vouchedBy("a")), reason: v1alpha1.ReasonNoCandidates,
			message: "1 waiting for a second Mac to confirm"},
		"unless it holds the weights": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, withWeights)}, replica: replica("r", 5*gib, vouchedBy("c")), mac: "b", reason: v1alpha1.ReasonPlaced},
		"an exact fit fits":           {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", 6*gib, on("a"))}, replica: replica("r", 4*gib), mac: "a", reason: v1alpha1.ReasonPlaced},
		"one byte more does not": {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", 6*gib, on("a"))}, replica: replica("r", 4*gib+1), reason: v1alpha1.ReasonNoRoom,
			message: "1 Mac: 1 short of memory (need 4.0 GiB, largest free 4.0 GiB)"},
		"a draining replica still holds its promise": {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", 6*gib, on("a"), releasing)}, replica: replica("r", 5*gib), reason: v1alpha1.ReasonNoRoom},
		"a released replica does not":                {macs: macs{mac("a", 10*gib)}, existing: replicas{replica("s", 6*gib, on("a"), releasing, released)}, replica: replica("r", 5*gib), mac: "a", reason: v1alpha1.ReasonPlaced},
		"reasons are compact": {macs: macs{mac("a", 64*gib), mac("b", 64*gib), mac("c", 64*gib, cordonedMac)},
			existing: replicas{replica("s", 30*gib, on("a")), replica("t", 40*gib, on("b"))}, replica: replica("r", 40*gib), reason: v1alpha1.ReasonNoRoom,
			message: "3 Macs: 2 short of memory (need 40.0 GiB, largest free 34.0 GiB), 1 cordoned"},
		"too large for every Mac, each named": {macs: macs{mac("a", 12*gib), mac("b", 38*gib, silentMac)}, replica: replica("r", 41*gib), reason: v1alpha1.ReasonTooLarge,
			message: "2 Macs: 2 too small even if empty (need 41.0 GiB, largest capacity 38.0 GiB); a can reserve 12.0 GiB of the required 41.0 GiB; b can reserve 38.0 GiB of the required 41.0 GiB"},
		"too large where others are no candidates at all": {macs: macs{mac("a", 12*gib), mac("b", 99*gib, taintedMac(corev1.TaintEffectNoSchedule))},
			replica: replica("r", 41*gib), reason: v1alpha1.ReasonTooLarge, message: "b is tainted"},
		"a large Mac that is silent is hope": {macs: macs{mac("a", 12*gib), mac("b", 99*gib, silentMac)}, replica: replica("r", 41*gib), reason: v1alpha1.ReasonNoCandidates, message: "1 not ready"},
		"no Mac at all":                      {replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "no MacNode"},
		"unknown capacity holds nothing":     {macs: macs{mac("a", 0)}, replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "1 of unknown capacity"},
		"a cordoned Mac takes nothing new":   {macs: macs{mac("a", 9*gib, cordonedMac)}, replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "1 cordoned"},
		"a Mac that shuts down neither":      {macs: macs{mac("a", 9*gib, shutting)}, replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "1 shutting down"},
		"a taint keeps away":                 {macs: macs{mac("a", 9*gib, taintedMac(corev1.TaintEffectNoSchedule))}, replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates, message: "1 tainted"},
		"a toleration lets in": {macs: macs{mac("a", 9*gib, taintedMac(corev1.TaintEffectNoExecute))},
			replica: replica("r", gib, func(r *v1alpha1.ModelReplica) {
				r.Spec.Placement.Tolerations = []v1alpha1.Toleration{{Key: "desk", Operator: corev1.TolerationOpExists}}
			}), mac: "a", reason: v1alpha1.ReasonPlaced},
		"a preference only lowers the score": {macs: macs{mac("a", 99*gib, taintedMac(corev1.TaintEffectPreferNoSchedule)), mac("b", 9*gib)}, replica: replica("r", gib), mac: "b", reason: v1alpha1.ReasonPlaced},
		"a selector chooses": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, func(m *v1alpha1.MacNode) { m.Labels["room"] = "b" })},
			replica: replica("r", gib, func(r *v1alpha1.ModelReplica) { r.Spec.Placement.NodeSelector = map[string]string{"room": "b"} }), mac: "b", reason: v1alpha1.ReasonPlaced},
		"a chip list chooses": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, func(m *v1alpha1.MacNode) { m.Status.Chip = "M4Max" })},
			replica: replica("r", gib, func(r *v1alpha1.ModelReplica) { r.Spec.Placement.Chips = []string{"M4Max"} }), mac: "b", reason: v1alpha1.ReasonPlaced},
		"a file is served where it lies": {macs: macs{mac("a", 9*gib), mac("b", 9*gib, holds("sha256:d"))}, replica: replica("r", gib, file), mac: "b", reason: v1alpha1.ReasonPlaced},
		"rather than share a Mac it waits for one that still looks": {macs: macs{mac("a", 9*gib, holds("sha256:d")), mac("b", 9*gib)},
			existing: replicas{replica("s", gib, on("a"), of("d"))}, replica: replica("r", gib, of("d"), file, born(time.Second)), reason: v1alpha1.ReasonWaiting, message: "a already has a replica"},
		"but not for ever": {macs: macs{mac("a", 9*gib, holds("sha256:d")), mac("b", 9*gib)},
			existing: replicas{replica("s", gib, on("a"), of("d"))}, replica: replica("r", gib, of("d"), file, born(spreadPatience)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"nor for one that has looked": {macs: macs{mac("a", 9*gib, holds("sha256:d")), mac("b", 9*gib, looked)},
			existing: replicas{replica("s", gib, on("a"), of("d"))}, replica: replica("r", gib, of("d"), file, born(time.Second)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"nor for one without room": {macs: macs{mac("a", 9*gib, holds("sha256:d")), mac("b", 2*gib)},
			existing: replicas{replica("s", gib, on("a"), of("d")), replica("t", gib, on("b")), replica("u", gib, on("b"))}, replica: replica("r", gib, of("d"), file, born(time.Second)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"the first replica does not wait": {macs: macs{mac("a", 9*gib, holds("sha256:d")), mac("b", 9*gib)},
			replica: replica("r", gib, file, born(time.Second)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"the same name with other bytes is another file": {macs: macs{mac("a", 9*gib, holds("sha256:other"))}, replica: replica("r", gib, file), reason: v1alpha1.ReasonNoCandidates, message: "1 without the model's files"},
		"a refusal is remembered":                        {macs: macs{mac("a", 9*gib)}, replica: replica("r", gib, avoids("a", time.Minute)), reason: v1alpha1.ReasonNoCandidates, message: "1 avoided after a refusal"},
		"OnDemand replicas do not count against one another": {macs: macs{mac("a", 10*gib)},
			existing: replicas{replica("s", 8*gib, on("a"), onDemand), replica("t", 9*gib, on("a"), onDemand)}, replica: replica("r", 10*gib, onDemand), mac: "a", reason: v1alpha1.ReasonPlaced,
			message: "placed on a: needs an estimated 10.0 GiB when loaded; 0 of 10.0 GiB are reserved for Always models, and 2 other OnDemand models share the rest"},
		"what stays in memory counts against OnDemand": {macs: macs{mac("a", 10*gib)},
			existing: replicas{replica("s", 6*gib, on("a"))}, replica: replica("r", 4*gib+1, onDemand), reason: v1alpha1.ReasonNoRoom, message: "1 Mac: 1 short of memory (need 4.0 GiB, largest free 4.0 GiB)"},
		"OnDemand does not count against what stays in memory": {macs: macs{mac("a", 10*gib)},
			existing: replicas{replica("s", 9*gib, on("a"), onDemand)}, replica: replica("r", 10*gib), mac: "a", reason: v1alpha1.ReasonPlaced, message: "0 of 10.0 GiB were reserved before"},
		"an OnDemand model larger than a Mac does not fit there": {macs: macs{mac("a", 10*gib)}, replica: replica("r", 11*gib, onDemand), reason: v1alpha1.ReasonTooLarge, message: "1 too small even if empty"},
		"fewer OnDemand bytes are better": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)},
			existing: replicas{replica("s", 4*gib, on("a"), onDemand)}, replica: replica("r", gib, onDemand), mac: "b", reason: v1alpha1.ReasonPlaced},
		"an OnDemand model is not starved for weights on disk": {macs: macs{mac("a", 10*gib, withWeights), mac("b", 10*gib)},
			existing: replicas{replica("s", 9*gib, on("a"), onDemand)}, replica: replica("r", 5*gib), mac: "b", reason: v1alpha1.ReasonPlaced},
		"but for a Mac of its own": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)},
			existing: replicas{replica("s", 9*gib, on("a"), onDemand), replica("t", 8*gib, on("a"), onDemand), replica("u", 7*gib, on("a"), onDemand), replica("v", gib, on("b"), of("d"))},
			replica:  replica("r", 5*gib, of("d")), mac: "a", reason: v1alpha1.ReasonPlaced},
		"a Mac with an agent too old is skipped": {macs: macs{mac("a", 99*gib, skewedMac), mac("b", 9*gib)}, replica: replica("r", gib), mac: "b", reason: v1alpha1.ReasonPlaced},
		"one that waits for its turn is not":     {macs: macs{mac("a", 99*gib, oldMac), mac("b", 9*gib)}, replica: replica("r", gib), mac: "a", reason: v1alpha1.ReasonPlaced},
		"a Mac with stranded memory is skipped":  {macs: macs{mac("a", 99*gib, strandedMac), mac("b", 9*gib)}, replica: replica("r", gib), mac: "b", reason: v1alpha1.ReasonPlaced},
		"stranded memory explains the way out": {macs: macs{mac("a", 99*gib, strandedMac)}, replica: replica("r", gib), reason: v1alpha1.ReasonNoCandidates,
			message: "1 Mac: 1 with stranded memory; reboot the Mac whose condition WiredStranded is True"},
		"its end is not waited for": {macs: macs{mac("a", 9*gib)}, replica: replica("r", gib, avoids("a", 0)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"fewer OnDemand bytes evict less often": {macs: macs{mac("a", 10*gib), mac("b", 10*gib)},
			existing: replicas{replica("s", 6*gib, on("a"), onDemand), replica("t", 2*gib, on("b"), onDemand)}, replica: replica("r", gib, onDemand), mac: "b", reason: v1alpha1.ReasonPlaced},
		"a clock that was ahead": {macs: macs{mac("a", 9*gib)}, replica: replica("r", gib, avoids("a", 24*time.Hour)), mac: "a", reason: v1alpha1.ReasonPlaced},
		"and forgotten":          {macs: macs{mac("a", 9*gib)}, replica: replica("r", gib, avoids("a", -time.Second)), mac: "a", reason: v1alpha1.ReasonPlaced},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewSnapshot(tc.macs, tc.existing, now).Pick(&tc.replica)
			if d.Mac != tc.mac || d.Reason != tc.reason || !strings.Contains(d.Message, tc.message) {
				t.Errorf("got %q, %s, %q", d.Mac, d.Reason, d.Message)
			}
		})
	}
}

// A kind of rejection that nothing is said of would end a message in a number.
func TestEveryKindOfRejectionHasWords(t *testing.T) {
	for k := tooSmall; k < constraint; k++ {
		if (rejection{kind: k}).words() == "" {
			t.Errorf("kind %d has no words", k)
		}
	}
}

func TestAvoidedMacIsTriedAgainInTime(t *testing.T) {
	r := replica("r", gib)
	r.Spec.Avoid = []v1alpha1.AvoidedMac{{Name: "a", Until: metav1.NewTime(now.Add(time.Minute))}, {Name: "b", Until: metav1.NewTime(now.Add(time.Second))}}
	large := replica("large", gib, weighs("sha256:w", 4*gib))
	large.Spec.Avoid = r.Spec.Avoid
	full := mac("full", 9*gib, disk(gib))
	for name, tc := range map[string]struct {
		replica v1alpha1.ModelReplica
		macs    []v1alpha1.MacNode
		want    time.Duration
	}{
		"the first of two":                 {replica: r, macs: []v1alpha1.MacNode{mac("a", 9*gib), mac("b", 9*gib)}, want: time.Second},
		"with one that is cordoned":        {replica: r, macs: []v1alpha1.MacNode{mac("b", 9*gib), mac("c", 9*gib, cordonedMac)}, want: time.Second},
		"before a full disk":               {replica: large, macs: []v1alpha1.MacNode{mac("b", 9*gib), full}, want: time.Second},
		"a full disk alone":                {replica: large, macs: []v1alpha1.MacNode{full}, want: diskAgain},
		"nothing that time alone can mend": {replica: r, macs: []v1alpha1.MacNode{mac("c", 9*gib, cordonedMac)}},
	} {
		if d := NewSnapshot(tc.macs, nil, now).Pick(&tc.replica); d.RetryAfter != tc.want {
			t.Errorf("%s: retry after %s, want %s", name, d.RetryAfter, tc.want)
		}
	}
}

func TestAssumptionsAddUpAndCanBeTakenBack(t *testing.T) {
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib)}, nil, now)
	placed := 0
	var undo func()
	for i := range 5 {
		r := replica(fmt.Sprint(i), 36*gib)
		if d := s.Pick(&r); d.Mac != "" {
			undo = s.Assume(&r, d.Mac)
			placed++
		}
	}
	if placed != 1 {
		t.Fatalf("%d replicas of 36 GiB on 64 GiB", placed)
	}
	undo()
	twin := replica("twin", gib, of("d"))
	s = NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib), mac("b", 64*gib)}, nil, now)
	s.Assume(&twin, "a")()
	if d := s.Pick(&twin); d.Mac != "a" {
		t.Errorf("a sibling that was taken back is avoided: %s", d.Message)
	}
	r := replica("again", 36*gib)
	if d := s.Pick(&r); d.Mac != "a" {
		t.Errorf("after the undo: %s", d.Message)
	}
}

func TestAnAssumedOnDemandReplicaIsTakenBackWhole(t *testing.T) {
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib), mac("b", 10*gib)}, nil, now)
	first := replica("first", 8*gib, onDemand)
	undo := s.Assume(&first, "a")
	second := replica("second", 8*gib, onDemand)
	if d := s.Pick(&second); d.Mac != "b" {
		t.Errorf("with the first on a: %s", d.Message)
	}
	undo()
	if d := s.Pick(&second); d.Mac != "a" || s.macs[0].onDemand != 0 || s.macs[0].promise.Always != 0 {
		t.Errorf("after the undo: %s, promised %+v", d.Message, s.macs[0].promise)
	}
}

func TestAMacHoldsNoMoreReplicasThanOrdersFit(t *testing.T) {
	var existing []v1alpha1.ModelReplica
	for i := range 64 {
		existing = append(existing, replica(fmt.Sprint(i), 1, on("a")))
	}
	r := replica("r", 1)
	if d := NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib)}, existing, now).Pick(&r); d.Mac != "" || !strings.Contains(d.Message, "1 at the maximum number of replicas") {
		t.Errorf("got %+v", d)
	}
}

func TestAssumedReplicasCountTowardsTheMaximumOfAMac(t *testing.T) {
	var existing []v1alpha1.ModelReplica
	for i := range 63 {
		existing = append(existing, replica(fmt.Sprint(i), 1, on("a")))
	}
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib)}, existing, now)
	last, further := replica("last", 1), replica("further", 1)
	for range 3 {
		undo := s.Assume(&last, "a")
		if d := s.Pick(&further); d.Mac != "" {
			t.Fatalf("a 65th replica is placed on %s", d.Mac)
		}
		undo()
		if d := s.Pick(&further); d.Mac != "a" {
			t.Fatalf("after the undo: %s", d.Message)
		}
	}
}

// Macs without the label belong to no domain, at any position in the list.
func TestMacsWithoutTheLabelOfASpreadChangeNothingForTheOthers(t *testing.T) {
	rack := func(name string) func(*v1alpha1.MacNode) {
		return func(m *v1alpha1.MacNode) { m.Labels["rack"] = name }
	}
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib, rack("1")), mac("aa", 64*gib, rack("1")), mac("b", 64*gib), mac("c", 64*gib, rack("2"))},
		[]v1alpha1.ModelReplica{replica("first", gib, of("d"), on("aa"))}, now)
	r := replica("second", gib, of("d"), spreadOver("rack", 1, corev1.DoNotSchedule), prefers(100, expression("rack", corev1.NodeSelectorOpIn, "1")))
	if d := s.Pick(&r); d.Mac != "c" {
		t.Errorf("placed on %q: %s", d.Mac, d.Message)
	}
}

func TestEachAvoidedMacHasItsOwnReason(t *testing.T) {
	r := replica("r", gib)
	for _, name := range []string{"a", "b"} {
		r.Spec.Avoid = append(r.Spec.Avoid, v1alpha1.AvoidedMac{Name: name, Reason: "reason of " + name, Until: metav1.Time{Time: now.Add(time.Minute)}})
	}
	for _, c := range NewSnapshot([]v1alpha1.MacNode{mac("a", 64*gib), mac("b", 64*gib)}, nil, now).Candidates(&r) {
		if want := "avoided for another 1m0s after a refusal: reason of " + c.Mac; c.Why != want {
			t.Errorf("%s: %q, want %q", c.Mac, c.Why, want)
		}
	}
}

func TestTheMacsThatAreTooSmallAreNamedUpToTwenty(t *testing.T) {
	var macs []v1alpha1.MacNode
	for i := range 22 {
		macs = append(macs, mac(fmt.Sprintf("m%02d", i), gib))
	}
	r := replica("r", 2*gib)
	for n, more := range map[int]string{20: "; m19 can reserve 1.0 GiB of the required 2.0 GiB; lower", 22: "of the required 2.0 GiB; and 2 more; lower"} {
		if d := NewSnapshot(macs[:n], nil, now).Pick(&r); strings.Count(d.Message, "can reserve") != 20 || !strings.Contains(d.Message, more) {
			t.Errorf("of %d Macs: %s", n, d.Message)
		}
	}
}
