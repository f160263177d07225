//go:build !race

package controllers_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

// affinityOf has as many values as a spec may hold: terms of 16 expressions with 32 values each.
func affinityOf(operator corev1.NodeSelectorOperator, value func(i int) string) *v1alpha1.Affinity {
	required := &v1alpha1.NodeSelector{}
	for count := 0; count < 4400; {
		var term v1alpha1.NodeSelectorTerm
		for range 16 {
			expression := v1alpha1.NodeSelectorRequirement{Key: "a", Operator: operator}
			for range 32 {
				expression.Values = append(expression.Values, value(count))
				count++
			}
			term.MatchExpressions = append(term.MatchExpressions, expression)
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	return &v1alpha1.Affinity{NodeAffinity: &v1alpha1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
}

// withoutAffinityRules has the API server accept what an earlier schema did, while do runs.
func (w *world) withoutAffinityRules(do func()) {
	w.t.Helper()
	crd := &unstructured.Unstructured{}
	write := func(change func()) {
		w.t.Helper()
		w.eventually("change the schema", func() error {
			crd.SetAPIVersion("apiextensions.k8s.io/v1")
			crd.SetKind("CustomResourceDefinition")
			if err := w.c.Get(w.ctx, client.ObjectKey{Name: "modeldeployments.metalfleet.dev"}, crd); err != nil {
				return err
			}
			change()
			return w.c.Update(w.ctx, crd)
		})
	}
	var before any
	write(func() {
		before = crd.DeepCopy().Object["spec"]
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		dropRules(versions, false)
		w.must(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
	})
	defer write(func() { crd.Object["spec"] = before })
	do()
}

// dropRules removes the rules of every affinity in a schema.
func dropRules(schema any, within bool) {
	switch s := schema.(type) {
	case []any:
		for _, v := range s {
			dropRules(v, within)
		}
	case map[string]any:
		if within {
			maps.DeleteFunc(s, func(key string, _ any) bool { return key == "x-kubernetes-validations" })
		}
		for key, v := range s {
			dropRules(v, within || key == "affinity")
		}
	}
}

// allocated returns the bytes that the operator, which runs in this process, has allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestAttackAStoredAffinityOfManyErrors: an API server may have stored it under an
// earlier schema. It is refused, and costs the deployments of others nothing.
func TestAttackAStoredAffinityOfManyErrors(t *testing.T) {
	w := newWorld(t)
	for i := range 4 {
		w.mac(fmt.Sprint("mac-", i), holding(60*gib))
	}
	bad := &v1alpha1.ModelDeployment{}
	bad.Namespace, bad.Name = w.ns, "bad"
	bad.Spec.Model.Source = "file://evil/x.gguf"
	bad.Spec.Placement.Affinity = affinityOf(corev1.NodeSelectorOpIn, func(i int) string { return fmt.Sprint("-", i%10) })
	if b, err := json.Marshal(bad.Spec); err != nil || len(b) > 32<<10 {
		t.Fatalf("a spec of %d bytes is refused for its size (%v)", len(b), err)
	}
	if err := w.c.Create(w.ctx, bad.DeepCopy(), client.DryRunAll); !apierrors.IsInvalid(err) {
		t.Fatalf("today's schema: %v, want a refusal", err)
	}
	before := allocated()
	w.withoutAffinityRules(func() {
		w.must(w.within(patience.Most, func() error { return w.c.Create(w.ctx, bad) }))
	})
	w.deployment("bad", v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidAffinity)
	w.deploy("after", nil)
	w.deployment("after", v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	if n := (allocated() - before) >> 20; n > 2<<10 {
		t.Errorf("%d MiB were allocated, want at most 2 GiB", n)
	}
	w.must(w.within(time.Minute, func() error {
		return wantReason(w.get("bad").Status.Conditions, v1alpha1.ConditionReady, v1alpha1.ReasonInvalidAffinity)
	}))
}
