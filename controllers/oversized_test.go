//go:build !race

package controllers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// largeAffinity is an affinity of a number of terms, of 40 KiB each.
func largeAffinity(terms int) *v1alpha1.Affinity {
	required := &v1alpha1.NodeSelector{}
	for i := range terms {
		term := v1alpha1.NodeSelectorTerm{}
		for range 16 {
			e := v1alpha1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpNotIn}
			for j := range 32 {
				e.Values = append(e.Values, fmt.Sprintf("%063d", 100*i+j))
			}
			term.MatchExpressions = append(term.MatchExpressions, e)
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	return &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
}

// transformOf returns what the operator's cache does with objects before it keeps them.
func transformOf() func(any) (any, error) {
	for kind, by := range controllers.ManagerOptions("s").Cache.ByObject {
		if _, ok := kind.(*v1alpha1.ModelDeployment); ok {
			return by.Transform
		}
	}
	return nil
}

func cached(t *testing.T, transform func(any) (any, error), d *v1alpha1.ModelDeployment) *v1alpha1.ModelDeployment {
	t.Helper()
	o, err := transform(d)
	if err != nil {
		t.Fatal(err)
	}
	return o.(*v1alpha1.ModelDeployment)
}

// countedFor returns the bytes for which a deployment in the cache is counted.
func countedFor(d *v1alpha1.ModelDeployment) int {
	n, _ := strconv.Atoi(d.Annotations["metalfleet.dev/spec-room"])
	return n
}

// TestAttackManySpecsOfANamespace: each is just small enough to be accepted.
func TestAttackManySpecsOfANamespace(t *testing.T) {
	transform := transformOf()
	in := func(namespace string, i, bytes int) *v1alpha1.ModelDeployment {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("d", i), UID: types.UID(fmt.Sprint("u", i))}}
		d.Annotations = map[string]string{"metalfleet.dev/spec-crowded": "", "metalfleet.dev/spec-bytes": "1"}
		d.Spec.ChatTemplate = strings.Repeat(string(rune('a'+i%26)), bytes)
		return cached(t, transform, d)
	}
	var kept []*v1alpha1.ModelDeployment
	count := func() (n int) {
		for _, d := range kept {
			if refusal := fleet.OversizedDeployment(d, &d.Spec); (refusal != nil) != (d.Spec.ChatTemplate == "") {
				t.Fatalf("a template of %d bytes, refused %+v", len(d.Spec.ChatTemplate), refusal)
			} else if refusal == nil {
				n++
			}
		}
		return n
	}
	for i := range 4000 {
		kept = append(kept, in("evil", i, 16<<10))
	}
	if n := count(); n < 2300 || n > 3072 || kept[n-1].Spec.ChatTemplate == "" {
		t.Errorf("%d specs of 16 KiB are kept, want the first that take 48 MiB", n)
	}
	for i := range 100 { // updates take nothing more
		kept[i] = in("evil", i, 16<<10)
	}
	kept = append(kept[:100], in("quiet", 5000, 16<<10)) // the others are deleted
	if n := count(); n != 101 {
		t.Errorf("%d specs are kept, want all 100 that were, and one of another namespace", n)
	}
	for began := time.Now(); fleet.Crowded(in("evil", 3999, 16<<10)); runtime.GC() {
		if time.Since(began) > time.Minute {
			t.Fatal("there is no room after others were deleted")
		}
	}
	runtime.KeepAlive(kept)
}

// TestARefusedSpecStaysRefusedAfterARestart: client-go transforms the objects of a list twice.
func TestARefusedSpecStaysRefusedAfterARestart(t *testing.T) {
	w := newWorld(t)
	w.deploy("large", func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.Affinity = largeAffinity(1) })
	before := w.deployment("large", v1alpha1.ConditionAccepted, v1alpha1.ReasonSpecTooLarge)
	w.stop()
	w.startOperator()
	var d v1alpha1.ModelDeployment
	w.eventually("the cache has it", func() error { return w.mgr.GetClient().Get(w.ctx, client.ObjectKeyFromObject(before), &d) })
	if fleet.OversizedDeployment(&d, &d.Spec) == nil {
		t.Errorf("a spec without its placement is accepted: %v", d.Annotations)
	}
}

// TestASpecIsCompactedOnce: a spec that is too large, one for which there is no room, and one that a
// tenant marks.
func TestASpecIsCompactedOnce(t *testing.T) {
	transform := transformOf()
	var kept []*v1alpha1.ModelDeployment
	for i := range 4000 {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", UID: types.UID(fmt.Sprint("u", i))}}
		d.Spec.ChatTemplate = strings.Repeat("x", 16<<10)
		if i == 0 {
			d.Spec.Placement.Affinity = largeAffinity(1)
		}
		kept = append(kept, cached(t, transform, d))
	}
	if !fleet.Crowded(kept[3999]) || fleet.Crowded(kept[0]) {
		t.Fatal("no spec is left out for lack of room")
	}
	for _, i := range []int{0, 1, 3999} {
		before := kept[i].DeepCopy()
		if again := cached(t, transform, kept[i]); !reflect.DeepEqual(again, before) || (fleet.OversizedDeployment(again, &again.Spec) != nil) != (i != 1) {
			t.Errorf("spec %d has %v, and had %v", i, again.Annotations, before.Annotations)
		}
	}
	forged := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Annotations: map[string]string{"metalfleet.dev/spec-compact": "", "metalfleet.dev/spec-bytes": "1"}}}
	forged.Spec.Placement.Affinity = largeAffinity(1)
	if d := cached(t, transform, forged); fleet.OversizedDeployment(d, &d.Spec) == nil {
		t.Error("a tenant has a spec accepted that is too large")
	}
}

// TestADeploymentTakesNoMoreThanItIsCountedFor: one of 2 KiB may have messages of 2 KiB in four
// conditions. Those for which there is no room take less.
func TestADeploymentTakesNoMoreThanItIsCountedFor(t *testing.T) {
	transform := transformOf()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "small-00000", ResourceVersion: "1234567", Finalizers: []string{v1alpha1.FinalizerReplicas}}}
	d.Spec.Model.Source = "hf://owner/name"
	for i := range 8 {
		d.Spec.ServedNames = append(d.Spec.ServedNames, fmt.Sprintf("team/%d%s", i, strings.Repeat("n", 112)))
	}
	for i := range 10 {
		m := "the operator waits for a person: see the condition Stalled"
		if i < 4 {
			m = strings.Repeat("m", 2<<10)
		}
		d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Condition", i), Status: "False", Reason: "NameConflict", Message: m, ObservedGeneration: 1})
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var kept []*v1alpha1.ModelDeployment
	keep := func(n int) (each int64, refused int) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range n {
			o := &v1alpha1.ModelDeployment{}
			if err := json.Unmarshal(text, o); err != nil {
				t.Fatal(err)
			}
			o.UID = types.UID(fmt.Sprint(len(kept)))
			kept = append(kept, cached(t, transform, o))
			if fleet.Crowded(kept[len(kept)-1]) {
				refused++
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		return (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / int64(n), refused
	}
	if each, refused := keep(6000); each > 8<<10 || refused != 0 {
		t.Errorf("each takes %d bytes, %d are refused", each, refused)
	}
	if each, refused := keep(6000); each > 7<<10 || refused < 5800 {
		t.Errorf("of the next ones, each takes %d bytes, %d are refused", each, refused)
	}
	runtime.KeepAlive(kept)
}

// TestADeploymentIsCountedWithItsStatus: a spec that is larger than leastBytes has one as well.
func TestADeploymentIsCountedWithItsStatus(t *testing.T) {
	const many = 1000
	transform := transformOf()
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team", ResourceVersion: "1234567", Finalizers: []string{v1alpha1.FinalizerReplicas}}}
	d.Spec.Model.Source, d.Spec.ChatTemplate = "hf://owner/name", strings.Repeat("x", 12_000)
	for i := range 10 {
		d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{Type: fmt.Sprint("Condition", i), Status: "True", Reason: "Reason",
			Message: fmt.Sprint(i) + strings.Repeat("m", 100), ObservedGeneration: 1, LastTransitionTime: metav1.Now()})
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var kept []*v1alpha1.ModelDeployment
	counted := 0
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range many {
		o := &v1alpha1.ModelDeployment{}
		if err := json.Unmarshal(text, o); err != nil {
			t.Fatal(err)
		}
		o.Name, o.UID = fmt.Sprint("d-", i), types.UID(fmt.Sprintf("%036d", i))
		kept = append(kept, cached(t, transform, o))
		counted += countedFor(kept[i])
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if taken := int(after.HeapAlloc) - int(before.HeapAlloc); taken > counted {
		t.Errorf("each takes %d bytes, and is counted for %d", taken/many, counted/many)
	}
	runtime.KeepAlive(kept)
}

// TestAttackSpecsOfManyNamespaces: each has as many as one may.
func TestAttackSpecsOfManyNamespaces(t *testing.T) {
	transform := transformOf()
	var kept []*v1alpha1.ModelDeployment
	bytes := 0
	for namespace := range 5 {
		n := 0
		for i := range 3000 {
			d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("evil-", namespace), UID: types.UID(fmt.Sprint(namespace, "-", i))}}
			d.Spec.ChatTemplate = strings.Repeat("x", 16<<10)
			if d = cached(t, transform, d); !fleet.Crowded(d) {
				n += countedFor(d)
			}
			kept = append(kept, d)
		}
		if bytes += n; n < fleet.SpecsRoom.Least*9/10 {
			t.Errorf("namespace %d has room for %d bytes", namespace, n)
		}
	}
	if most := fleet.SpecsRoom.All + 5*fleet.SpecsRoom.Least; bytes > most {
		t.Errorf("%d bytes of specs are kept, want at most %d", bytes, most)
	}
	runtime.KeepAlive(kept)
}

// TestAttackRefusedSpecsInTheOperatorsMemory: hundreds of deployments, each with a spec that is
// refused for its size.
func TestAttackRefusedSpecsInTheOperatorsMemory(t *testing.T) {
	const n = 100
	transform := transformOf()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var kept []any
	for range n {
		d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"metalfleet.dev/spec-bytes": "1"}}}
		d.Spec.Placement.Affinity = largeAffinity(4)
		d.Spec.Placement.NodeSelector = map[string]string{"key": strings.Repeat("x", 100<<10)}
		d.Spec.ChatTemplate = strings.Repeat("x", 16<<10)
		d.Spec.PrefixCache.SharedPrefixes = []string{strings.Repeat("x", 4<<10)}
		d.Spec.ReplicaMetadata.Annotations = map[string]v1alpha1.MetadataValue{"a": v1alpha1.MetadataValue(strings.Repeat("x", 4<<10))}
		kept = append(kept, cached(t, transform, d))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n; each > 8<<10 {
		t.Errorf("a refused deployment takes %d bytes", each)
	}
	runtime.KeepAlive(kept)
}

// TestADeploymentWhoseSpecBecomesTooLarge keeps its replicas where they are, replaces them by the
// placement that they have, and loses nothing that its owner wrote.
func TestADeploymentWhoseSpecBecomesTooLarge(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.mac("mac-2", holding(60*gib))
	label := func(name string) map[string]string { return map[string]string{"name": name} }
	d := w.deploy("grows", func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.NodeSelector = label("mac-2") })
	w.deployment("grows", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	w.must(w.c.Patch(w.ctx, d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"metalfleet.dev/spec-bytes":"1"}}}`))))
	w.edit("grows", func(s *v1alpha1.ModelDeploymentSpec) {
		s.Placement, s.Replicas = v1alpha1.PlacementSpec{NodeSelector: label("mac-1"), Affinity: largeAffinity(1)}, ptr.To[int32](2)
	})
	w.deployment("grows", v1alpha1.ConditionAccepted, v1alpha1.ReasonSpecTooLarge)
	var replicas v1alpha1.ModelReplicaList
	w.eventually("two replicas", func() error {
		w.must(w.c.List(w.ctx, &replicas, client.InNamespace(w.ns)))
		if len(replicas.Items) != 2 {
			return errors.New(fmt.Sprint(len(replicas.Items)))
		}
		return nil
	})
	for _, r := range replicas.Items {
		if r.Spec.Placement.NodeSelector["name"] != "mac-2" || r.Spec.Placement.Affinity != nil {
			t.Errorf("%s has the selector %v, want that of the accepted spec", r.Name, r.Spec.Placement.NodeSelector)
		}
	}
	if d = w.get("grows"); len(d.Spec.Placement.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms) != 1 || d.Annotations["metalfleet.dev/spec-bytes"] != "1" {
		t.Errorf("the owner's spec or annotations were changed: %v", d.Annotations)
	}
	w.edit("grows", func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.Affinity = nil })
	w.deployment("grows", v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)

	large := func(s *v1alpha1.ModelDeploymentSpec) { s.Placement.Affinity = largeAffinity(1) }
	w.deploy("large", large)
	w.deployment("large", v1alpha1.ConditionAccepted, v1alpha1.ReasonSpecTooLarge)
}
