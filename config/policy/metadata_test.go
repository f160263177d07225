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

// TestManagedFieldsOfADeploymentAreSmall: the API server stores what a client sends there, and writes all of it with
// each status. A write of the operator to a tenant's object would take seconds, for which its lists of all wait.
func TestManagedFieldsOfADeploymentAreSmall(t *testing.T) {
	const version, refused = "metalfleet.dev/v1alpha1", "managedFields may take 128 KiB"
	made := func(entries string) string { return `{"metadata":{"managedFields":[` + entries + `]}}` }
	annotations := func(n int, value string) string {
		return `{"f:metadata":{"f:annotations":` + many(n, value) + `}}`
	}
	w := newWorld(t)
	mine, huge := deployment("fields", "hf://org/model", ", servedNames: [tenant/fields]"), deployment("many", "hf://org/model", ", servedNames: [tenant/many]")
	w.stores(huge, made(owned("a", version, annotations(8000, "{}"))))
	o := object(t, full())
	for _, made := range []*unstructured.Unstructured{object(t, mine), o} {
		if err := w.as(mallory).Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.as(root).Patch(context.Background(), made, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				t.Error(err)
			}
			if err := w.as(root).Delete(context.Background(), made); err != nil {
				t.Error(err)
			}
		})
	}
	retry := `{"spec":{"rollout":{"retryGeneration":1}}}`
	w.play([]attempt{
		{name: "made up", who: mallory, object: mine, patch: made(owned("a", version, annotations(2000, "{}"))), refused: refused},
		{name: "made up, and nested", who: mallory, object: mine, patch: made(owned("a", version, annotations(10, `{"f:a":{"f:b":{"f:c":{"f:d":{}}}}}`))), refused: refused},
		{name: "very many", who: mallory, object: mine, patch: made(owned("a", version, annotations(19000, "{}"))), refused: "managedFields"},
		{name: "created with them", who: mallory, object: strings.Replace(deployment("made", "hf://org/model", ", servedNames: [tenant/made]"), "namespace: tenant", "namespace: tenant, managedFields: ["+owned("a", version, annotations(2000, "{}"))+"]", 1), refused: refused},
		{name: "more in a huge one", who: mallory, object: huge, patch: made(owned("b", version, annotations(2000, "{}"))), refused: refused},
		{name: "an edit", who: mallory, object: mine, patch: retry},
		{name: "an edit at all bounds", who: mallory, object: full(), patch: retry},
		{name: "an edit of a huge one", who: mallory, object: huge, patch: retry},
		{name: "the operator adds a finalizer to a huge one", who: operator, object: huge, patch: `{"metadata":{"finalizers":["metalfleet.dev/a"]}}`},
		{name: "an administrator drops them", who: root, object: huge, patch: `{"metadata":{"managedFields":[{}]}}`},
	})
}
