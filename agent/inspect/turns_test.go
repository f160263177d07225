package inspect

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// lasting resolves a source after the time that it names, or a second.
type lasting struct {
	mu    sync.Mutex
	began map[string][]time.Time
}

func (l *lasting) Resolve(ctx context.Context, o v1alpha1.Inspection) (model.Record, error) {
	l.mu.Lock()
	l.began[o.ID] = append(l.began[o.ID], time.Now())
	l.mu.Unlock()
	takes, err := time.ParseDuration(o.Source)
	if err != nil {
		takes = time.Second
	}
	select {
	case <-ctx.Done():
		return model.Record{}, ctx.Err()
	case <-time.After(takes):
	}
	return model.Record{Source: o.Source, Files: []model.File{{Path: "m"}}}, nil
}

// inspecting runs an inspector until end is called.
func inspecting(t *testing.T) (l *lasting, i *Inspector, end func()) {
	l = &lasting{began: map[string][]time.Time{}}
	i = New(l, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { i.Run(ctx); close(done) }()
	return l, i, func() {
		cancel()
		<-done
	}
}

// TestAttackLongLooksOfManyNamespaces: sources of several namespaces take minutes each. One of
// another namespace waits for no more than a turn, and one that is slow itself is read in the end.
func TestAttackLongLooksOfManyNamespaces(t *testing.T) {
	for _, hostile := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(hostile, " namespaces"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, i, end := inspecting(t)
				var orders []v1alpha1.Inspection
				add := func(namespace, id, source string) {
					orders = append(orders, v1alpha1.Inspection{ID: id, Source: source, Namespace: namespace})
					i.Set(orders)
				}
				for n := range 4 * hostile {
					add(fmt.Sprint("evil", n%hostile), fmt.Sprint("evil-", n), "24h")
				}
				after(5 * time.Minute)
				for n := range 5 {
					began, id := time.Now(), fmt.Sprint("team-", n)
					add(fmt.Sprint("team", n), id, "quick")
					after(time.Minute)
					if looks := l.began[id]; len(looks) == 0 || looks[0].Sub(began) > lookTurn {
						t.Errorf("after a minute the looks at %s began at %v, it was ordered at %v", id, looks, began)
					}
				}
				add("slow", "slow", "100s")
				after(time.Duration(hostile) * 20 * time.Minute)
				for _, s := range i.Snapshot() {
					if s.ID == "slow" && s.State != v1alpha1.InspectionResolved {
						t.Errorf("the slow source is %+v after the looks %v", s, l.began["slow"])
					}
				}
				end()
			})
		})
	}
}

// TestAttackASecondLookOfANamespaceThatWaits: it is no reason for another namespace to wait.
func TestAttackASecondLookOfANamespaceThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, i, end := inspecting(t)
		order := func(namespace, id, source string) v1alpha1.Inspection {
			return v1alpha1.Inspection{ID: id, Source: source, Namespace: namespace}
		}
		orders := []v1alpha1.Inspection{order("a", "a", "24h"), order("team", "first", "quick"), order("b", "b", "24h")}
		i.Set(orders)
		after(2 * time.Second)
		orders = append(orders, order("c", "c", "24h"), order("a", "a2", "24h"))
		i.Set(orders)
		after(time.Minute)
		i.Set(append(orders, order("team", "second", "quick")))
		after(lookTurn + time.Second)
		if len(l.began["second"]) == 0 {
			t.Error("a namespace without a look waits for the second one of another")
		}
		end()
	})
}

// TestALongLookKeepsItsSlotWhileNoOtherWaits, nor does it give way to its own namespace.
func TestALongLookKeepsItsSlotWhileNoOtherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, i, end := inspecting(t)
		var orders []v1alpha1.Inspection
		for n := range 6 {
			orders = append(orders, v1alpha1.Inspection{ID: fmt.Sprint(n), Source: "10m", Namespace: fmt.Sprint("ns", n%3)})
		}
		i.Set(orders)
		after(31 * time.Minute)
		for id, looks := range l.began {
			if len(looks) != 1 {
				t.Errorf("%s was looked at %d times", id, len(looks))
			}
		}
		end()
	})
}
