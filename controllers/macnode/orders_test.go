package macnode

import (
	"encoding/json"
	"testing"
)

// TestEmptyOrdersNameBothLists: without them the API server makes null of a
// spec that held nothing else, and refuses it.
func TestEmptyOrdersNameBothLists(t *testing.T) {
	b, err := json.Marshal(orders{}.whole())
	if want := `{"assignments":[],"inspections":[]}`; err != nil || string(b) != want {
		t.Errorf("%s (%v), want %s", b, err, want)
	}
}
