//go:build !race

package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// full is a deployment at the bounds of its metadata and its affinity, with one finalizer less.
func full() string {
	rest := strings.TrimSuffix(strings.TrimPrefix(affinity(28), `{"spec":{`), `}}`)
	return `{"apiVersion":"metalfleet.dev/v1alpha1","kind":"ModelDeployment","metadata":{"name":"full","namespace":"tenant","finalizers":[` + repeated(`"a.example/%d"`, 15) +
		`],"annotations":{` + repeated(`"a%03d":"`+strings.Repeat("<", 80)+`"`, 256) + `},"labels":{` + repeated(`"l%d":""`, 128) +
		`},"ownerReferences":[` + repeated(`{"apiVersion":"v1","kind":"Pod","name":"p","uid":"%d"}`, 16) +
		`]},"spec":{"model":{"source":"hf://org/model"},"servedNames":[` + repeated(`"tenant/%d"`, 8) + `],"adapters":[` + repeated(`{"name":"a%02d","source":"hf://org/a"}`, 16) + `],` + rest + `}}`
}

// TestFinalizersOfAnyDeploymentComeAndGo: the rules of an update count two objects, and the API server
// refuses a write whose rules cost too much. The operator could neither add nor remove its finalizer.
func TestFinalizersOfAnyDeploymentComeAndGo(t *testing.T) {
	const refused = "at most 256 annotations"
	w := newWorld(t)
	small, stored := deployment("small", "hf://org/model", ", servedNames: [tenant/small]"), deployment("stored", "hf://org/model", ", servedNames: [tenant/stored]")
	huge := deployment("huge", "hf://org/model", ", servedNames: [tenant/huge]") // so that counting its texts twice costs too much
	w.stores(huge, `{"metadata":{"annotations":{`+repeated(`"%05d":""`, 30000)+`}}}`)
	w.stores(stored, `{"metadata":{"annotations":{`+repeated(`"%05d":""`, 1000)+`,"long":"`+strings.Repeat("x", 130<<10)+`"}}}`)
	for _, text := range []string{full(), small} {
		o := object(t, text)
		if err := w.as(mallory).Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, do := range []func() error{
				func() error {
					return w.as(root).Patch(context.Background(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				},
				func() error { return w.as(root).Delete(context.Background(), o) },
			} {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	annotated := func(n int) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{%s}}}`, repeated(`"%05d":""`, n))
	}
	added := `{"metadata":{"finalizers":[` + repeated(`"a.example/%d"`, 16) + `]}}`
	const removed = `{"metadata":{"finalizers":null}}`
	w.play([]attempt{
		{name: "many annotations", who: mallory, object: small, patch: annotated(257), refused: refused},
		{name: "very many", who: mallory, object: small, patch: annotated(2000), refused: refused},
		{name: "as many as are allowed", who: mallory, object: small, patch: annotated(256)},
		{name: "the operator adds a finalizer at all bounds", who: operator, object: full(), patch: added},
		{name: "the operator removes them", who: operator, object: full(), patch: removed},
		{name: "a tenant replaces an annotation at all bounds", who: mallory, object: full(), patch: `{"metadata":{"annotations":{"a000":"x"}}}`},
		{name: "the garbage collector removes owners at all bounds", who: root, object: full(), patch: `{"metadata":{"ownerReferences":null}}`},
		{name: "the operator adds a finalizer to a huge one", who: operator, object: huge, patch: added},
		{name: "the operator adds a finalizer to a stored one", who: operator, object: stored, patch: added},
		{name: "a stored one loses an annotation", who: mallory, object: stored, patch: `{"metadata":{"annotations":{"00000":null}}}`},
		{name: "a stored one loses all", who: mallory, object: stored, patch: `{"metadata":{"annotations":null}}`},
		{name: "a stored one gets one", who: mallory, object: stored, patch: `{"metadata":{"annotations":{"a":""}}}`, refused: refused},
		{name: "one of a stored one becomes longer", who: mallory, object: stored, patch: `{"metadata":{"annotations":{"00000":"a"}}}`, refused: "may take 128 KiB"},
	})
}
