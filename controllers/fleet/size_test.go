//go:build !race

package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func filesOf(n int, path string) (out []model.File) {
	for i := range n {
		out = append(out, model.File{Path: fmt.Sprintf("%03d%s", i, path), Bytes: 1 << 40, SHA256: strings.Repeat("ab", 32)})
	}
	return out
}

// etcd rejects an object of 1.5 MiB, and with it all assignments of a Mac.
func TestOrdersOfAMacStayBelowWhatAnObjectMayBe(t *testing.T) {
	for name, fill := range map[string]func(*v1alpha1.ModelReplica){
		"prefixes":             func(r *v1alpha1.ModelReplica) { r.Spec.SharedPrefixes = []string{strings.Repeat("é", 4096)} },
		"prefixes of escapes":  func(r *v1alpha1.ModelReplica) { r.Spec.SharedPrefixes = []string{strings.Repeat("<", 4096)} },
		"controls":             func(r *v1alpha1.ModelReplica) { r.Spec.SharedPrefixes = []string{strings.Repeat("\x01", 4096)} },
		"line separators":      func(r *v1alpha1.ModelReplica) { r.Spec.SharedPrefixes = []string{strings.Repeat("\u2028", 4096)} },
		"many files":           func(r *v1alpha1.ModelReplica) { r.Spec.Model.Files = filesOf(256, strings.Repeat("x", 100)) },
		"paths of quotes":      func(r *v1alpha1.ModelReplica) { r.Spec.Model.Files = filesOf(30, strings.Repeat(`"`, 509)) },
		"paths of backslashes": func(r *v1alpha1.ModelReplica) { r.Spec.Model.Files = filesOf(30, strings.Repeat(`\`, 509)) },
		"paths of escapes":     func(r *v1alpha1.ModelReplica) { r.Spec.Model.Files = filesOf(20, strings.Repeat("<", 509)) },
		"paths of an adapter": func(r *v1alpha1.ModelReplica) {
			r.Spec.Model.Adapters = []model.Adapter{{Name: "a", Files: filesOf(2, strings.Repeat(`"`, 509))}}
		},
		"a source of escapes":  func(r *v1alpha1.ModelReplica) { r.Spec.Model.Source = strings.Repeat("&", 1024) },
		"nothing that is long": func(*v1alpha1.ModelReplica) {},
	} {
		var replicas []v1alpha1.ModelReplica
		for i := range MaxAssignments {
			r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", 253), Namespace: strings.Repeat("n", 63), UID: types.UID(fmt.Sprint(i))}}
			r.Spec.NodeName = "m"
			fill(&r)
			replicas = append(replicas, r)
		}
		orders := Assignments("m", replicas, nil)
		b, err := json.Marshal(orders)
		if err != nil {
			t.Fatal(err)
		}
		keys := 0 // in managedFields, which name each file again
		for _, o := range orders {
			files := o.Model.Files
			for _, a := range o.Model.Adapters {
				files = append(files, a.Files...)
			}
			for _, f := range files { // measured: the API server writes a key of these characters in the same way
				path, _ := json.Marshal(map[string]string{"path": f.Path})
				key, _ := json.Marshal("k:" + string(path))
				keys += len(key) + len(`:{".":{},"f:bytes":{},"f:path":{},"f:sha256":{}},`)
			}
		}
		if len(b)+keys > maxAssignmentsBytes || len(orders) == 0 {
			t.Errorf("%s: %d orders take %d and %d bytes", name, len(orders), len(b), keys)
		}
		if name == "nothing that is long" && len(orders) != MaxAssignments {
			t.Errorf("%d orders, want %d", len(orders), MaxAssignments)
		}
	}
}

// Names, inspections and peers each have a bound, and all of them are in one object.
func TestAllOrdersOfAMacFitOneObject(t *testing.T) {
	const etcd, class = 1_572_864, 16 << 10
	const named = MaxInspections * (17*112 + 256) // in managedFields, which name each inspection and its adapters
	if all := maxAssignmentsBytes + MaxAssignments*maxNamesBytes + maxInspectionsBytes + named + maxPeersBytes + class; all > etcd {
		t.Errorf("all orders of a Mac may take %d bytes", all)
	}
	peer := func(name, host, grant int) v1alpha1.Peer {
		return v1alpha1.Peer{Mac: strings.Repeat("m", name), Grant: strings.Repeat("g", grant), Address: v1alpha1.MacAddress{Host: strings.Repeat("h", host), Port: 65535, Reach: v1alpha1.ReachDirectOrTunnel}}
	}
	for _, tc := range []struct {
		peer v1alpha1.Peer
		want int
	}{{peer(10, 20, 600), maxPeers}, {peer(52, 253, 2048), 1}} {
		fit := FitPeers(slices.Repeat([]v1alpha1.Peer{tc.peer}, maxPeers))
		b, err := json.Marshal(fit)
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf(`"k:{\"mac\":\"%s\"}":{".":{},"f:address":{".":{},"f:host":{},"f:port":{},"f:reach":{}},"f:grant":{},"f:mac":{}},`, tc.peer.Mac)
		if n := len(b) + len(fit)*len(key); len(fit) != tc.want || n > maxPeersBytes/MaxAssignments {
			t.Errorf("%d peers take %d bytes, want %d", len(fit), n, tc.want)
		}
	}
}

func TestInspectionsOfAMacStayBelowWhatAnObjectMayBe(t *testing.T) {
	var deployments []v1alpha1.ModelDeployment
	for i := range MaxInspections {
		d := v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		d.Spec.Model.Source = "https://example.org/" + fmt.Sprint(i) + strings.Repeat("&", 1000)
		deployments = append(deployments, d)
	}
	in := Inspections("m", deployments, []v1alpha1.MacNode{ready("m")}, nil)
	if b, err := json.Marshal(in); err != nil || len(b) > maxInspectionsBytes || len(in) == 0 {
		t.Errorf("%d inspections take %d bytes, %v", len(in), len(b), err)
	}
}

func TestADeploymentThatMakesReplicasTooLargeIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		fill    func(*v1alpha1.ModelDeploymentSpec, *model.Record)
		refused bool
	}{
		"a large model": {fill: func(_ *v1alpha1.ModelDeploymentSpec, r *model.Record) {
			r.Files = filesOf(200, "-of-00200.safetensors")
		}, refused: false},
		"prefixes": {fill: func(s *v1alpha1.ModelDeploymentSpec, _ *model.Record) {
			s.PrefixCache.SharedPrefixes = []string{strings.Repeat("x", 4096)}
		}, refused: false},
		"a list of files": {fill: func(_ *v1alpha1.ModelDeploymentSpec, r *model.Record) {
			r.Files = filesOf(256, strings.Repeat("x", 500))
		}, refused: true},
		"placement": {fill: func(s *v1alpha1.ModelDeploymentSpec, _ *model.Record) {
			s.Placement.NodeSelector = map[string]string{"a": strings.Repeat("x", 40<<10)}
		}, refused: true},
	} {
		var spec v1alpha1.ModelDeploymentSpec
		var record model.Record
		tc.fill(&spec, &record)
		ofSpec, ofRecord := Oversized(&spec), OversizedRecord(&record)
		if (ofSpec != nil || ofRecord != nil) != tc.refused {
			t.Errorf("%s: %+v, %+v", name, ofSpec, ofRecord)
		}
	}
}

// TestAReplicaCountsWhatItsPlacementTakes: each part of it, also in the operator's memory, where a
// short value takes more than its JSON.
func TestAReplicaCountsWhatItsPlacementTakes(t *testing.T) {
	long := strings.Repeat("x", 60)
	for name, fill := range map[string]func(*v1alpha1.PlacementSpec){
		"tolerations": func(p *v1alpha1.PlacementSpec) {
			p.Tolerations = slices.Repeat([]v1alpha1.Toleration{{Key: strings.Repeat("k", 317), Value: long}}, 16)
		},
		"constraints": func(p *v1alpha1.PlacementSpec) {
			p.TopologySpreadConstraints = slices.Repeat([]v1alpha1.TopologySpreadConstraint{{TopologyKey: strings.Repeat("k", 317), MaxSkew: 1}}, 4)
		},
		"chips": func(p *v1alpha1.PlacementSpec) { p.Chips = slices.Repeat([]string{long[:32]}, 32) },
		"selector": func(p *v1alpha1.PlacementSpec) {
			p.NodeSelector = map[string]string{"<" + long: strings.Repeat("<", 900)}
		},
		"values": func(p *v1alpha1.PlacementSpec) {
			r := v1alpha1.NodeSelectorRequirement{Key: "k", Operator: "In", Values: slices.Repeat([]string{"a"}, 32)}
			term := v1alpha1.NodeSelectorTerm{MatchExpressions: slices.Repeat([]v1alpha1.NodeSelectorRequirement{r}, 16)}
			p.Affinity = &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1alpha1.PreferredSchedulingTerm{{Preference: term}}}}
		},
	} {
		var r v1alpha1.ModelReplica
		counted, size := ReplicaBytes(&r), jsonBytes(r)
		fill(&r.Spec.Placement)
		if counted, size = ReplicaBytes(&r)-counted, jsonBytes(r)-size; counted < size || name == "values" && counted < 16*32*20 {
			t.Errorf("%s: %d bytes of JSON count as %d", name, size, counted)
		}
	}
}
