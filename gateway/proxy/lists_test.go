package proxy

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/gateway/route"
)

// Clients ask for a long list from many connections. However many they are, few of their lists
// use a processor at a time.
func TestAttackManyLongListsOfModels(t *testing.T) {
	names := slices.Repeat([]route.Name{{Name: "m"}}, 10*listStep)
	turns := newListTurns()
	var encoding, most, sent atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			tenant := []string{"a", "b"}[i%2]
			for range encoded(t.Context(), turns, tenant, slices.Values(names), func(n route.Name) any {
				now := encoding.Add(1)
				defer encoding.Add(-1)
				for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
				}
				runtime.Gosched()
				return n.Name
			}) {
				sent.Add(1)
			}
		})
	}
	all.Wait()
	if most.Load() > maxLists || sent.Load() != int64(64*len(names)) || turns.running != 0 {
		t.Errorf("%d lists at a time, %d of %d models, %d turns in use", most.Load(), sent.Load(), 64*len(names), turns.running)
	}
}

// Clients that read nothing hold up no other list.
func TestAListHasNoTurnWhileItsClientReads(t *testing.T) {
	turns, names := newListTurns(), slices.Repeat([]route.Name{{Name: "m"}}, 3*listStep)
	for range 2 * maxLists {
		for range encoded(t.Context(), turns, "a", slices.Values(names), func(n route.Name) any { return n.Name }) {
			if turns.running != 0 {
				t.Fatalf("%d turns in use", turns.running)
			}
		}
	}
}

func TestAListThatCannotEndIsAborted(t *testing.T) {
	turns, names := newListTurns(), slices.Repeat([]route.Name{{Name: "m"}}, 2*listStep)
	ctx, leave := context.WithCancel(t.Context())
	defer func() {
		if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) || turns.running != maxLists {
			t.Errorf("%v, %d turns in use", err, turns.running)
		}
	}()
	for range maxLists {
		if _, err := turns.begin(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	for range encoded(ctx, turns, "a", slices.Values(names), func(n route.Name) any { return n.Name }) {
		t.Error("a model is sent")
	}
}
