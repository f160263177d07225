//go:build !race

package plan

import (
	"testing"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// adapted gives a replica's model adapters of a size, by the digests of their files.
func adapted(bytes int64, digests ...string) func(*v1alpha1.ModelReplica) {
	return func(r *v1alpha1.ModelReplica) {
		for _, d := range digests {
			r.Spec.Model.Adapters = append(r.Spec.Model.Adapters, model.Adapter{Name: d, Source: "hf://a/" + d, Digest: d, Files: []model.File{{Path: "f", Bytes: bytes}}})
		}
	}
}

// TestAdaptersCountOnTheDisk: each part that is not on the Mac yet is downloaded once, and
// the disk has room for all of them together.
func TestAdaptersCountOnTheDisk(t *testing.T) {
	const size, adapter = 40 * gib, 4 * gib
	stored := func(digests ...string) func(*v1alpha1.MacNode) {
		return func(m *v1alpha1.MacNode) {
			for _, d := range digests {
				m.Status.Weights = append(m.Status.Weights, v1alpha1.StoredWeights{Digest: d})
			}
		}
	}
	for name, c := range map[string]struct {
		free   int64
		stored []string
		others []v1alpha1.ModelReplica
		fits   bool
	}{
		"room for all":                         {free: size + 2*adapter + diskMargin, fits: true},
		"room for the model and one adapter":   {free: size + adapter + diskMargin},
		"room for what is not there":           {free: 2*adapter + diskMargin, stored: []string{"m"}, fits: true},
		"an adapter is there":                  {free: adapter + diskMargin, stored: []string{"m", "one"}, fits: true},
		"less than the other":                  {free: adapter + diskMargin - 1, stored: []string{"m", "one"}},
		"everything is there":                  {free: 0, stored: []string{"m", "one", "two"}, fits: true},
		"another downloads the same":           {free: size + 2*adapter + diskMargin, others: []v1alpha1.ModelReplica{replica("o", gib, on("a"), weighs("m", size), adapted(adapter, "two", "one"))}, fits: true},
		"another downloads the model alone":    {free: size + 2*adapter + diskMargin - 1, others: []v1alpha1.ModelReplica{replica("o", gib, on("a"), weighs("m", size))}},
		"another downloads another's adapters": {free: size + 3*adapter + diskMargin, others: []v1alpha1.ModelReplica{replica("o", gib, on("a"), weighs("n", size), adapted(adapter, "three"))}},
	} {
		t.Run(name, func(t *testing.T) {
			r := replica("r", gib, weighs("m", size), adapted(adapter, "one", "two"))
			macs := []v1alpha1.MacNode{mac("a", 192*gib, disk(c.free), stored(c.stored...))}
			d := NewSnapshot(macs, c.others, now).Pick(&r)
			if got := d.Mac == "a"; got != c.fits {
				t.Errorf("placed on %q: %s", d.Mac, d.Message)
			}
		})
	}
}

// TestAdaptersOfOneReplicaAreKeptForIt: they are not deleted to make room for another one.
func TestAdaptersOfOneReplicaAreKeptForIt(t *testing.T) {
	macs := []v1alpha1.MacNode{mac("a", 192*gib, disk(1), unwantedThere("one", 50*gib))}
	keeps := replica("o", gib, on("a"), weighs("m", 0), adapted(0, "one"))
	for name, others := range map[string][]v1alpha1.ModelReplica{"nothing needs it": nil, "a replica needs it": {keeps}} {
		r := replica("r", gib, weighs("n", 40*gib))
		d := NewSnapshot(macs, others, now).Pick(&r)
		if got := d.Mac == "a"; got != (others == nil) {
			t.Errorf("%s: placed on %q: %s", name, d.Mac, d.Message)
		}
	}
}
