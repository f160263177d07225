package controllers

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestEveryControllerServesNamespacesInTurn(t *testing.T) {
	o := options(1)
	if o.NewQueue == nil {
		t.Fatal("controllers have controller-runtime's queue: one namespace with 100 changes delays all others")
	}
	q := o.NewQueue("", o.RateLimiter)
	defer q.ShutDown()
	for i := range 100 {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "large", Name: fmt.Sprint(i)}})
	}
	q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "small", Name: "one"}})
	for range 2 {
		if r, _ := q.Get(); r.Namespace == "small" {
			return
		}
	}
	t.Error("the single change of a namespace waits for more than one change of another")
}
