//go:build !race

package fairqueue_test

import (
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/gateway/fairqueue"
)

// TestATenantWithManyKeysHasOneShare: in the turns and when the queue is full.
func TestATenantWithManyKeysHasOneShare(t *testing.T) {
	q := newQueue(12, 100)
	for i := range 12 {
		if _, err := q.Enter(&fairqueue.Entry{Model: "m", Tenant: "many", Key: fmt.Sprint(i), Bytes: 1}, begin); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 { // until both have six
		left, err := q.Enter(&fairqueue.Entry{Model: "m", Tenant: "one", Key: "k", Bytes: 1}, begin)
		if err != nil || len(left) != 1 || left[0].Tenant != "many" {
			t.Fatalf("request %d: %v, %d were displaced, want one of the tenant with many keys", i, err, len(left))
		}
	}
	var served []string
	for range 6 {
		served = append(served, q.Next("m", begin, none, anyEntry).Tenant)
	}
	if got, want := fmt.Sprint(served), "[many one many one many one]"; got != want {
		t.Errorf("%s are served, want %s", got, want)
	}
}

// TestTheKeysOfATenantTakeTurns: a key with one request at a time is served as often as one of
// its tenant with many, and finds a place in a queue that the other has filled.
func TestTheKeysOfATenantTakeTurns(t *testing.T) {
	q := newQueue(10, 100)
	enterOf := func(key string) ([]*fairqueue.Entry, error) {
		return q.Enter(&fairqueue.Entry{Model: "m", Tenant: "t", Key: key, Bytes: 1}, begin)
	}
	for range 10 {
		if _, err := enterOf("patient"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := enterOf("patient"); !errors.Is(err, fairqueue.ErrShare) {
		t.Errorf("one more of the key that has all: %v", err)
	}
	if left, err := enterOf("quick"); err != nil || len(left) != 1 || left[0].Key != "patient" {
		t.Fatalf("%v, %d were displaced, want one of the key with many", err, len(left))
	}
	served := map[string]int{}
	for range 10 {
		w := q.Next("m", begin, none, anyEntry)
		if served[w.Key]++; w.Key == "quick" {
			if _, err := enterOf("quick"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if served["patient"] != 5 || served["quick"] != 5 {
		t.Errorf("served %v, want 5 of each", served)
	}
}

// TestATenantThatCouldNotBeServedTakesNoTurnBack: it waited for one Mac; a newcomer has its turn after those
// that were there, and they alternate.
func TestATenantThatCouldNotBeServedTakesNoTurnBack(t *testing.T) {
	q := newQueue(100, 100)
	enterOf := func(tenant string, n int) {
		t.Helper()
		for range n {
			if _, err := q.Enter(&fairqueue.Entry{Model: "m", Tenant: tenant, Bytes: 1}, begin); err != nil {
				t.Fatal(err)
			}
		}
	}
	enterOf("bound", 10)
	enterOf("other", 20)
	for range 10 {
		q.Next("m", begin, none, func(w *fairqueue.Entry) bool { return w.Tenant != "bound" })
	}
	var served []string
	serve := func(n int) {
		for range n {
			served = append(served, q.Next("m", begin, none, anyEntry).Tenant)
		}
	}
	serve(1)
	enterOf("new", 10)
	serve(6)
	if got, want := fmt.Sprint(served), "[bound bound other new bound other new]"; got != want {
		t.Errorf("%s are served, want %s", got, want)
	}
}
