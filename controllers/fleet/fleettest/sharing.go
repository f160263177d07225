package fleettest

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// DuringAWrite returns a client during a write of a MacNode that does not end: a List of MacNodes
// that waits for the writes in flight fails.
func DuringAWrite(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
		if _, is := l.(*v1alpha1.MacNodeList); is && !(&client.ListOptions{}).ApplyOptions(opts).DisableReadYourWritesConsistency {
			return errors.New("the List waits for a write of a MacNode")
		}
		return c.List(ctx, l, opts...)
	}})
}

// Sharing returns a client that fails the test for a List with copies: each costs the whole
// fleet. The returned function reports whether what was listed was changed: it is the cache's.
func Sharing(t testing.TB, c client.WithWatch) (client.WithWatch, func()) {
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
