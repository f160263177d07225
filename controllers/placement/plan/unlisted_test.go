//go:build !race

package plan

import (
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// TestAttackTinyWeightsTakeNoDisk: a Mac whose list of weights is full of tiny ones has
// more that a download may replace, as its sum says.
func TestAttackTinyWeightsTakeNoDisk(t *testing.T) {
	var tiny []v1alpha1.StoredWeights
	for i := range 256 {
		tiny = append(tiny, v1alpha1.StoredWeights{Digest: fmt.Sprintf("sha256:00%d", i), Bytes: 100, ReclaimableBytes: 100})
	}
	for name, test := range map[string]struct {
		sum  int64
		fits bool
	}{
		"an earlier agent":                   {sum: 0},
		"only those that are listed":         {sum: 256 * 100},
		"weights that are not listed":        {sum: 256*100 + 100*gib, fits: true},
		"not enough even with unlisted ones": {sum: 256*100 + 50*gib},
		"a sum of less than what is listed":  {sum: 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := mac("a", 900*gib, func(m *v1alpha1.MacNode) {
				m.Status.Weights, m.Status.Disk.FreeBytes, m.Status.Disk.ReclaimableBytes = tiny, 320*gib, test.sum
			})
			r := replica("r", 450*gib, weighs("sha256:big", 400*gib))
			if d := NewSnapshot([]v1alpha1.MacNode{m}, nil, now).Pick(&r); (d.Mac == "a") != test.fits {
				t.Errorf("placed on %q (%s), want it to fit: %t", d.Mac, d.Reason, test.fits)
			}
		})
	}
}
