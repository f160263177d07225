//go:build !race

package plan

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// TestAttackPrefetchesOfManyBytes: a namespace that may have half of a Mac's assignments has
// half of their bytes, also with weights that it only keeps there.
func TestAttackPrefetchesOfManyBytes(t *testing.T) {
	rules := rulesOf(v1alpha1.NamespaceRule{
		MemoryLimit: ptr.To(resource.MustParse("64Gi")), PrefetchLimit: ptr.To(resource.MustParse("100Gi")), ReplicasPerMac: fleet.MaxAssignments / 2})
	s := NewSnapshot([]v1alpha1.MacNode{mac("a", 10*gib)}, nil, now).Under(rules)
	large := func(i int) *v1alpha1.ModelReplica {
		r := replica(fmt.Sprint("r", i), 1<<20, of(fmt.Sprint("d", i)), keeps(""), carries(fmt.Sprint("w", i), 1<<20))
		r.Spec.ChatTemplate = strings.Repeat("x", 30<<10)
		return &r
	}
	n := 0
	for ; s.PickPrefetch(large(n)).Prefetch != ""; n++ {
		s.FetchAhead(large(n), "a")
	}
	if want := 512 << 10 / 2 / fleet.OrderBytes(large(0)); n != want {
		t.Errorf("one namespace has %d prefetches on a Mac, want %d", n, want)
	}
	other := large(n)
	if other.Namespace = "other"; s.PickPrefetch(other).Prefetch == "" {
		t.Error("another namespace has no room")
	}
}
