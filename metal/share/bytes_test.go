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
	if n := h.Lacks("c", 4); n != 8 || h.Lacks("d", 4) != 0 || h.Lacks("d", 5) != 2 {
		t.Errorf("%d bytes have to be given back for 4", n)
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

// TestAccountsThatShareBytes: together, accounts hold no more than the one that they count in.
func TestAccountsThatShareBytes(t *testing.T) {
	all := NewBytes(64)
	texts, tools := NewBytes(48).Within(all), NewBytes(128).Within(all)
	if texts.Limit("a") != 24 || tools.Limit("a") != 32 || tools.Limit("") != 64 {
		t.Errorf("a tenant may have %d and %d, one without a name %d", texts.Limit("a"), tools.Limit("a"), tools.Limit(""))
	}
	if !texts.Take("a", 24) || tools.Take("a", 9) || !tools.Take("a", 8) || all.Of("a") != 32 || tools.Of("a") != 8 {
		t.Errorf("a tenant holds %d bytes of both", all.Of("a"))
	}
	if !tools.Take("b", 16) || texts.Take("b", 1) || texts.Of("b") != 0 {
		t.Error("another tenant gets other bytes than half of what is left")
	}
	texts.Give("a", 24)
	tools.Add("b", 100)
	if all.Of("a") != 8 || all.Held() != 124 || all.Held() != texts.Held()+tools.Held() {
		t.Errorf("%d bytes are held, %d of them by a", all.Held(), all.Of("a"))
	}
}
