//go:build !race

package engine_test

import (
	"sync/atomic"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/ref"
)

// TestAnImageDoesNotWaitForThoseOfAnotherTenant: while one tenant's prompt has many images, the layers of
// another's image are computed in turns with theirs.
func TestAnImageDoesNotWaitForThoseOfAnotherTenant(t *testing.T) {
	var layers atomic.Int64
	begun, both := make(chan struct{}), make(chan struct{})
	e := ready(t, engine.Options{ModelPath: seeing(t, "qwen3_vl"), Sequences: 2}, ref.Options{}, func(op string) error {
		if op == "AttendAll" && layers.Add(1) == 1 { // of the tower
			close(begun)
			<-both
		}
		return nil
	})
	var images [][]byte
	for i := range 12 {
		images = append(images, picture(t, 40, 40, i+1))
	}
	ask := func(tenant string, images ...[]byte) *engine.Stream {
		r := about("what is ", "?", images...)
		r.Tenant, r.MaxTokens, r.Logprobs = tenant, 1, nil
		s, err := e.Generate(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	many := ask("a", images...)
	<-begun
	one := ask("b", picture(t, 40, 40, 99))
	close(both)
	collect(t, one)
	n := layers.Load()
	collect(t, many)
	if each := layers.Load() / int64(len(images)+1); n > 4*each {
		t.Errorf("%d layers were computed before the image of the other tenant was there, want about twice its own %d", n, each)
	}
}
