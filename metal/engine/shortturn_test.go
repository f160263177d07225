//go:build !race

package engine

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
)

// manyKeys makes a list of keys for each of its items.
const manyKeys = `{% if messages[0].content == 'boom' %}{% set a = ([{}] * 150) | sort(attribute='a,' * 400) %}{% endif %}Hello`

// TestAttackATemplateMakesMuchOfShortRequests: they wait for their turn without memory and
// without a place, so that short conversations of other tenants are rendered, and all end.
func TestAttackATemplateMakesMuchOfShortRequests(t *testing.T) {
	for _, template := range []string{greedy, manyKeys} {
		testShortRequests(t, template)
	}
}

// checkShort has a short conversation of another tenant turned into tokens, which must not wait.
func checkShort(t *testing.T, p *inputProcessor) {
	t.Helper()
	short := make(chan *Refusal, 1)
	go func() {
		_, refusal := p.tokens(t.Context(), Request{Tenant: "b", Chat: saying("Hi")}, nil)
		short <- refusal
	}()
	synctest.Wait()
	select {
	case refusal := <-short:
		if refusal != nil {
			t.Errorf("a short conversation of another tenant: %v", refusal)
		}
	default:
		t.Error("a short conversation of another tenant waits")
		go func() { <-short }()
	}
}

func testShortRequests(t *testing.T, template string) {
	p := templatedInput(t, template)
	synctest.Test(t, func(t *testing.T) {
		if err := p.long.Take(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		const requests = 3 * renderPlaces
		ended := make(chan *Refusal, requests)
		ctx, cancel := context.WithCancel(t.Context())
		ask := func(ctx context.Context, tenant string) {
			go func() {
				_, refusal := p.tokens(ctx, Request{Tenant: tenant, Chat: saying("boom")}, nil)
				ended <- refusal
			}()
			synctest.Wait()
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range requests - 1 {
			ask(t.Context(), "a")
		}
		ask(ctx, "gone")
		runtime.GC()
		runtime.ReadMemStats(&after)
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 2*longBytes || len(ended) > 0 {
			t.Errorf("%d renders ended before their turn, %d bytes are held", len(ended), held)
		}
		checkShort(t, p)
		if p.renders.Free() != renderPlaces {
			t.Errorf("%d places are free while all wait for their turn", p.renders.Free())
		}
		cancel()
		if refusal := <-ended; refusal == nil || refusal.Kind != Cancelled {
			t.Errorf("one that was cancelled: %v", refusal)
		}
		p.long.Give("other")
		for range requests - 1 {
			if refusal := <-ended; refusal != nil {
				t.Error(refusal)
			}
		}
		synctest.Wait()
		if p.long.Free() != 1 || p.renders.Free() != renderPlaces {
			t.Errorf("%d places for long texts and %d for renders are free", p.long.Free(), p.renders.Free())
		}
	})
}
