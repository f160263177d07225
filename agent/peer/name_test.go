package peer

import (
	"net/http"
	"testing"
)

// TestAttackANameOfThisMac: a peer chooses what its name resolves to.
func TestAttackANameOfThisMac(t *testing.T) {
	s := newStand(t, nil)
	s.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
	s.addr.Host = "localhost"
	c := s.client(nil)
	if peers := c.Of(t.Context(), record, "", 0); len(peers) != 0 || c.failures("giver") == 0 {
		t.Errorf("peers %v, %d failures", peers, c.failures("giver"))
	}
}
