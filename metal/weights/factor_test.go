//go:build !race

package weights

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/metal/quant"
)

// A factor that is read in tiles has the rows of one that is read at once, also where rows and
// columns lie exchanged, and where a part of its rows is used.
func TestFactorsAreReadInTiles(t *testing.T) {
	const rows, columns, offset = 7, 5, 3
	numbers := make([]byte, offset+2*rows*columns)
	for i := range numbers {
		numbers[i] = byte(i)
	}
	path := filepath.Join(t.TempDir(), "factor")
	if err := os.WriteFile(path, numbers, 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	number := func(at int) []byte { return numbers[offset+2*at:][:2] }
	for _, turned := range []bool{false, true} {
		shape := []int64{rows, columns}
		if turned {
			shape = []int64{columns, rows}
		}
		f := factor{turned: turned, tensor: shardTensor{name: "a", shape: shape, kind: element{"BF16", 2}, span: span{offset: offset, bytes: 2 * rows * columns}}}
		for _, part := range [][2]int{{0, rows}, {2, 3}} {
			f.first, f.rows = part[0], part[1]
			var want []byte
			for r := f.first; r < f.first+f.rows; r++ {
				for c := range columns {
					if at := r*columns + c; !turned {
						want = append(want, number(at)...)
					} else {
						want = append(want, number(c*rows+r)...)
					}
				}
			}
			for _, most := range []int{1, 2 * columns, 2*2*columns + 1, 4 * 2 * columns, 1 << 10} {
				got := make([]byte, len(want))
				err := f.tiles(source, f.rows, most, func(first int, raw []byte) error {
					if len(raw) > max(most, 2*columns) {
						t.Errorf("a tile of %d bytes, want at most %d", len(raw), most)
					}
					copy(got[first*2*columns:], raw)
					return nil
				})
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("turned %v, rows %v in tiles of %d: %v (%v), want %v", turned, part, most, got, err, want)
				}
			}
		}
	}
}

// TestAnAdapterOfLargeFactors: a factor takes no more than a tile or two besides the matrix
// that it is loaded into. It was in memory whole, and twice as mlx-lm stores it.
func TestAnAdapterOfLargeFactors(t *testing.T) {
	const rows, columns = 4096, 16 << 10 // 128 MiB of zeros
	source, err := os.Create(filepath.Join(t.TempDir(), "factor"))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	if err := source.Truncate(2 * rows * columns); err != nil {
		t.Fatal(err)
	}
	one := func(turned bool, shape ...int64) factor {
		return factor{rows: rows, turned: turned, tensor: shardTensor{name: "a", shape: shape, kind: element{"BF16", 2}, span: span{bytes: 2 * rows * columns}}}
	}
	plain := one(false, rows, columns)
	experts := plain
	experts.stack = []factor{{}, plain}
	stacked := factor{rows: rows / 4, tensor: shardTensor{name: "a", shape: []int64{4, rows / 4, columns}, kind: element{"BF16", 2}, span: span{bytes: 2 * rows * columns}}}
	for name, tc := range map[string]struct {
		f       factor
		experts int
	}{"as peft stores it": {plain, 0}, "as mlx-lm stores it": {one(true, columns, rows), 0}, "of single experts": {experts, 2}, "of stacked experts": {stacked, 4}} {
		first, _, err := (&Adapter{source: source}).Factors(Change{Layer: name, Experts: tc.experts, a: tc.f, b: tc.f})
		if err != nil {
			t.Fatal(err)
		}
		if first.Type != quant.BFloat16 || first.Rows != max(1, tc.experts)*tc.f.rows || first.Columns != columns {
			t.Errorf("%s: [%d, %d] of %v", name, first.Rows, first.Columns, first.Type)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var seen []int
		err = first.Each(func(row int, raw []byte) error {
			for i := range len(raw) / (2 * columns) {
				seen = append(seen, row+i)
			}
			return nil
		})
		runtime.ReadMemStats(&after)
		if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; err != nil || mib > 2*tileBytes>>20+8 {
			t.Errorf("%s: %d MiB were allocated (%v)", name, mib, err)
		}
		if want := make([]int, first.Rows); len(seen) != len(want) || slices.Max(seen) != len(want)-1 {
			t.Errorf("%s: %d rows, want %d", name, len(seen), len(want))
		}
	}
}
