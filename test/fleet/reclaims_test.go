//go:build !race

package fleet

import (
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func macWith(total int64, all ...v1alpha1.Reclaim) *v1alpha1.MacNode {
	n := &v1alpha1.MacNode{}
	n.Status.Reclaims, n.Status.Memory.FreedBytesTotal = all, total
	return n
}

func reclaim(id, uid string, load, freed int64) v1alpha1.Reclaim {
	return v1alpha1.Reclaim{ID: id, ReplicaUID: uid, Load: load, FreedBytes: &freed}
}

func TestEveryReclaimIsCountedOnceAndAgreesWithProc(t *testing.T) {
	old := reclaim("a/1/1", "a", 1, 100)
	unknown := v1alpha1.Reclaim{ID: "a/1/2", ReplicaUID: "a", Load: 2}
	held := map[string]int64{"a": 100}
	for name, test := range map[string]struct {
		now  *v1alpha1.MacNode
		held map[string]int64
		want string // in the error; empty for none
	}{
		"one more":                  {now: macWith(204, reclaim("a/1/2", "a", 2, 104), old), held: held, want: ""},
		"nothing new":               {now: macWith(100, old), want: ""},
		"none came":                 {now: macWith(100, old), held: held, want: "0 reclaims"},
		"two came":                  {now: macWith(300, reclaim("a/1/3", "a", 3, 100), reclaim("a/1/2", "a", 2, 100), old), held: held, want: "2 reclaims"},
		"one load has two":          {now: macWith(200, reclaim("a/2/2", "a", 2, 50), reclaim("a/1/2", "a", 2, 50), old), held: held, want: "two reclaims of load 2"},
		"of another replica":        {now: macWith(200, reclaim("b/1/1", "b", 1, 100), old), want: "held nothing"},
		"its bytes are unknown":     {now: macWith(100, unknown, old), held: held, want: "freed unknown bytes"},
		"too many bytes":            {now: macWith(206, reclaim("a/1/2", "a", 2, 106), old), held: held, want: "/proc showed 100"},
		"the total counts it twice": {now: macWith(300, reclaim("a/1/2", "a", 2, 100), old), held: held, want: "grew by 200"},
		"the total misses it":       {now: macWith(100, reclaim("a/1/2", "a", 2, 100), old), held: held, want: "grew by 0"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckReclaims(macWith(100, old), test.now, test.held)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestFreedBytesAreThoseOfProcWithinFivePercent(t *testing.T) {
	for freed, ok := range map[int64]bool{0: false, 94: false, 95: true, 100: true, 105: true, 106: false, 200: false} {
		if Near(freed, 100) != ok {
			t.Errorf("%d of 100: %v", freed, !ok)
		}
	}
	if Near(0, 0) {
		t.Error("0 of 0 bytes pass")
	}
}
