//go:build !race

package modelreplica

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/internal/notice"
)

// requests counts those that are due and those that wait, each once.
type requests struct {
	queue
	due     int
	waiting map[reconcile.Request]time.Duration
}

func (q *requests) Add(reconcile.Request) { q.due++ }

func (q *requests) AddAfter(r reconcile.Request, d time.Duration) { q.waiting[r] = d }

// TestAMacThatReportsAllTheTimeWaits: other Macs do not wait for it.
func TestAMacThatReportsAllTheTimeWaits(t *testing.T) {
	at := now
	h := macEvents{limits: &notice.Limits{Burst: reportBurst, Every: reportEvery}, now: func() time.Time { return at },
		update: func(_ context.Context, _, mac *v1alpha1.MacNode) (out []reconcile.Request) {
			for i := range 64 {
				out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: mac.Name, Name: fmt.Sprint(i)}})
			}
			return out
		}}
	report := func(name string, q *requests) {
		mac := &v1alpha1.MacNode{}
		mac.Name = name
		h.Update(t.Context(), event.UpdateEvent{ObjectOld: mac, ObjectNew: mac}, q)
	}
	evil, good := &requests{waiting: map[reconcile.Request]time.Duration{}}, &requests{waiting: map[reconcile.Request]time.Duration{}}
	for range 100 { // in a second
		report("evil", evil)
		at = at.Add(10 * time.Millisecond)
	}
	if evil.due > reportBurst+40 || len(evil.waiting) != 64 {
		t.Errorf("of 6400 changes in a second, %d are due at once and %d replicas wait", evil.due, len(evil.waiting))
	}
	for range 3 {
		report("good", good)
	}
	if good.due != 3*64 || len(good.waiting) != 0 {
		t.Errorf("of another Mac, %d changes are due and %d wait", good.due, len(good.waiting))
	}
}
