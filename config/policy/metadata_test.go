//go:build !race

package policy

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const binding = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: metalfleet-deployment-metadata}}"

// stores creates an object while the bounds on metadata are not in force, and patches it.
func (w *world) stores(o, patch string) {
	w.t.Helper()
	c, bounds, made := w.as(root), object(w.t, binding), object(w.t, o)
	if err := c.Get(w.t.Context(), client.ObjectKeyFromObject(bounds), bounds); err != nil {
		w.t.Fatal(err)
	}
	if err := c.Delete(w.t.Context(), bounds.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	if err := c.Create(w.t.Context(), made); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := c.Delete(context.Background(), made); err != nil && !apierrors.IsNotFound(err) {
			w.t.Error(err)
		}
	})
	w.eventually(func() error {
		return c.Patch(w.t.Context(), object(w.t, o), client.RawPatch("application/merge-patch+json", []byte(patch)))
	})
	again := &unstructured.Unstructured{Object: map[string]any{"apiVersion": bounds.GetAPIVersion(), "kind": bounds.GetKind(),
		"metadata": map[string]any{"name": bounds.GetName()}, "spec": bounds.Object["spec"]}}
	if err := c.Create(w.t.Context(), again); err != nil {
		w.t.Fatal(err)
	}
}

// generate is a patch with a generateName, which the API server checks only when an object is created.
func generate(n int) string {
	return `{"metadata":{"generateName":"` + strings.Repeat("g", n) + `"}}`
}

// TestNoGenerateNameIsLong: the operator and the gateways list all objects, and one that is as large as etcd stores
// can be neither deleted nor reported on.
func TestNoGenerateNameIsLong(t *testing.T) {
	const refused = "generateName may have 253 bytes"
	w := newWorld(t)
	mine := deployment("generated", "hf://org/model", ", servedNames: [tenant/generated]")
	w.stores(mine, generate(1<<20))
	fresh := deployment("fresh", "hf://org/model", ", servedNames: [tenant/fresh]")
	for _, who := range []struct{ name, object string }{{mallory, fresh}, {operator, replica}} {
		o := object(t, who.object)
		if err := w.as(who.name).Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.as(root).Delete(context.Background(), o); err != nil {
				t.Error(err)
			}
		})
	}
	w.play([]attempt{
		{name: "a tenant", who: mallory, object: fresh, patch: generate(254), refused: refused},
		{name: "a tenant with all that etcd stores", who: mallory, object: fresh, patch: generate(1400 << 10), refused: refused},
		{name: "one as the API server creates", who: mallory, object: fresh, patch: generate(253)},
		{name: "a replica", who: mallory, object: replica, patch: generate(254), refused: refused},
		{name: "a Mac", who: fleet, object: mac, patch: generate(254), refused: refused},
		{name: "one that is there", who: operator, object: mine, patch: `{"metadata":{"finalizers":["a.example/b"]}}`},
		{name: "one that is there becomes shorter", who: mallory, object: mine, patch: generate(1 << 19)},
		{name: "one that is there becomes longer", who: mallory, object: mine, patch: generate(1<<20 + 1), refused: refused},
		{name: "a person on call, of a Mac", who: oncall, object: mac, patch: generate(1), refused: "needs the verb update on macnodes"},
		{name: "a person on call, of a replica", who: oncall, object: replica, patch: generate(1), refused: "needs the verb update on modelreplicas"},
	})
}
