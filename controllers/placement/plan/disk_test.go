//go:build !race

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestOnDemandModelsTakeAShareOfADisk: no limit of memory counts what a namespace loads on demand,
// so that it could fill the disks of all Macs.
func TestOnDemandModelsTakeAShareOfADisk(t *testing.T) {
	half := rulesOf(v1alpha1.NamespaceRule{ReplicasPerMac: 32})
	stores := func(digest string, bytes int64) func(*v1alpha1.ModelReplica) {
		return func(r *v1alpha1.ModelReplica) {
			r.Spec.Model.Digest, r.Spec.Model.Files = digest, []model.File{{Path: "m.gguf", Bytes: bytes}}
		}
	}
	file := func(r *v1alpha1.ModelReplica) { r.Spec.Model.Source = "file://m.gguf" }
	other := func(r *v1alpha1.ModelReplica) { r.Namespace = "other" }
	for name, c := range map[string]struct {
		bound, next v1alpha1.ModelReplica
		rules       Rules
		stored      bool // the weights of next are on the disk too
		placed      bool
	}{
		"more than half":            {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib)), next: replica("r", gib, onDemand, stores("y", 30*gib)), rules: half},
		"exactly half":              {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib)), next: replica("r", gib, onDemand, stores("y", 10*gib)), rules: half, placed: true},
		"more, and stored before":   {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib)), next: replica("r", gib, onDemand, stores("y", 30*gib)), rules: half, stored: true},
		"files in place":            {bound: replica("b", gib, onDemand, on("a"), stores("x", 60*gib)), next: replica("r", gib, onDemand, stores("y", 30*gib), file), rules: half, placed: true},
		"the same weights":          {bound: replica("b", gib, onDemand, on("a"), stores("x", 60*gib)), next: replica("r", gib, onDemand, stores("x", 60*gib)), rules: half, placed: true},
		"the first":                 {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib), other), next: replica("r", gib, onDemand, stores("y", 55*gib)), rules: half, placed: true},
		"a revision of it":          {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib), of("d")), next: replica("r", gib, onDemand, stores("y", 40*gib), of("d")), rules: half, placed: true},
		"memory is the limit of it": {bound: replica("b", gib, on("a"), stores("x", 40*gib)), next: replica("r", gib, stores("y", 40*gib)), rules: half, placed: true},
		"no share":                  {bound: replica("b", gib, onDemand, on("a"), stores("x", 40*gib)), next: replica("r", gib, onDemand, stores("y", 40*gib)), rules: rulesOf(v1alpha1.NamespaceRule{}), placed: true},
	} {
		m := mac("a", 10*gib)
		// The weights of the bound replica are on the disk already.
		n := c.bound.Spec.Model.Bytes()
		m.Status.Disk.FreeBytes, m.Status.Disk.WeightsBytes = 100*gib-n, n
		m.Status.Weights = []v1alpha1.StoredWeights{{Digest: c.bound.Spec.Model.Digest, Bytes: n}}
		if c.stored {
			m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: c.next.Spec.Model.Digest, Bytes: c.next.Spec.Model.Bytes()})
		}
		m.Status.Inspections = []v1alpha1.InspectionStatus{{ID: "i", Source: "file://m.gguf", State: v1alpha1.InspectionResolved,
			Model: &model.Record{Source: "file://m.gguf", Digest: "y"}}}
		d := NewSnapshot([]v1alpha1.MacNode{m}, []v1alpha1.ModelReplica{c.bound}, now).Under(c.rules).Pick(&c.next)
		if (d.Mac == "a") != c.placed || !c.placed && !strings.Contains(d.Message, "replicasPerMac") {
			t.Errorf("%s: placed on %q: %s", name, d.Mac, d.Message)
		}
	}
}

// TestRevisionsOfOneDeploymentTakeAShareOfADisk: of those that stay next to one another only the
// one that is replaced does not count, also when they become OnDemand.
func TestRevisionsOfOneDeploymentTakeAShareOfADisk(t *testing.T) {
	of50 := rulesOf(v1alpha1.NamespaceRule{ReplicasPerMac: 32})
	fill := func(size int64, kept ...v1alpha1.ModelReplica) (placed, became int) {
		m := mac("a", 48*gib)
		m.Status.Disk.FreeBytes = 100 * gib
		always := slices.Clone(kept)
		for ; placed < 20; placed++ {
			name := fmt.Sprint("r", placed)
			r := replica(name, gib, onDemand, of("d"), revised(name), carries(name, size))
			if NewSnapshot([]v1alpha1.MacNode{m}, kept, now).Under(of50).Pick(&r).Mac == "" {
				break
			}
			on("a")(&r)
			kept = append(kept, r)
			r.Spec.Residency = v1alpha1.Residency{}
			always = append(always, r)
		}
		always = append(always, replica("more", gib, on("a"), of("d"), revised("more"), carries("more", size)))
		s := NewSnapshot([]v1alpha1.MacNode{m}, always, now).Under(of50)
		for i := len(kept) - placed; i < len(always); i++ {
			if s.ChangeResidency(&always[i], v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand}) == "" {
				became++
			}
		}
		return placed, became
	}
	other := replica("o", gib, onDemand, on("a"), carries("o", 30*gib))
	same := replica("s", gib, onDemand, on("a"), of("d"), carries("r0", 40*gib))
	for name, c := range map[string]struct {
		size int64
		kept []v1alpha1.ModelReplica
		want int
	}{
		"six models of 10 GiB, one of them replaced": {size: 10 * gib, want: 6},
		"any two models":                                  {size: 45 * gib, want: 2},
		"next to another deployment":                      {size: 10 * gib, kept: []v1alpha1.ModelReplica{other}, want: 3},
		"the new model is there with another replica too": {size: 40 * gib, kept: []v1alpha1.ModelReplica{same}, want: 2},
	} {
		if placed, became := fill(c.size, c.kept...); placed != c.want || became != c.want {
			t.Errorf("%s: %d are placed and %d become OnDemand, want %d", name, placed, became, c.want)
		}
	}
}
