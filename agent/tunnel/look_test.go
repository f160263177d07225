package tunnel

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
)

// TestANameWithManyAddresses: each address takes a goroutine that dials it again and again, and
// who answers for the name chooses how many there are.
func TestANameWithManyAddresses(t *testing.T) {
	var found []string
	for i := range 1000 {
		found = append(found, fmt.Sprintf("127.0.%d.%d", i/250, i%250))
	}
	l := &Listener{Options: Options{Gateways: []string{"a:1", "b:2"}, Log: logr.Discard(),
		Lookup: func(context.Context, string) ([]string, error) { return found, nil }}}
	running := map[string]context.CancelFunc{"127.0.3.249:2": func() {}, "127.0.9.9:1": func() {}}
	got := l.look(t.Context(), running)
	if len(got) != mostTunnels {
		t.Errorf("%d addresses are used, want %d", len(got), mostTunnels)
	}
	if !got["127.0.3.249:2"] || got["127.0.9.9:1"] {
		t.Errorf("%v: want the address in use that is still found, and not the other", got)
	}
	names := map[string]int{}
	for address := range got {
		names[address[len(address)-1:]]++
	}
	if names["1"] < mostTunnels/2-1 || names["2"] < mostTunnels/2-1 {
		t.Errorf("addresses by name %v, want as many of each", names)
	}
	found = found[:3]
	if got := l.look(t.Context(), nil); len(got) != 6 {
		t.Errorf("%v, want three addresses of each name", got)
	}
}
