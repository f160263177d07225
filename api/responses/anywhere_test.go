//go:build !race

package responses

import "testing"

// TestOnlyAMacThatWasSentARequestProvesIt, and a later one proves more than an earlier one.
func TestOnlyAMacThatWasSentARequestProvesIt(t *testing.T) {
	a := NewAnywhere()
	id := a.ID()
	if !IsAnywhere(id) {
		t.Errorf("%s names a Mac", id)
	}
	for mac := 1; mac <= maxMacs+3; mac++ {
		if got, want := Proven(id, a.Proof()), min(mac, maxMacs); got != want {
			t.Errorf("the proof of Mac %d counts as that of %d, want %d", mac, got, want)
		}
	}
	for what, proof := range map[string]string{"nothing": "", "the id": id, "its random part": id[len(idPrefix):], "that of another": NewAnywhere().Proof(), "no hexadecimal number": "zz" + id[len(idPrefix)+2:]} {
		if n := Proven(id, proof); n != 0 {
			t.Errorf("%s proves Mac %d", what, n)
		}
	}
}
