package placement

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const gib = int64(1) << 30

// fleet is the Macs and replicas of a seed.
type fleet struct {
	rng  *rand.Rand
	now  time.Time
	macs []v1alpha1.MacNode
	all  []v1alpha1.ModelReplica
	born int
}

func newFleet(seed uint64) *fleet {
	f := &fleet{rng: rand.New(rand.NewPCG(seed, 9)), now: time.Unix(1_800_000_000, 0)}
	sizes := []int64{48, 96, 128, 192, 512}
	for i := range macs {
		f.macs = append(f.macs, f.mac(i, sizes[f.rng.IntN(len(sizes))]))
	}
	for d := range 250 {
		for range replicas / 250 {
			f.all = append(f.all, f.replica(fmt.Sprintf("d%03d", d), d, int64(2+d%12)))
		}
	}
	return f
}

// mac is one as its agent reports it: ready, with weights and conditions.
func (f *fleet) mac(i int, size int64) v1alpha1.MacNode {
	m := v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("mac-%04d", i),
		Labels: map[string]string{"example.com/room": fmt.Sprintf("room-%02d", i%20), "example.com/site": fmt.Sprintf("site-%d", i%4)}}}
	m.Status.Chip = "M2Ultra"
	m.Status.Memory.CapacityBytes, m.Status.Disk.FreeBytes = size*gib, 8192*gib
	for range 20 {
		d := f.rng.IntN(250)
		m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: digest(d), Bytes: gib})
	}
	for _, c := range []string{v1alpha1.ConditionAgentCurrent, v1alpha1.ConditionAccepting, v1alpha1.ConditionReady} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReporting})
	}
	for _, c := range []string{v1alpha1.ConditionMemoryPressure, v1alpha1.ConditionWiredStranded, v1alpha1.ConditionMemoryDiverged} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonBelowSoftMark})
	}
	return m
}

func digest(d int) string { return fmt.Sprintf("sha256:%064d", d) }

// replica of a deployment. A quarter of the deployments is spread over rooms,
// another quarter has an affinity.
func (f *fleet) replica(deployment string, d int, size int64) v1alpha1.ModelReplica {
	f.born++
	r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", d%10), Name: fmt.Sprintf("%s-%05d", deployment, f.born),
		UID: types.UID(fmt.Sprintf("uid-%05d", f.born)), CreationTimestamp: metav1.NewTime(f.now.Add(time.Duration(f.born-1_000_000) * time.Second))}}
	r.Spec.DeploymentRef = v1alpha1.DeploymentReference{Name: deployment, UID: "uid-" + deployment}
	r.Spec.Revision, r.Spec.ReservedBytes, r.Spec.Priority.Value = deployment+"-1", size*gib, int32(d%3)
	r.Spec.Model = model.Record{Source: "hf://org/" + deployment, VouchedBy: []string{model.VoucherPreview}, Digest: digest(d), Files: []model.File{{Path: "m", Bytes: size * gib / 2}}}
	if d%5 == 0 {
		r.Spec.Residency.Policy = v1alpha1.ResidencyOnDemand
	}
	switch d % 4 {
	case 1:
		r.Spec.Placement.TopologySpreadConstraints = []v1alpha1.TopologySpreadConstraint{{TopologyKey: "example.com/room", MaxSkew: 2, WhenUnsatisfiable: corev1.DoNotSchedule}}
	case 2:
		r.Spec.Placement.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1alpha1.NodeSelector{
			NodeSelectorTerms: []v1alpha1.NodeSelectorTerm{{MatchExpressions: []v1alpha1.NodeSelectorRequirement{
				{Key: "example.com/site", Operator: corev1.NodeSelectorOpNotIn, Values: []string{fmt.Sprintf("site-%d", d%4)}}}}}}}}
	}
	return r
}

// more returns unplaced replicas of twenty deployments with a high priority.
func (f *fleet) more(n int, size int64) []v1alpha1.ModelReplica {
	var out []v1alpha1.ModelReplica
	for i := range n {
		d := 300 + i%20
		r := f.replica(fmt.Sprintf("n%03d-%d", d, size), d, size)
		r.Spec.Priority.Value = 2
		out = append(out, r)
	}
	return out
}
