package engine

import (
	"context"
	"errors"
	"testing"
)

// TestTwoPartsOfALoadFailAsOne: whichever ends first, and whichever fails.
func TestTwoPartsOfALoadFailAsOne(t *testing.T) {
	broken := errors.New("broken")
	fine := func(context.Context) error { return nil }
	fails := func(context.Context) error { return broken }
	stopped := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	for name, c := range map[string]struct {
		here, there func(context.Context) error
		want        error
	}{
		"both are fine":       {fine, fine, nil},
		"the first, at once":  {fails, stopped, broken},
		"the second, at once": {stopped, fails, broken},
		"the second alone":    {fine, fails, broken},
		"the first alone":     {fails, fine, broken},
	} {
		if err := beside(t.Context(), c.here, c.there); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
	}
}
