package engine

import "testing"

// TestAttackImagesOfOneTenantFillTheRoom: however much one tenant asks for, others find room.
func TestAttackImagesOfOneTenantFillTheRoom(t *testing.T) {
	h := heldImages{most: 64}
	if h.take("a", 33) || !h.take("a", 32) || h.take("a", 1) {
		t.Fatal("a tenant holds another share than half of the room")
	}
	if !h.take("b", 16) || h.take("b", 1) || !h.take("c", 8) {
		t.Error("another tenant gets no half of what is left")
	}
	h.give("a", 32)
	if h.bytes() != 24 || !h.take("b", 12) {
		t.Errorf("%d bytes are held after a tenant gave its own back", h.bytes())
	}
	alone := heldImages{most: 64}
	if alone.limit("") != 64 || !alone.take("", 64) || alone.take("", 1) {
		t.Error("without keys, requests do not have the whole room")
	}
}
