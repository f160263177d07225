package tensortest

import (
	"context"
	"errors"
	"testing"

	"metalfleet.dev/metalfleet/metal/tensor"
)

// place replaces rows, leaves the others and its operands as they were, and refuses
// rows that are not there or not in order.
func (s elementSuite) place(t *testing.T) {
	x := s.open(t)
	const width = 37
	v, fresh := x.random(9*width), x.random(3*width)
	for _, rows := range [][]int{{0, 1, 2}, {0, 4, 8}, {6, 7, 8}} {
		a, b := x.s.From(v, 9, width), x.s.From(fresh, 3, width)
		got, kept := x.read(x.s.Place(a, rows, b)), x.read(a)
		next := 0
		for r := range 9 {
			want := v[r*width:][:width]
			if next < len(rows) && rows[next] == r {
				want = fresh[next*width:][:width]
				next++
			}
			for j, w := range want {
				if got[r*width+j] != w || kept[r*width+j] != v[r*width+j] {
					t.Fatalf("Place %v: row %d is wrong", rows, r)
				}
			}
		}
	}
	for name, rows := range map[string][]int{"none": {}, "too few": {1, 2}, "twice": {1, 1, 2}, "backwards": {2, 1, 3}, "past the end": {0, 1, 9}, "before the start": {-1, 0, 1}} {
		sc := x.b.NewScope(context.Background())
		sc.Wait(sc.Place(sc.From(v, 9, width), rows, sc.From(fresh, 3, width)))
		if err := sc.Err(); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("rows %s: error %v, want %v", name, err, tensor.ErrShape)
		}
		sc.Close()
	}
	narrow := x.b.NewScope(context.Background())
	defer narrow.Close()
	narrow.Wait(narrow.Place(narrow.From(v, 9, width), []int{0}, narrow.From(fresh[:width-1], 1, width-1)))
	if err := narrow.Err(); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("narrower rows: error %v, want %v", err, tensor.ErrShape)
	}
}
