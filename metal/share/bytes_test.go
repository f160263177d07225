package share

import "testing"

// TestAttackOneTenantFillsTheRoom: however much one tenant asks for, others find room.
func TestAttackOneTenantFillsTheRoom(t *testing.T) {
	h := NewBytes(64)
	if h.Take("a", 33) || !h.Take("a", 32) || h.Take("a", 1) {
		t.Fatal("a tenant holds another share than half of the room")
	}
	if !h.Take("b", 16) || h.Take("b", 1) || !h.Take("c", 8) {
		t.Error("another tenant gets no half of what is left")
	}
	h.Give("a", 32)
	if h.Held() != 24 || !h.Take("b", 12) {
		t.Errorf("%d bytes are held after a tenant gave its own back", h.Held())
	}
	alone := NewBytes(64)
	if alone.Limit("") != 64 || !alone.Take("", 64) || alone.Take("", 1) {
		t.Error("without keys, requests do not have the whole room")
	}
}

// What a tenant has already is counted, also over its share, and then it gets no more.
func TestBytesThatAreThereAreCounted(t *testing.T) {
	b := NewBytes(64)
	b.Add("a", 40)
	if b.Of("a") != 40 || b.Held() != 40 || b.Take("a", 1) || !b.Take("b", 12) {
		t.Errorf("a tenant holds %d of %d bytes", b.Of("a"), b.Held())
	}
	b.Give("a", 40)
	if b.Of("a") != 0 || b.Held() != 12 {
		t.Errorf("%d bytes are left to a tenant, of %d", b.Of("a"), b.Held())
	}
}
