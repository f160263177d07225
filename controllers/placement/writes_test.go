package placement

import (
	"errors"
	"slices"
	"sync"
	"testing"
)

// TestAPassThatBindsSaysNothing: words wait for orders, and for the next pass
// where one was bound or failed.
func TestAPassThatBindsSaysNothing(t *testing.T) {
	failure := errors.New("refused")
	for _, c := range []struct {
		name  string
		bound bool
		order error
		want  []string
	}{
		{name: "nothing bound", want: []string{"order", "word"}},
		{name: "bound", bound: true, want: []string{"order"}},
		{name: "an order failed", order: failure, want: []string{"order"}},
	} {
		var mu sync.Mutex
		var did []string
		do := func(what string, err error) func() error {
			return func() error {
				mu.Lock()
				defer mu.Unlock()
				did = append(did, what)
				return err
			}
		}
		w := newWrites()
		w.say(do("word", nil))
		w.order(do("order", c.order))
		w.bound = c.bound
		if err := w.wait(); !errors.Is(err, c.order) || !slices.Equal(did, c.want) {
			t.Errorf("%s: %v, %v", c.name, did, err)
		}
	}
}
