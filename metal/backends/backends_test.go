//go:build !race

package backends

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNamesChooseABackEnd(t *testing.T) {
	names := Names()
	if !slices.Contains(names, "ref") {
		t.Fatalf("ref is not among %v", names)
	}
	for name, want := range map[string]string{"": names[0], "ref": "ref"} {
		b, err := Open(name, Options{Threads: 1})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if b.Name() != want {
			t.Errorf("%q opened %s, want %s", name, b.Name(), want)
		}
		if err := b.Close(); err != nil {
			t.Errorf("%q: close: %v", name, err)
		}
	}
	if _, err := Open("abacus", Options{}); !errors.Is(err, errUnknown) || !strings.Contains(err.Error(), "ref") {
		t.Errorf("an unknown name: %v, want ErrUnknown and what there is", err)
	}
}
