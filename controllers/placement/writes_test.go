package placement

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestAttackASpecWriteThatFailsForEver: status writes follow spec writes, and are left to the
// next pass if this one bound a replica. A write that the API server refuses keeps back the
// status of its own replica, and of no other tenant's.
func TestAttackASpecWriteThatFailsForEver(t *testing.T) {
	failure := errors.New("refused")
	for _, c := range []struct {
		name       string
		binds, due bool
		err        error
		want       []string
	}{
		{name: "nothing bound", want: []string{"spec", "status", "status of another"}},
		{name: "bound", binds: true, want: []string{"spec"}},
		{name: "bound, and due", binds: true, due: true, want: []string{"spec", "status", "status of another"}},
		{name: "a spec write failed", err: failure, want: []string{"spec", "status of another"}},
		{name: "a binding failed", binds: true, err: failure, want: []string{"spec", "status of another"}},
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
		w.due = c.due
		w.deferStatus("replica", do("status", nil))
		w.deferStatus("another", do("status of another", nil))
		start := map[bool]func(types.UID, func() error){false: w.specWrite, true: w.bind}[c.binds]
		start("replica", do("spec", c.err))
		err := w.wait()
		if slices.Sort(did); !errors.Is(err, c.err) || !slices.Equal(did, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, did, err, c.want)
		}
	}
}
