package engine

import "testing"

// enterAll enters requests of a tenant until one is refused, and returns how many were not.
func enterAll(a *admission, tenant string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.enter(tenant) == nil {
		n++
	}
	return n
}

func enterOne(a *admission, tenant string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.enter(tenant)
}

// TestEachTenantFindsAPlaceToWait: several gateways send more requests of one tenant than an engine
// has places, and those of others find one all the same.
func TestEachTenantFindsAPlaceToWait(t *testing.T) {
	for sequences, others := range map[int][]int{4: {35, 12, 4, 1}, 32: {54, 18, 6, 2}, 256: {272, 22, 7, 2}} {
		a := newAdmission(sequences, 64)
		a.start()
		for i, want := range others {
			if n := enterAll(a, string(rune('a'+i))); n != want {
				t.Errorf("%d sequences: tenant %d has %d requests, want %d", sequences, i, n, want)
			}
		}
		for range others[0] {
			a.release("a")
		}
		if n := enterAll(a, "e"); n < 24 {
			t.Errorf("%d sequences: %d places got free, and another tenant has %d of them", sequences, others[0], n)
		}
	}
	crowd := newAdmission(4, 64)
	crowd.start()
	for i := range 20 { // clients that ask for several choices each
		for range 4 {
			_ = enterOne(crowd, string(rune('A'+i)))
		}
	}
	if err := enterOne(crowd, "other"); err != nil {
		t.Errorf("next to choices of 20 clients: %v", err)
	}
	alone := newAdmission(4, 64)
	alone.start()
	if n := enterAll(alone, ""); n != 68 {
		t.Errorf("without keys there are %d places, want 68", n)
	}
}
