package fleet

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestAllThatTheOperatorKeepsFitsItsMemoryTogether: tenants may fill all rooms at once.
func TestAllThatTheOperatorKeepsFitsItsMemoryTogether(t *testing.T) {
	const (
		macs = 1000
		// perMac is what the objects of a Mac take, and the reports of its inspections, of which its
		// agent sends 256 KiB.
		perMac = (137 + 280) << 10
		// others are the bounds of Inspectors, and of packages plan (classes) and demand (reports of
		// gateways).
		others = (32 + 32 + 128) << 20
		// heapPercent of the limit are for the heap.
		heapPercent = 85
	)
	sum := others + macs*perMac
	for _, r := range []Room{SpecsRoom, ReplicasRoom, RevisionsRoom, TokensRoom} {
		sum += r.All
	}
	raw, err := os.ReadFile("../../charts/metalfleet/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Operator struct {
			Resources struct{ Limits map[string]resource.Quantity }
		}
	}
	if err := yaml.Unmarshal(raw, &values); err != nil {
		t.Fatal(err)
	}
	limit := values.Operator.Resources.Limits["memory"]
	if heap := int(limit.Value()) / 100 * heapPercent; sum > heap {
		t.Errorf("the operator keeps up to %d MiB, and its memory limit leaves %d MiB for the heap", sum>>20, heap>>20)
	}
}
