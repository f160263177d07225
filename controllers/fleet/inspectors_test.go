//go:build !race

package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// valued is a deployment whose affinity excludes a number of values.
func valued(namespace string, i, values int) v1alpha1.ModelDeployment {
	var d v1alpha1.ModelDeployment
	d.Namespace, d.Name, d.UID, d.Generation = namespace, fmt.Sprint("d-", i), types.UID(fmt.Sprint(namespace, i)), 1
	d.Spec.Model.Source = fmt.Sprint("file://", namespace, "/", i)
	if i%2 == 0 {
		d.Spec.Model.Source = fmt.Sprint("hf://", namespace, "/", i)
	}
	var all []v1alpha1.NodeSelectorRequirement
	for n := 0; n < values; n += 32 {
		r := v1alpha1.NodeSelectorRequirement{Key: "room", Operator: corev1.NodeSelectorOpNotIn}
		for v := range min(32, values-n) {
			r.Values = append(r.Values, fmt.Sprint(v))
		}
		all = append(all, r)
	}
	if len(all) > 0 {
		d.Spec.Placement = expressions(all...)
	}
	return d
}

// kept returns the number of requests that are kept, by namespace.
func (s *Inspectors) kept() map[string]int {
	out := map[string]int{}
	for name, t := range s.tenants {
		out[name] = len(t.requests)
	}
	return out
}

// TestAttackEditsAmongManyLargeAffinities: one edit of a deployment of files has the orders of
// all Macs derived, each from all deployments.
func TestAttackEditsAmongManyLargeAffinities(t *testing.T) {
	var deployments []v1alpha1.ModelDeployment
	for i := range 100 {
		deployments = append(deployments, valued("evil", i, 4400))
		if Oversized(&deployments[i].Spec) != nil {
			t.Fatal("the spec is refused for its size")
		}
	}
	var macs []v1alpha1.MacNode
	for i := range 50 {
		macs = append(macs, ready(fmt.Sprintf("m%02d", i)))
		macs[i].Labels = map[string]string{"room": "lab"}
	}
	before, _ := json.Marshal([]any{deployments, macs})
	var s Inspectors
	edit := func() uint64 {
		deployments[1].Generation++
		var from, to runtime.MemStats
		runtime.ReadMemStats(&from)
		for i := range macs {
			if len(s.Inspections(macs[i].Name, deployments, macs, nil)) == 0 {
				t.Fatal("no Mac is asked")
			}
		}
		runtime.ReadMemStats(&to)
		return to.TotalAlloc - from.TotalAlloc
	}
	edit()
	requests := map[types.UID]*request{}
	for uid, r := range s.tenants["evil"].requests {
		requests[uid] = r
	}
	if each := edit() / 50; each > 256<<10 { // a manifest as JSON alone is 26 KB, of which there are 100
		t.Errorf("%d KiB are allocated for each Mac, want at most 256", each>>10)
	}
	again := 0
	for uid, r := range s.tenants["evil"].requests {
		if requests[uid] != r {
			again++
		}
	}
	if again != 1 || len(requests) != 100 {
		t.Errorf("%d of %d requests were made again, want the one that was edited", again, len(requests))
	}
	deployments[1].Generation = 1
	if after, _ := json.Marshal([]any{deployments, macs}); string(after) != string(before) {
		t.Error("the lists, which are a cache's own objects, were changed")
	}
}

// TestWhatIsKeptIsRight: deployments and Macs come, change and leave at random; what is asked is
// what a decision without memory asks.
func TestWhatIsKeptIsRight(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var s Inspectors
	var deployments []v1alpha1.ModelDeployment
	var macs []v1alpha1.MacNode
	for step := range 400 {
		switch r.IntN(6) {
		case 0, 1:
			d := valued([]string{"a", "b"}[r.IntN(2)], step, r.IntN(3)*32)
			d.Spec.Placement.Chips = []string{"0", "1", ""}[r.IntN(3):]
			d.Spec.Placement.Tolerations = []v1alpha1.Toleration{{Key: "k", Operator: "Exists"}}[:r.IntN(2)]
			deployments = append(deployments, d)
		case 2:
			if n := len(deployments); n > 0 {
				d := &deployments[r.IntN(n)]
				d.Generation++
				d.Spec.Placement.NodeSelector = map[string]string{"room": fmt.Sprint(r.IntN(3))}
				d.Spec.Model.Source += "x"
			}
		case 3:
			m := ready(fmt.Sprint("m", r.IntN(8)))
			m.UID = types.UID(fmt.Sprint(step))
			if !slices.ContainsFunc(macs, func(have v1alpha1.MacNode) bool { return have.Name == m.Name }) {
				macs = append(macs, m)
			}
		case 4:
			if n := len(macs); n > 0 {
				m := &macs[r.IntN(n)]
				switch r.IntN(3) {
				case 0:
					m.Labels = map[string]string{"room": fmt.Sprint(r.IntN(3))}
				case 1:
					m.Status.Chip = fmt.Sprint(r.IntN(2))
				default:
					m.Spec.Taints = []v1alpha1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}[:r.IntN(2)]
				}
			}
		default:
			if n := len(deployments); n > 0 && r.IntN(2) == 0 {
				deployments = slices.Delete(deployments, n/2, n/2+1)
			} else if n := len(macs); n > 3 {
				macs = slices.Delete(macs, n/2, n/2+1)
			}
		}
		for i := range macs {
			got, want := s.Inspections(macs[i].Name, deployments, macs, nil), Inspections(macs[i].Name, deployments, macs, nil)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d: %s is asked for %+v, want %+v", seed, step, macs[i].Name, got, want)
			}
		}
		if n := s.kept()["a"] + s.kept()["b"]; len(macs) > 0 && n > len(deployments) || len(s.macs) > max(8, len(macs)) {
			t.Fatalf("seed %d: %d requests and %d Macs are kept, for %d and %d", seed, n, len(s.macs), len(deployments), len(macs))
		}
	}
}

// What is decided about each of as many deployments as a namespace may have is kept, in a fleet of a
// thousand Macs: each of the others would be judged again for each Mac, whose orders others wait for.
func TestTheRequestsOfAllDeploymentsOfANamespaceAreKept(t *testing.T) {
	macs := make([]v1alpha1.MacNode, 1000)
	for i := range macs {
		macs[i] = ready(fmt.Sprint("mac-", i))
	}
	for name, c := range map[string]struct{ deployments, adapters int }{
		"small ones": {deployments: SpecsRoom.Namespace / leastBytes}, "with adapters": {deployments: 3000, adapters: 7},
	} {
		deployments := make([]v1alpha1.ModelDeployment, c.deployments)
		for i := range deployments {
			deployments[i] = adapted(valued("many", i, 0), c.adapters)
		}
		var s Inspectors
		s.Inspections("mac-7", deployments, macs, nil)
		if n := s.kept()["many"]; n != len(deployments) {
			t.Errorf("%s: the requests of %d deployments are kept, of %d", name, n, len(deployments))
		}
	}
}

// adapted gives a deployment adapters of 2 KB each.
func adapted(d v1alpha1.ModelDeployment, n int) v1alpha1.ModelDeployment {
	for n := range n {
		d.Spec.Adapters = append(d.Spec.Adapters, v1alpha1.AdapterSpec{Name: fmt.Sprint(n), Source: fmt.Sprintf("hf://%02000d", n)})
	}
	return d
}

// TestAttackANamespaceFillsTheRequests: it loses its own, and no other namespace does.
func TestAttackANamespaceFillsTheRequests(t *testing.T) {
	deployments := []v1alpha1.ModelDeployment{valued("quiet", 0, 0), valued("quiet", 1, 32)}
	for i := range maxInspectorBytes / 1024 {
		deployments = append(deployments, valued("evil", i, 0))
	}
	macs := []v1alpha1.MacNode{ready("a"), ready("b")}
	var s Inspectors
	for range 2 {
		s.Inspections("a", deployments, macs, nil)
	}
	if kept := s.kept(); kept["quiet"] != 2 || kept["evil"] == 0 || kept["evil"] == len(deployments)-2 || s.bytes > maxInspectorBytes {
		t.Errorf("%v are kept in %d bytes, want both of the quiet namespace within %d", kept, s.bytes, maxInspectorBytes)
	}
	sum := 0
	for _, tenant := range s.tenants {
		for _, r := range tenant.requests {
			sum += r.memory
		}
	}
	if sum != s.bytes {
		t.Errorf("%d bytes are counted, %d are kept", s.bytes, sum)
	}
	s.Inspections("a", nil, nil, nil)
	if s.bytes != 0 || len(s.tenants)+len(s.macs) != 0 {
		t.Errorf("%d bytes, %d namespaces and %d Macs are kept of none", s.bytes, len(s.tenants), len(s.macs))
	}
}
