package placement

import (
	"errors"
	"slices"
	"sync"
	"testing"
)

// Status writes follow spec writes, and are left to the next pass if this one bound a
// replica or failed.
func TestStatusWritesAreDeferred(t *testing.T) {
	failure := errors.New("refused")
	for _, c := range []struct {
		name  string
		bound bool
		err   error
		want  []string
	}{
		{name: "nothing bound", want: []string{"spec", "status"}},
		{name: "bound", bound: true, want: []string{"spec"}},
		{name: "a spec write failed", err: failure, want: []string{"spec"}},
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
		w.deferStatus(do("status", nil))
		w.specWrite(do("spec", c.err))
		w.bound = c.bound
		if err := w.wait(); !errors.Is(err, c.err) || !slices.Equal(did, c.want) {
			t.Errorf("%s: %v, %v", c.name, did, err)
		}
	}
}
