package route_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/gateway/route"
)

// TestADrainedMacThatIsDeletedIsGone: its MacNode stays until API servers have forgotten its tokens, and
// gateways end its connections before that. One that still drains keeps them.
func TestADrainedMacThatIsDeletedIsGone(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: scheme}
	macs, err := informers.FakeInformerFor(t.Context(), &v1alpha1.MacNode{})
	if err != nil {
		t.Fatal(err)
	}
	table := route.NewTable()
	var gone []string
	table.OnGone(func(mac string) { gone = append(gone, mac) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // after the handlers were added
	if err := route.Watch(ctx, informers, table); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	node := func(deleted bool, finalizers ...string) *v1alpha1.MacNode {
		m := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Finalizers: append(finalizers, v1alpha1.FinalizerIdentity)}}
		if deleted {
			m.DeletionTimestamp = &now
		}
		kept, err := route.Slim(m)
		if err != nil {
			t.Fatal(err)
		}
		return kept.(*v1alpha1.MacNode)
	}
	macs.Add(node(false, v1alpha1.FinalizerDrain))
	macs.Update(node(false), node(true, v1alpha1.FinalizerDrain))
	if uid, known := table.UID("a"); uid != "u" || !known || len(gone) > 0 {
		t.Errorf("a Mac that drains has the UID %q (%v), and %v are gone", uid, known, gone)
	}
	macs.Update(node(true, v1alpha1.FinalizerDrain), node(true))
	if _, known := table.UID("a"); known || len(gone) != 1 {
		t.Errorf("a Mac that was drained is known: %v, and %v are gone", known, gone)
	}
}
