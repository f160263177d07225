package macclass

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestAPassCopiesNoObjects(t *testing.T) {
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	mac := &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "a"}}
	class := &v1alpha1.MacClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultMacClass, UID: "c", Generation: 3}}
	inner := fake.NewClientBuilder().WithScheme(s).WithObjects(mac, assigned, class).WithStatusSubresource(mac, class).Build()
	c, unchanged := sharing(t, inner)
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC))}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	unchanged()
	if err := inner.Get(t.Context(), client.ObjectKey{Name: "m"}, assigned); err != nil || assigned.Spec.Class == nil || assigned.Spec.Class.Generation != 3 {
		t.Errorf("the Mac's class is %+v (%v)", assigned.Spec.Class, err)
	}
}

// sharing returns a client that fails the test for a List with copies: each costs the whole
// fleet. The returned function reports whether what was listed was changed: it is the cache's.
func sharing(t *testing.T, c client.WithWatch) (client.WithWatch, func()) {
	var listed, before []runtime.Object
	return interceptor.NewClient(c, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if o := (&client.ListOptions{}).ApplyOptions(opts); o.UnsafeDisableDeepCopy == nil || !*o.UnsafeDisableDeepCopy {
				t.Errorf("a List copies every object of a %T", l)
			}
			err := c.List(ctx, l, opts...)
			listed, before = append(listed, l), append(before, l.DeepCopyObject())
			return err
		}}), func() {
			if len(listed) == 0 || !equality.Semantic.DeepEqual(listed, before) {
				t.Errorf("%d lists; an object of the cache was changed", len(listed))
			}
		}
}
